"""First-order votes: gradients instead of steps taken."""

from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from steelyard.measurement import Measurement
from steelyard.probing.audit import check_halves
from steelyard.probing.half_passes import HalfPasses, Vmapping, run_one_by_one
from steelyard.probing.optimizer_step import Rule, check_model_is_used
from steelyard.probing.passes import (
    GradientRows,
    Leaves,
    explained_in_evaluation,
    leaves_of,
    model_and_losses,
    run_pass,
)
from steelyard.probing.probe import Finding
from steelyard.probing.replica import Replica, preserved_random_states, random_states
from steelyard.probing.sharing import CannotShareError, Part, Reusing, check_traces, share
from steelyard.probing.vote_probe import Halves, MetaTest, Split, Vote, VoteProbe, in_order, meta_tests


@final
class FirstOrder(VoteProbe):
    """First-order hypothetical losses: H_d ≈ Σ_j L_j(meta-test half of j; θ) + ⟨Δ_d, G⟩.

    Δ_d is the step that the optimizer would take from the meta-train half of domain d, G the gradient of the summed
    losses on the meta-test halves. Every domain brings its own samples, so these gradients cost no more arithmetic than
    the outer step's. Where `reuse` allows it they are the outer step's, and the vote costs next to nothing.

    There are three ways to run the halves. Where gradients are shared and passes are small, all halves are run at once
    by `torch.func.vmap`. Where they are shared and `vmap` does not work or does not pay, each half is run by itself
    (`vmapping.reason` says why). Where nothing can be shared, the vote's passes are separate from the outer step's.

    With batch normalisation the step alone is judged, on running statistics that are left unchanged. What the step's
    own forward pass does to them is not part of a first-order vote: `InnerLoop` includes it.

    Args:
        step: what Δ_d is: by the `optimizer`'s own rule and state, or `sgd`, the paper's plain −η∇L.
        meta_test: `eval` judges steps in evaluation mode, `batch` in each module's current mode.
        split: which samples are meta-train: the `first` m or m at `random`, drawn anew from the number of the step.
        every: measure on each n-th step only.
        gather: for batches too small to divide, collect samples of consecutive batches, as `InnerLoop` does.
        scaler: the outer loop's gradient scaler, so that float16 gradients do not underflow.
        reuse: whether the gradients serve the outer step too. `detect`: where nothing contradicts that a domain's loss
            is a mean over its samples, that samples are processed independently and that nothing random is drawn in
            the forward pass (`reuse.reason` says what did). `True`: you say so; a contradiction is an error.

    >>> import steelyard as sy
    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> balancer = sy.Balancer(
    ...     ("a", "b"),
    ...     loss=torch.nn.functional.mse_loss,
    ...     weighting=sy.DirichletVote("greedy"),
    ...     probe=sy.FirstOrder(),
    ... )
    >>> batch = {name: (torch.ones(4, 3), torch.full((4, 1), y)) for name, y in (("a", 0.0), ("b", 5.0))}
    >>> balancer(model, batch, optimizer).backward()
    >>> balancer.last.vote, balancer.probe.reuse.reason, balancer.probe.vmapping.reason
    ('b', None, None)
    """

    def __init__(
        self,
        *,
        step: Rule = "optimizer",
        meta_test: MetaTest = "eval",
        split: Split = "first",
        every: int = 1,
        gather: bool | int = False,
        scaler: GradScaler | None = None,
        reuse: Reusing = "detect",
    ) -> None:
        super().__init__(
            step=step, meta_test=meta_test, split=split, every=every, gather=gather, scaler=scaler, reuse=reuse
        )
        self.vmapping = Vmapping()

    def _cast(self, vote: Vote) -> Measurement | Finding:
        finding: Finding | None = None
        if self.reuse.may_begin(vote.model, vote.losses, scaler=self.scaler, rows=2 * len(vote.halves)):
            finding = self._measure_shared(vote)
        if finding is None:
            return self._measure_apart(vote)
        return finding

    def _measure_shared(self, vote: Vote) -> Finding | None:
        """The vote and the outer step's gradients; `None` where the gradients cannot serve the outer step."""
        # Only steps that are not linear in the gradient are taken on the replica.
        replica = Replica(vote.model, vote.losses, borrow=vote.steps.are_linear)
        leaves = leaves_of(replica, vote.steps.optimizer, everything=True)
        states = random_states(leaves.live)
        passes = self._run_halves(vote, replica, leaves)
        drawn = random_states(leaves.live) != states
        if passes.overflowed or not self.reuse.holds(lambda: self._check_passes(vote, passes, replica, drawn=drawn)):
            return None
        count = len(vote.halves)
        trained, tested = passes.gradients.part(0, count), passes.gradients.part(count, 2 * count)
        check_model_is_used(trained, leaves)
        slopes = vote.steps.slopes(trained, tested.weighted_sum([1.0] * count), replica, leaves)
        values = _hypothetical_losses(passes.losses[count:], slopes, vote.halves)
        rest = {name: (1.0, samples) for name, samples in vote.batch.items() if name not in vote.halves}
        parts = []
        for half, loss in zip(in_order(vote.halves), passes.losses, strict=True):
            parts.append(Part(half.domain, half.share, loss))
        shared = share(parts, passes.gradients, leaves.live, rest=rest)
        return Finding(Measurement.by_name(values, vote.losses.domains), shared)

    def _measure_apart(self, vote: Vote) -> Measurement:
        """The vote alone: each domain's gradient on its meta-train half, and G on all meta-test halves together."""
        trained = []
        for name, half in vote.halves.items():
            replica, leaves = _fresh_replica(vote)
            with preserved_random_states(leaves.live):  # every domain's pass draws the same numbers
                trained.append(run_pass(replica, {name: half.meta_train}, leaves, scaler=self.scaler).gradients)
        rows = GradientRows.separate(trained)
        replica, leaves = _fresh_replica(vote)
        if self.evaluating:
            model_and_losses(replica)[0].eval()
        with explained_in_evaluation(self.evaluating):
            tested = run_pass(replica, meta_tests(vote.halves), leaves, scaler=self.scaler)
        check_model_is_used(rows, leaves)
        slopes = vote.steps.slopes(rows, tested.gradients, replica, leaves)
        values = _hypothetical_losses(list(tested.losses.values()), slopes, vote.halves)
        return Measurement.by_name(values, vote.losses.domains)

    def _run_halves(self, vote: Vote, replica: Replica, leaves: Leaves) -> HalfPasses:
        """One pass over each half: all at once where that works and pays, else one by one."""
        if self.scaler is None and self.vmapping.applies_to(vote.model, vote.losses, vote.halves):
            return self.vmapping.run(replica, vote.halves, leaves, vote_number=self.vote_number)
        return run_one_by_one(replica, vote.halves, leaves, scaler=self.scaler)

    def _check_passes(self, vote: Vote, passes: HalfPasses, replica: Replica, *, drawn: bool) -> None:
        """Refuse to share where the outer loss is not the mean of the halves' losses."""
        check_traces(replica, drawn=drawn)
        if self.vmapping.saw_data_dependence and self.reuse.setting == "detect":
            raise CannotShareError("the forward pass branches on values of the batch, so that samples may meet")
        count = len(vote.halves)
        # Without strict: an objective has no outputs.
        train_outputs = dict(zip(vote.halves, passes.outputs[:count], strict=False))
        test_outputs = dict(zip(vote.halves, passes.outputs[count:], strict=False))
        check_halves(self, vote, train_outputs, test_outputs)


def _fresh_replica(vote: Vote) -> tuple[Replica, Leaves]:
    """A replica that no pass has run on, and its parameters that the optimizer steps."""
    replica = Replica(vote.model, vote.losses)
    return replica, leaves_of(replica, vote.steps.optimizer, everything=False)


def _hypothetical_losses(
    test_losses: Sequence[Tensor], slopes: Sequence[Tensor], halves: Mapping[str, Halves]
) -> dict[str, Tensor]:
    """H_d ≈ Σ_j L_j + ⟨Δ_d, G⟩ for each domain."""
    level = torch.stack([loss.double() for loss in test_losses]).sum().cpu()
    return {name: level + slope for name, slope in zip(halves, slopes, strict=True)}
