"""What probes of hypothetical losses have in common: settings, halves and gradients."""

from abc import ABC
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from steelyard.batches import Tree, can_join, clone_samples, differentiable_samples, join_samples
from steelyard.measurement import Measurement, Statistic
from steelyard.probing.gradient_probe import GradientProbe, Leaves, Pass
from steelyard.probing.halves import Halves, halve
from steelyard.probing.hypothetical_step import Rule
from steelyard.probing.probe import Losses
from steelyard.probing.random_numbers import preserved_random_states
from steelyard.probing.reuse import Reusing, mean_reason, rounding
from steelyard.probing.shared import Part, Shared, share_parts

_COARSE = 1e-4  # float16 and bfloat16 round by more

MetaTest = Literal["eval", "batch"]
Split = Literal["first", "random"]


class VoteProbe(GradientProbe, ABC):
    """Hypothetical losses H_d, from the halves of each domain's batch."""

    statistic: ClassVar[Statistic] = Statistic.HYPOTHETICAL_LOSSES

    def __init__(
        self,
        *,
        step: Rule,
        meta_test: MetaTest,
        split: Split,
        every: int,
        gather: bool | int,
        scaler: GradScaler | None,
        reuse: Reusing,
    ) -> None:
        super().__init__(every=every, gather=gather, scaler=scaler, reuse=reuse)
        for name, value, allowed in (
            ("step", step, get_args(Rule)),
            ("meta_test", meta_test, get_args(MetaTest)),
            ("split", split, get_args(Split)),
        ):
            if value not in allowed:
                raise ValueError(f"{name} must be {' or '.join(map(repr, allowed))}; got {value!r}.")
        self.step = step
        self.meta_test = meta_test
        self.split = split

    def _halves(self, batch: Mapping[str, Tree]) -> dict[str, Halves]:
        return halve(batch, seed=int(self.steps) if self.split == "random" else None)

    def _means_reason(
        self,
        model: nn.Module,
        losses: Losses,
        halves: Mapping[str, Halves],
        *,
        trained: Mapping[str, Pass],
        tested: Mapping[str, Pass],
    ) -> str | None:
        """Whether losses are means over samples that do not meet: the losses at each vote, the model once."""
        reason = None
        if losses.follow_outputs:
            reason = additive_reason(
                losses, halves, trained=_outputs_by_domain(trained), tested=_outputs_by_domain(tested)
            )
        return reason or self._halves_audit(model, losses, halves)

    def _halves_audit(self, model: nn.Module, losses: Losses, halves: Mapping[str, Halves]) -> str | None:
        """Whether a pass over everything gives the losses that passes over the halves give."""
        whole = {name: whole_of(half) for name, half in halves.items()}

        def alone(twin: nn.Module, twin_losses: Losses) -> dict[str, Tensor]:
            return {
                name: _mean(half, *(twin_losses(twin, {name: samples})[name] for samples in half[:2]))
                for name, half in halves.items()
            }

        with preserved_random_states(model.parameters()):
            return self._audit(model, losses, whole, alone=alone, evaluating=self.meta_test == "eval")

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        return f"step={self.step!r}, meta_test={self.meta_test!r}, split={self.split!r}, every={self.every}"


def whole_of(halves: Halves) -> Tree:
    """A domain's samples, meta-train first."""
    return join_samples([halves.meta_train, halves.meta_test])


def measurement_of(hypothetical: Mapping[str, Tensor], domains: Sequence[str]) -> Measurement:
    """The hypothetical losses in the order of the domains."""
    present = torch.tensor([name in hypothetical for name in domains])
    values = torch.zeros(len(domains), dtype=torch.float64)
    values[present] = torch.stack([hypothetical[name].double() for name in domains if name in hypothetical]).cpu()
    return Measurement(values, present)


def share_halves(
    halves: Mapping[str, Halves],
    trained: Mapping[str, Pass],
    tested: Mapping[str, Pass],
    *,
    leaves: Leaves,
    rest: Mapping[str, tuple[float, Tree]],
) -> Shared:
    """All of the outer losses, from one pass over each half of each domain."""
    parts = []
    for name, half in halves.items():
        share = half.share
        parts.append(Part(name, share, trained[name].losses[name], trained[name].gradients))
        parts.append(Part(name, 1 - share, tested[name].losses[name], tested[name].gradients))
    return share_parts(parts, leaves.live, rest=rest)


def _mean(halves: Halves, trained: Tensor, tested: Tensor) -> Tensor:
    share = halves.share
    return share * trained + (1 - share) * tested


def _outputs_by_domain(passes: Mapping[str, Pass]) -> dict[str, Tree]:
    outputs = {}
    for name, domain_pass in passes.items():
        assert domain_pass.outputs is not None  # noqa: S101
        outputs[name] = domain_pass.outputs[name]
    return outputs


def additive_reason(
    losses: Losses, halves: Mapping[str, Halves], *, trained: Mapping[str, Tree], tested: Mapping[str, Tree]
) -> str | None:
    """Why a domain's loss is not the mean of its halves' losses; needs no pass of the model.

    Their values are compared, and their gradients for the outputs. Values alone do not tell: those of a batch Dice
    agree on many labels, while its gradients do not. As the gradients are compared at every vote, those that are shared
    with the outer step are right on these samples, whatever their labels.

    Args:
        losses: of outputs and targets.
        halves: each domain's samples.
        trained: each domain's outputs for its meta-train half, detached.
        tested: the same for its meta-test half.
    """
    wholes: dict[str, Tensor] = {}
    means: dict[str, Tensor] = {}
    unlike = None
    for name, half in halves.items():
        if not can_join([trained[name], tested[name]]):
            return f"the outputs for domain {name!r} have another form in evaluation mode"
        first_outputs, first_copies = differentiable_samples(trained[name])
        second_outputs, second_copies = differentiable_samples(tested[name])
        with torch.enable_grad():
            # Clones, because a loss may write into the outputs that it is given.
            first = losses.of({name: clone_samples(first_outputs)}, {name: half.meta_train})[name]
            second = losses.of({name: clone_samples(second_outputs)}, {name: half.meta_test})[name]
            whole = losses.of({name: join_samples([first_outputs, second_outputs])}, {name: whole_of(half)})[name]
            mean = _mean(half, first, second)
        if not _have_same_gradients(whole, mean, [*first_copies, *second_copies]):
            unlike = f"the gradients of the loss of domain {name!r} are not those of a mean over samples"
        wholes[name], means[name] = whole.detach(), mean.detach()
    tolerance = rounding(next(iter(wholes.values())), model=False)
    return mean_reason(wholes, means, tolerance=tolerance) or unlike


def _have_same_gradients(loss: Tensor, other: Tensor, outputs: Sequence[Tensor]) -> bool:
    """Whether two losses have the same gradients for the outputs, up to rounding."""
    if not outputs or not loss.requires_grad or not other.requires_grad:
        return loss.requires_grad == other.requires_grad
    with torch.autocast(loss.device.type, enabled=False):
        gradients = torch.autograd.grad(loss, outputs, allow_unused=True, materialize_grads=True)
        expected = torch.autograd.grad(other, outputs, allow_unused=True, materialize_grads=True)
    for gradient, expectation in zip(gradients, expected, strict=True):
        # Compared output by output: one with large gradients must not hide what is wrong with another.
        largest = expectation.abs().max() if expectation.numel() else torch.zeros(())
        if not bool(largest.isfinite()):
            continue  # it tells nothing
        tolerance = _gradient_rounding(gradient.dtype) * largest
        if not bool(((gradient - expectation).abs() <= tolerance).all()):
            return False
    return True


def _gradient_rounding(precision: torch.dtype) -> float:
    """What gradients computed in parts may lose, relative to the largest.

    Those of coarse outputs are computed in float32 as a rule, and rounded once.
    """
    eps = torch.finfo(precision).eps
    return (4 if eps > _COARSE else 128) * eps
