"""What probes of hypothetical losses have in common: settings, halves and gradients."""

from abc import ABC
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from steelyard.batches import Tree, join_samples
from steelyard.measurement import Measurement, Statistic
from steelyard.probing.gradient_probe import GradientProbe, Leaves, Pass
from steelyard.probing.halves import Halves, halve
from steelyard.probing.hypothetical_step import Rule
from steelyard.probing.probe import Losses
from steelyard.probing.random_numbers import preserved_random_states
from steelyard.probing.reuse import Reusing, mean_reason, rounding
from steelyard.probing.shared import Part, Shared, share_parts

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
            reason = _additive_reason(losses, halves, trained=trained, tested=tested)
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


def _additive_reason(
    losses: Losses, halves: Mapping[str, Halves], *, trained: Mapping[str, Pass], tested: Mapping[str, Pass]
) -> str | None:
    """Whether, on these samples, each domain's loss is the mean of its halves' losses; needs no pass of the model."""
    joined, parts = {}, {}
    for name, half in halves.items():
        first, second = trained[name], tested[name]
        assert first.outputs is not None  # noqa: S101
        assert second.outputs is not None  # noqa: S101
        joined[name] = join_samples([first.outputs[name], second.outputs[name]])
        parts[name] = _mean(half, first.losses[name], second.losses[name])
    with torch.no_grad():
        whole = losses.of(joined, {name: whole_of(half) for name, half in halves.items()})
    return mean_reason(whole, parts, tolerance=rounding(next(iter(whole.values())), model=False))
