"""What probes that take gradients have in common."""

import math
from abc import ABC
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.autograd.graph import GradientEdge
from torch.optim import Optimizer

from steelyard.batches import Tree, count_samples, detach_samples, join_samples, take_samples
from steelyard.probing.probe import Losses, Probe
from steelyard.probing.reuse import (
    Reuse,
    Reusing,
    closeness,
    coarse_reason,
    gradient_reason,
    leaf_reason,
    mean_reason,
    rounding,
)
from steelyard.probing.shadow import Shadow

Sought = Sequence[Tensor] | Sequence[GradientEdge]  # what a loss is differentiated for

_LOWER_SCALE = 16.0  # by which the scale of float16 gradients is lowered where they overflow
_AGAIN = (16, 256, 4096, 65536)  # the votes at which what was seen before is looked at once more
# What a loss raises of outputs that it does not expect.
_WRONG_OUTPUT = (TypeError, ValueError, RuntimeError, AttributeError, LookupError, AssertionError)
_ONE_VALUE = "Expected more than 1 value per channel"  # batch normalisation, of a half that is too small for it


class Leaves(NamedTuple):
    """Live parameters beside the stand-ins that are differentiated for them."""

    live: list[Tensor]
    stand_ins: list[Tensor]
    stepped: list[bool]


class Pass(NamedTuple):
    """One forward and backward pass: each domain's loss, the outputs (`None` of an objective), the sum's gradients.

    `besides` are its gradients for what was asked for besides the leaves. `overflowed` says that the gradients were
    taken with a lower scale than the outer loop's, under which they overflow. A vote can use them. The outer step
    cannot: its scaler has to see the overflow.
    """

    losses: dict[str, Tensor]
    outputs: dict[str, Tree] | None
    gradients: Sequence[Tensor | None]
    besides: Sequence[Tensor | None] = ()
    overflowed: bool = False


class GradientProbe(Probe, ABC):
    """Takes gradients on stand-ins, and says whether they may serve the outer step as well.

    A subclass that runs each domain's samples together says so: then only those of different domains must not meet.
    """

    domains_whole: ClassVar[bool] = False

    def __init__(self, *, every: int, gather: bool | int, scaler: GradScaler | None, reuse: Reusing) -> None:
        super().__init__(every=every, gather=gather)
        if gather and reuse is True:
            raise ValueError("reuse=True needs votes cast on the outer step's own samples; with gather they are not.")
        self.scaler = scaler
        self.reuse = Reuse(False if gather else reuse)

    def _may_share(self, model: nn.Module, losses: Losses) -> bool:
        return self.reuse.may_begin(model, losses, scaled=self.scaler is not None)

    def _differentiate(
        self, shadow: Shadow, samples: Mapping[str, Tree], leaves: Leaves, *, besides: Sequence[Tensor] = ()
    ) -> Pass | None:
        """One pass over the samples; `None` where a half is too small for batch normalisation."""
        model, losses = stand_ins_of(shadow)
        try:
            outputs = losses.outputs(model, samples) if losses.follow_outputs else None
            found = losses(model, samples) if outputs is None else losses.of(outputs, samples)
        except ValueError as error:
            if not is_too_small(error):
                raise
            return None
        # Half of one domain's samples: in the outer loss their weight is about 1 / (2K).
        weight = 1 / (2 * len(losses.domains))
        total = torch.stack(list(found.values())).sum()
        gradients, overflowed = self._take_gradients(total, [*leaves.stand_ins, *besides], weight=weight)
        mine, others = gradients[: len(leaves.stand_ins)], gradients[len(leaves.stand_ins) :]
        kept = None if outputs is None else {name: detach_samples(output) for name, output in outputs.items()}
        return Pass(detached(found), kept, mine, others, overflowed)

    def _gradients(self, loss: Tensor, leaves: Sought, *, retain: bool = False) -> Sequence[Tensor | None]:
        """The gradients of a loss, taken with the outer loop's scaler if there is one."""
        gradients, _ = self._take_gradients(loss, leaves, retain=retain)
        return gradients

    def _take_gradients(
        self, loss: Tensor, leaves: Sought, *, retain: bool = False, weight: float = 1.0
    ) -> tuple[Sequence[Tensor | None], bool]:
        """The gradients of a loss, and whether they overflow under the scale of the outer loop's scaler.

        Args:
            loss: a scalar.
            leaves: what to differentiate for.
            retain: whether the graph is used again.
            weight: about what part of the outer loss this loss is; the scaler's scale is made for the outer loss.
        """
        if not loss.requires_grad:
            return [None] * len(leaves), False
        # As `backward()` after a loop's autocast: within it, what was kept from being cast would be, backwards.
        with torch.autocast(loss.device.type, enabled=False):
            if self.scaler is None:
                return torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=retain), False
            outer_scale = self.scaler.get_scale()
            own_scale = outer_scale * 2.0 ** math.floor(math.log2(weight))  # a power of two rounds nothing
            return _scaled_gradients(loss, leaves, min(outer_scale, max(1.0, own_scale)), retain=retain)

    def _audit(
        self,
        model: nn.Module,
        losses: Losses,
        whole: Mapping[str, Tree],
        *,
        alone: Callable[[nn.Module, Losses], Mapping[str, Tensor]],
        evaluating: bool,
    ) -> str | None:
        """Do samples meet, does the loss reach what is not differentiated? At new modes of the model, then ever rarer.

        The domains' losses from one pass over everything must be those found `alone`, also in evaluation mode if that
        is the mode of the vote; and, over some of the samples, their gradients those of passes over parts.
        """
        if not self.reuse.is_new(model) and not self._looks_again:
            return None
        shadow = Shadow(model, losses)
        twin, twin_losses = stand_ins_of(shadow)
        some = {name: take_samples(each, slice(0, max(1, count_samples(each) // 2))) for name, each in whole.items()}
        traced = torch.stack(list(twin_losses(twin, some).values())).sum()  # half of the memory of a step
        reason = leaf_reason(traced, shadow.parameters.values())
        unlike = self._gradient_reason(shadow, some, traced)
        del traced
        with torch.no_grad():
            passes = [twin_losses(twin, whole)]
            expected = alone(twin, twin_losses)
            if evaluating:
                with explained_in_evaluation(evaluating):
                    passes.append(twin_losses(twin.eval(), whole))
        for found in passes:
            tolerance = rounding(next(iter(found.values())), model=True)
            reason = reason or mean_reason(found, expected, tolerance=tolerance)
        if changed := shadow.changed_attribute():
            reason = reason or "the forward pass changes {1!r} of {0}".format(*changed)
        self.reuse.audit_done(model)
        return reason or unlike or (coarse_reason(expected) if self.reuse.setting == "detect" else None)

    @property
    def _looks_again(self) -> bool:
        """Whether what was seen before is looked at once more: a network may come to do something else."""
        return int(self.steps) // self.every + 1 in _AGAIN

    def _gradient_reason(self, shadow: Shadow, samples: Mapping[str, Tree], together: Tensor) -> str | None:
        """Whether the summed losses from one pass have other gradients than from a pass over each part."""
        leaves = [parameter for parameter in shadow.parameters.values() if parameter.requires_grad]
        gradients = self._gradients(together, leaves)
        summed = _summed_apart(*stand_ins_of(shadow), samples, pieces=1 if self.domains_whole else 2)
        apart = self._gradients(summed, leaves)
        return gradient_reason(gradients, apart, tolerance=closeness(together))


def _scaled_gradients(
    loss: Tensor, leaves: Sought, scale: float, *, retain: bool
) -> tuple[Sequence[Tensor | None], bool]:
    """Gradients of the scaled loss, divided by the scale, and whether it had to be lowered because they overflowed."""
    lowered = False
    while True:
        keep_graph = retain or scale > 1  # for another pass with a lower scale
        scaled = torch.autograd.grad(loss * scale, leaves, allow_unused=True, retain_graph=keep_graph)
        if scale <= 1 or not torch.isfinite(loss) or _are_finite(scaled):
            return [None if gradient is None else gradient / scale for gradient in scaled], lowered
        scale = max(1.0, scale / _LOWER_SCALE)
        lowered = True


def _are_finite(gradients: Sequence[Tensor | None]) -> bool:
    checks = [torch.isfinite(gradient).all() for gradient in gradients if gradient is not None]
    # One answer from the device, not one for each parameter.
    return not checks or bool(torch.stack([check.to(checks[0].device) for check in checks]).all())


def _summed_apart(model: nn.Module, losses: Losses, batch: Mapping[str, Tree], *, pieces: int) -> Tensor:
    """The summed losses where each piece of each domain's samples has a pass of its own."""
    found = []
    for name, samples in batch.items():
        size = count_samples(samples)
        cuts = [0, size] if pieces == 1 or size == 1 else [0, size // 2, size]
        parts = [take_samples(samples, slice(*cut)) for cut in pairwise(cuts)]
        if losses.follow_outputs:
            outputs = join_samples([losses.outputs(model, {name: part})[name] for part in parts])
            found.append(losses.of({name: outputs}, {name: samples})[name])
        else:
            found += [count_samples(part) / size * losses(model, {name: part})[name] for part in parts]
    return torch.stack(found).sum()


@contextmanager
def explained_in_evaluation(evaluating: bool) -> Iterator[None]:
    """Say what to do where the loss of a model in evaluation mode cannot be computed.

    Some models return something else there: one output instead of several (deep supervision), or boxes (detectors).
    The same model has run in training mode before, so the mode is the likely cause.
    """
    try:
        yield
    except _WRONG_OUTPUT as error:
        if not evaluating or _is_about_the_machine(error):
            raise
        raise ValueError(
            f"a hypothetical step could not be judged in evaluation mode ({type(error).__name__}: {error}). "
            'If the model returns something else in evaluation mode, pass meta_test="batch" to the probe.'
        ) from error


def _is_about_the_machine(error: Exception) -> bool:
    """Whether memory or a device has failed, which no mode would mend."""
    texts = ("allocate memory", "out of memory", "CUDA error", "cuDNN", "CUBLAS")
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in texts)


def is_too_small(error: ValueError) -> bool:
    """Whether batch normalisation refused a half for its size."""
    return str(error).startswith(_ONE_VALUE)


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


def give_gradients(leaves: Leaves, gradients: Sequence[Tensor | None], optimizer: Optimizer) -> None:
    """Set the stand-ins' gradients, for a step of theirs; copies, unless the optimizer is known to leave them alone."""
    theirs = not type(optimizer).__module__.startswith("torch.optim.")
    for leaf, gradient in zip(leaves.stand_ins, gradients, strict=True):
        leaf.grad = gradient.clone() if theirs and gradient is not None else gradient


def check_moves(gradients: Sequence[Sequence[Tensor | None]], leaves: Leaves) -> None:
    """Refuse an objective that runs another model than it is given."""
    if not any(g is not None and mine for each in gradients for g, mine in zip(each, leaves.stepped, strict=True)):
        raise ValueError(
            "no domain's loss depends on the parameters that the optimizer steps. An objective must run the model "
            "that it is given as its first argument."
        )
