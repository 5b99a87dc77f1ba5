"""First-order votes on a model that `fully_shard` has divided over ranks."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from steelyard.batches import Tree
from steelyard.measurement import Measurement, Scores
from steelyard.probing.optimizer_step import HypotheticalSteps, Rule, check_model_is_used, optimizer_replica
from steelyard.probing.passes import (
    ONE_VALUE,
    GradientRows,
    HalfTooSmallError,
    Leaves,
    explained_in_evaluation,
    leaves_of,
)
from steelyard.probing.probe import Finding, Gradients, Losses
from steelyard.probing.replica import Replica
from steelyard.probing.sharded.fsdp_state import gradients_reduced
from steelyard.probing.sharded.live_passes import live_gradients
from steelyard.probing.sharded.shards import Ranks, common_samples, stepped_shards
from steelyard.probing.sharing import CannotShareError
from steelyard.probing.vote_probe import Half, Halves, Vote, VoteProbe

# Each number of their step depends on the same number of the gradient, parameter and state alone, so that the step can
# be taken on every shard by itself.
_ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.ASGD,
)


def refuse_to_share() -> None:
    """A sharded model's gradients are never kept for the outer step."""
    raise CannotShareError("the model is sharded over ranks")


def check_can_step_shards(optimizer: Optimizer) -> None:
    """Refuse optimizers whose step on a parameter is not the steps on its shards.

    Raises:
        TypeError: It is not among torch's own optimizers that step every number by itself.
    """
    if type(optimizer) not in _ELEMENTWISE:
        raise TypeError(
            f"{type(optimizer).__name__} may combine numbers of a whole parameter, so its step cannot be taken on "
            "shards: use FirstOrder(step='sgd')."
        )


def measure_sharded(probe: VoteProbe, vote: Vote) -> Finding:
    """A first-order vote of all ranks together: they run the same passes, and measure the mean of their losses.

    No replica is made, because a sharded model cannot be copied. The passes run on the live model, and the gradients of
    the shards are read and put aside. Inner products are sums over shards.
    """
    _check_scaler(probe.scaler)
    if probe.step == "optimizer":
        check_can_step_shards(vote.steps.optimizer)
    ranks = Ranks(vote.model)
    shards = stepped_shards(vote.model, vote.steps.optimizer)
    joined = not probe.evaluating and ranks.all_agree(vote.losses.takes_one_pass(vote.halves.tests))
    with gradients_reduced(vote.model):
        trained = _train_passes(vote, shards)
        tested = _test_passes(vote, shards, evaluating=probe.evaluating, joined=joined)
    steps, replica, leaves = _steps_on_shards(vote.steps.optimizer, probe.step, shards)
    check_model_is_used(trained.gradients, leaves)
    yields_scores = probe.yields_scores
    slopes = steps.slopes(trained.gradients, tested.gradients, replica, leaves, zero_step=yields_scores)
    square_norms = trained.gradients.norms(leaves.stepped).square()
    sums = ranks.sum_over_shards(torch.cat([slopes.flatten(), square_norms]))
    slopes, square_norms = sums[: slopes.numel()].view_as(slopes), sums[slopes.numel() :]
    means = ranks.mean(torch.cat([trained.losses, tested.losses]))
    before = means[len(trained.losses) :]
    after = before + slopes
    # Without strict: the last row may be the zero step's.
    values = dict(zip(vote.halves.names, after.sum(1), strict=False))
    measurement = Measurement.by_name(values, vote.losses.domains)
    if not yields_scores:
        return Finding(measurement)
    losses = means[: len(trained.losses)]
    scores = Scores(after=after, before=before, losses=losses, gradient_norms=square_norms.sqrt())
    placed = scores.placed(vote.losses.domains, stepped=vote.halves.names, judged=list(vote.halves.tests))
    return Finding(measurement, scores=placed)


def measure_sharded_gramian(
    model: nn.Module,
    batch: Mapping[str, Tree],
    *,
    losses: Losses,
    optimizer: Optimizer,
    scaler: GradScaler | None,
) -> Measurement:
    """⟨g_i, g_j⟩ of the domains that all ranks hold: g_d is the gradient of the mean of the ranks' losses."""
    _check_scaler(scaler)
    batch = common_samples(model, losses.domains, batch).batch
    size = len(losses.domains)
    values = torch.zeros(size, size, dtype=torch.float64)
    present = torch.tensor([domain in batch for domain in losses.domains])
    if batch:
        halves = Halves([Half(name, samples, 1.0) for name, samples in batch.items()], [], held_out=True)
        vote = Vote(model, losses, halves, HypotheticalSteps(optimizer, "sgd"), batch)
        with gradients_reduced(model):
            gradients = _train_passes(vote, stepped_shards(model, vote.steps.optimizer)).gradients
        products = gradients.inner_products(gradients, [1.0] * len(gradients.columns))
        indices = present.nonzero().flatten()
        values[indices[:, None], indices] = Ranks(model).sum_over_shards(products)
    return Measurement(values, present)


def _check_scaler(scaler: GradScaler | None) -> None:
    if scaler is not None:
        raise ValueError("a sharded model is measured without a gradient scaler: train in bfloat16, or drop scaler=.")


class _LocalPasses(NamedTuple):
    """This rank's losses, and its shards of the gradients, which are reduced over the ranks; one row per domain."""

    losses: Tensor
    gradients: GradientRows


def _train_passes(vote: Vote, shards: Sequence[Tensor]) -> _LocalPasses:
    """A pass over each meta-train half."""
    losses: list[Tensor] = []
    rows: list[Gradients] = []
    for half in vote.halves.meta_train:
        compute = partial(_loss, vote, half)
        try:
            loss, gradients = live_gradients(compute, shards, modules=[vote.model, vote.losses])
        except ValueError as error:
            if str(error).startswith(ONE_VALUE):  # on all ranks, because their halves are of one size
                raise HalfTooSmallError from error
            raise
        losses.append(loss.double())
        rows.append(_local(gradients))
    return _LocalPasses(torch.stack(losses), GradientRows.separate(rows))


def _test_passes(vote: Vote, shards: Sequence[Tensor], *, evaluating: bool, joined: bool) -> _LocalPasses:
    """A pass for the score of each domain.

    Args:
        vote: what is voted on.
        shards: the parameters.
        evaluating: whether the model is judged in evaluation mode.
        joined: whether each pass runs the samples of all domains, which then meet in batch normalisation.
    """
    losses: list[Tensor] = []
    rows: list[Gradients] = []
    for name, samples in vote.halves.tests.items():
        test_samples = vote.halves.tests if joined else {name: samples}
        compute = partial(_score, vote, test_samples, name, evaluating=evaluating)
        with explained_in_evaluation(evaluating):
            score, gradients = live_gradients(compute, shards, modules=[vote.model, vote.losses])
        if vote.losses.have_judge and all(gradient is None for gradient in gradients):
            raise ValueError(
                "FirstOrder needs the gradient of the judge, and the judge has none. A sharded model can only be "
                "judged by a function with a gradient: leave judge= out."
            )
        losses.append(score.double())
        rows.append(_local(gradients))
    return _LocalPasses(torch.stack(losses), GradientRows.separate(rows))


def _loss(vote: Vote, half: Half) -> Tensor:
    losses: dict[str, Tensor] = vote.losses(vote.model, {half.domain: half.samples})
    return losses[half.domain]


def _score(vote: Vote, samples: Mapping[str, Tree], name: str, *, evaluating: bool) -> Tensor:
    if evaluating:
        vote.model.eval()  # which `live_gradients` takes back
    return vote.losses.scores(vote.model, samples)[name]


def _steps_on_shards(
    optimizer: Optimizer, rule: Rule, shards: Sequence[Tensor]
) -> tuple[HypotheticalSteps, Replica, Leaves]:
    """The optimizer's steps on plain tensors: this rank's shards of the parameters and of the optimizer's state."""
    local_shards: dict[Tensor, Tensor] = {}
    for shard, local in zip(shards, _local([shard.detach() for shard in shards]), strict=True):
        local_shards[shard] = nn.Parameter(local)
    local_optimizer = optimizer_replica(optimizer, local_shards)
    for state in local_optimizer.state.values():
        for name, value in state.items():
            state[name] = _local([value])[0]
    steps = HypotheticalSteps(local_optimizer, rule)
    replica = Replica(nn.ParameterList(local_shards.values()), borrow=steps.are_linear)
    return steps, replica, leaves_of(replica, local_optimizer, everything=False)


def _local(values: Sequence[Any]) -> list[Any]:
    """This rank's shard of each sharded tensor; everything else as it is."""
    from torch.distributed.tensor import DTensor

    return [value.to_local() if isinstance(value, DTensor) else value for value in values]
