"""What probes of hypothetical losses have in common: settings, halves and gradients."""

from abc import ABC
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from steelyard.batches import Tree, count_samples, detach_samples, join_samples
from steelyard.measurement import Measurement, Statistic
from steelyard.probing.halves import Halves, halve
from steelyard.probing.hypothetical_step import Rule
from steelyard.probing.probe import Losses, Probe
from steelyard.probing.random_numbers import preserved_random_states
from steelyard.probing.reuse import Reuse, Reusing, leaf_reason, mean_reason, rounding
from steelyard.probing.shadow import Shadow

MetaTest = Literal["eval", "batch"]
Split = Literal["first", "random"]
_ONE_VALUE = "Expected more than 1 value per channel"  # batch normalisation, of a half that is too small for it


class Leaves(NamedTuple):
    """Live parameters beside the stand-ins that are differentiated for them."""

    live: list[Tensor]
    stand_ins: list[Tensor]
    stepped: list[bool]


class Pass(NamedTuple):
    """One forward and backward pass: each domain's loss, the outputs (`None` of an objective), the sum's gradients."""

    losses: dict[str, Tensor]
    outputs: dict[str, Tree] | None
    gradients: Sequence[Tensor | None]


class VoteProbe(Probe, ABC):
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
        super().__init__(every=every, gather=gather)
        for name, value, allowed in (
            ("step", step, get_args(Rule)),
            ("meta_test", meta_test, get_args(MetaTest)),
            ("split", split, get_args(Split)),
        ):
            if value not in allowed:
                raise ValueError(f"{name} must be {' or '.join(map(repr, allowed))}; got {value!r}.")
        if gather and reuse is True:
            raise ValueError("reuse=True needs votes cast on the outer step's own samples; with gather they are not.")
        self.step = step
        self.meta_test = meta_test
        self.split = split
        self.scaler = scaler
        self.reuse = Reuse(False if gather else reuse)

    def _halves(self, batch: Mapping[str, Tree]) -> dict[str, Halves]:
        return halve(batch, seed=int(self.steps) if self.split == "random" else None)

    def _differentiate(self, shadow: Shadow, samples: Mapping[str, Tree], leaves: Leaves) -> Pass | None:
        """One pass over the samples; `None` where a half is too small for batch normalisation."""
        model, losses = stand_ins_of(shadow)
        try:
            outputs = losses.outputs(model, samples) if losses.follow_outputs else None
            found = losses(model, samples) if outputs is None else losses.of(outputs, samples)
        except ValueError as error:
            if not str(error).startswith(_ONE_VALUE):
                raise
            return None
        gradients = self._gradients(torch.stack(list(found.values())).sum(), leaves.stand_ins)
        kept = None if outputs is None else {name: detach_samples(output) for name, output in outputs.items()}
        return Pass(detached(found), kept, gradients)

    def _gradients(self, loss: Tensor, leaves: Sequence[Tensor], *, retain: bool = False) -> Sequence[Tensor | None]:
        if not loss.requires_grad:
            return [None] * len(leaves)
        if self.scaler is None:
            return torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=retain)
        scale = self.scaler.get_scale()
        found = torch.autograd.grad(loss * scale, leaves, allow_unused=True, retain_graph=retain)
        return [None if gradient is None else gradient / scale for gradient in found]

    def _audit(
        self,
        model: nn.Module,
        losses: Losses,
        halves: Mapping[str, Halves],
        *,
        alone: Mapping[str, Tensor] | None = None,
    ) -> str | None:
        """Once for the modes the model is in: do samples meet, does the loss reach what is not differentiated?

        The domains' losses from one pass over everything must be those found `alone`, unless told the mean of halves.
        """
        if not self.reuse.is_new(model):
            return None
        shadow = Shadow(model, losses)
        twin, twin_losses = stand_ins_of(shadow)
        whole = {name: whole_of(half) for name, half in halves.items()}
        joint = twin_losses(twin, whole)
        reason = leaf_reason(torch.stack(list(joint.values())).sum(), shadow.parameters.values())
        with torch.no_grad():
            if alone is None:
                alone = {
                    name: _mean(half, *(twin_losses(twin, {name: samples})[name] for samples in half))
                    for name, half in halves.items()
                }
            passes = [detached(joint), twin_losses(twin.eval(), whole)]
        for found in passes:
            tolerance = rounding(next(iter(found.values())), model=True)
            reason = reason or mean_reason(found, alone, tolerance=tolerance)
        return reason

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
        with preserved_random_states(model.parameters()):
            return reason or self._audit(model, losses, halves)

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        return f"step={self.step!r}, meta_test={self.meta_test!r}, split={self.split!r}, every={self.every}"


def detached(losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The losses outside automatic differentiation."""
    return {name: loss.detach() for name, loss in losses.items()}


def stand_ins_of(shadow: Shadow) -> tuple[nn.Module, Losses]:
    """The model's and the losses' stand-ins."""
    model, losses = shadow.modules
    assert isinstance(losses, Losses)  # noqa: S101
    return model, losses


def leaves_of(shadow: Shadow, optimizer: Optimizer, *, everything: bool) -> Leaves:
    """The trainable parameters that the optimizer steps, or everything trainable."""
    stepped = {p for group in optimizer.param_groups for p in group["params"]}
    pairs = [(live, twin) for live, twin in shadow.parameters.items() if live.requires_grad]
    if not any(live in stepped for live, _ in pairs):
        raise ValueError("the optimizer holds no trainable parameter of the model it is given with.")
    pairs = [(live, twin) for live, twin in pairs if everything or live in stepped]
    return Leaves([live for live, _ in pairs], [twin for _, twin in pairs], [live in stepped for live, _ in pairs])


def check_moves(gradients: Sequence[Sequence[Tensor | None]], leaves: Leaves) -> None:
    """Refuse an objective that runs another model than it is given."""
    if not any(g is not None and mine for each in gradients for g, mine in zip(each, leaves.stepped, strict=True)):
        raise ValueError(
            "no domain's loss depends on the parameters that the optimizer steps. An objective must run the model "
            "that it is given as its first argument."
        )


def share_of(halves: Halves) -> float:
    """What share of a domain's samples is meta-train."""
    m = count_samples(halves.meta_train)
    return m / (m + count_samples(halves.meta_test))


def whole_of(halves: Halves) -> Tree:
    """A domain's samples, meta-train first."""
    return join_samples([halves.meta_train, halves.meta_test])


def measurement_of(hypothetical: Mapping[str, Tensor], domains: Sequence[str]) -> Measurement:
    """The hypothetical losses in the order of the domains."""
    present = torch.tensor([name in hypothetical for name in domains])
    values = torch.zeros(len(domains), dtype=torch.float64)
    values[present] = torch.stack([hypothetical[name].double() for name in domains if name in hypothetical]).cpu()
    return Measurement(values, present)


def _mean(halves: Halves, trained: Tensor, tested: Tensor) -> Tensor:
    share = share_of(halves)
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
