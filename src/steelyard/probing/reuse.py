"""Whether gradients taken for a vote may serve the outer step as well."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from steelyard.probing.probe import Losses
from steelyard.probing.shadow import Shadow
from steelyard.probing.shared import Gradients

Reusing = bool | Literal["detect"]

_COARSE = 1e-4  # the rounding of a loss that hides what is not a mean: float16, bfloat16


class Reuse(nn.Module):
    """Asks, at every vote, whether parts of the outer loss may be taken from the vote's own passes.

    They may where the outer loss of a domain is the mean of the losses of its halves, weighted by their sizes: samples
    do not meet in the forward pass, nothing random is drawn, and the loss is a mean over samples.

    Args:
        setting: `False`, never; `True`, the user says so, and what can be seen to contradict it is an error;
            `detect`, where nothing contradicts it. What contradicted it once for more than a mode the model was in is
            part of the state, so that a run continued from a checkpoint does the same.
    """

    refused: Tensor

    def __init__(self, setting: Reusing) -> None:
        super().__init__()
        if setting not in (True, False, "detect"):
            raise ValueError(f"reuse must be True, False or 'detect'; got {setting!r}.")
        self.setting = setting
        self.reason: str | None = None
        self.audited: tuple[bool, ...] | None = None
        if setting == "detect":
            self.register_buffer("refused", torch.zeros((), dtype=torch.bool))

    def may_begin(self, model: nn.Module, losses: Losses, *, scaled: bool) -> bool:
        """Whether there is anything to try on this vote; `scaled`, whether gradients are taken of scaled losses."""
        if self.setting is False or (self.setting == "detect" and bool(self.refused)):
            return False
        detecting = self.setting == "detect"
        reason = _visible_reason(model) or (None if scaled else _underflow_reason(model))
        return self._settled(reason or (_unverifiable_reason(model, losses) if detecting else None))

    def holds(self, reason: str | None) -> bool:
        """Whether it stands after what the passes have shown."""
        if reason is not None and self.setting == "detect":
            self.refused.fill_(True)
        return self._settled(reason)

    def is_new(self, model: nn.Module) -> bool:
        """Whether the model has not been audited in the modes that it is in."""
        return self.audited != _modes(model)

    def audit_done(self, model: nn.Module) -> None:
        """The model needs no other audit in the modes that it is in."""
        self.audited = _modes(model)

    def _settled(self, reason: str | None) -> bool:
        if reason is not None and self.setting is True:
            self.audited = None
            raise ValueError(f"reuse=True needs a loss that is a mean over samples that do not meet; but {reason}.")
        self.reason = reason
        return reason is None

    def extra_repr(self) -> str:
        """The setting, for `print(balancer)`."""
        return repr(self.setting)


def _modes(model: nn.Module) -> tuple[bool, ...]:
    return tuple(module.training for module in model.modules())


def _visible_reason(model: nn.Module) -> str | None:
    """What in the modules, in the modes that they are in, has samples meet, keeps statistics or draws numbers."""
    for module in model.modules():
        name = type(module).__name__
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            return f"the gradients of {name} are sparse"
        if not module.training:
            continue
        if isinstance(module, _BatchNorm):
            return f"the samples of a batch meet in {name}"
        if isinstance(module, _InstanceNorm) and module.track_running_stats:
            return f"{name} keeps running statistics"
        if isinstance(module, _DropoutNd) and module.p > 0:
            return f"{name} draws random numbers"
    return None


def _underflow_reason(model: nn.Module) -> str | None:
    """Whether gradients may vanish that a scaler of the outer loop's would have kept."""
    parameters = list(model.parameters())
    kinds = {parameter.dtype for parameter in parameters}
    for device in {parameter.device.type for parameter in parameters}:
        if torch.is_autocast_enabled(device):
            kinds.add(torch.get_autocast_dtype(device))
    if torch.float16 in kinds:
        return "gradients in float16 underflow where losses are not scaled: give the probe the outer loop's scaler="
    return None


def _unverifiable_reason(model: nn.Module, losses: Losses) -> str | None:
    if not losses.follow_outputs:
        return "an objective runs the model itself, so that nothing tells whether it is a mean over samples"
    if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None:
        return "the model is compiled, and the vote's passes run eagerly"
    return None


def trace_reason(shadow: Shadow, *, drawn: bool) -> str | None:
    """What the passes have shown: random numbers drawn, or a buffer written to since it was copied."""
    if drawn or shadow.drew_numbers():
        return "the forward pass draws random numbers"
    if shadow.wrote_buffers():
        return "the forward pass changes the model's buffers"
    return None


def mean_reason(whole: Mapping[str, Tensor], parts: Mapping[str, Tensor], *, tolerance: float) -> str | None:
    """The first domain whose loss is not the mean of its halves', up to rounding.

    That is relative to the loss itself, and to a thousandth of the largest, for one whose terms cancel.
    """
    pairs = {name: (float(loss), float(parts[name])) for name, loss in whole.items()}
    largest = max((abs(value) for pair in pairs.values() for value in pair if math.isfinite(value)), default=0.0)
    for name, (found, expected) in pairs.items():
        scale = max(abs(found), largest / 1000)
        if math.isfinite(found) and not abs(found - expected) <= tolerance * scale:
            return (
                f"the loss of domain {name!r} over all samples is {found:.6g}, and {expected:.6g} as a mean of halves"
            )
    return None


def coarse_reason(losses: Mapping[str, Tensor]) -> str | None:
    """Whether losses are of too few digits to tell a mean over samples from something else."""
    for name, loss in losses.items():
        if torch.finfo(loss.dtype).eps > _COARSE:
            return f"the loss of domain {name!r} is {loss.dtype}, too coarse to tell whether it is a mean over samples"
    return None


def gradient_reason(together: Gradients, apart: Gradients, *, tolerance: float) -> str | None:
    """Whether gradients of one pass are those of passes over some of the samples each.

    They tell what losses do not where a part of the network adds nothing yet, as before a last layer of zeros.
    """
    sizes = [0.0 if one is None else float(one.norm()) for one in together]
    largest = max(filter(math.isfinite, sizes), default=0.0)
    for one, other, size in zip(together, apart, sizes, strict=True):
        if math.isfinite(size) and not _gap(one, other) <= tolerance * (size + largest / 100):
            return "the gradients of a pass over all samples are not those of passes over some of them"
    return None


def _gap(one: Tensor | None, other: Tensor | None) -> float:
    """How far gradients lie apart, of which one that is not there is zero."""
    if one is None or other is None:
        return sum(float(each.norm()) for each in (one, other) if each is not None)
    return float((one - other).norm())


def rounding(loss: Tensor, *, model: bool) -> float:
    """What a mean computed in parts may lose, or, with the model, a forward pass over other batch sizes."""
    eps = torch.finfo(loss.dtype).eps
    own = min((4096 if model else 1024) * eps, max(0.02, 16 * eps))  # of a coarse loss, not any number
    return max(own, 4 * _cast_eps(loss)) if model else float(own)


def closeness(loss: Tensor) -> float:
    """How close gradients of the same are, seen from passes over other numbers of samples.

    Other kernels round otherwise, and that switches activations and maxima near a tie: 3 % of the gradients of an
    untrained U-Net on noise.
    """
    return max(0.1, 32 * _cast_eps(loss), 32 * torch.finfo(loss.dtype).eps)


def _cast_eps(loss: Tensor) -> float:
    """What autocast rounds to."""
    device = loss.device.type
    return torch.finfo(torch.get_autocast_dtype(device)).eps if torch.is_autocast_enabled(device) else 0.0


def leaf_reason(loss: Tensor, known: Iterable[Tensor]) -> str | None:
    """Whether the loss depends on a trainable tensor of somebody else's."""
    ours = {id(tensor) for tensor in known}
    for leaf in leaf_uses(loss):
        if id(leaf) not in ours:
            return f"it depends on a trainable tensor of shape {tuple(leaf.shape)} outside the model and the loss"
    return None


def leaf_uses(loss: Tensor) -> Iterator[Tensor]:
    """The trainable tensors that a loss depends on, each as often as it was used."""
    seen, waiting = {loss.grad_fn}, [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        for following, _ in () if node is None else node.next_functions:
            leaf = getattr(following, "variable", None)
            if leaf is not None:
                yield leaf
            elif following not in seen:
                seen.add(following)
                waiting.append(following)
