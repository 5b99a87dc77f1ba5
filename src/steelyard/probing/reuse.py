"""Whether gradients taken for a vote may serve the outer step as well."""

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from steelyard.probing.probe import Losses

Reusing = bool | Literal["detect"]


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

    def may_begin(self, model: nn.Module, losses: Losses) -> bool:
        """Whether there is anything to try on this vote."""
        if self.setting is False or (self.setting == "detect" and bool(self.refused)):
            return False
        detecting = self.setting == "detect"
        reason = _visible_reason(model) or (_unverifiable_reason(model, losses) if detecting else None)
        return self._settled(reason)

    def holds(self, reason: str | None) -> bool:
        """Whether it stands after what the passes have shown."""
        if reason is not None and self.setting == "detect":
            self.refused.fill_(True)
        return self._settled(reason)

    def is_new(self, model: nn.Module) -> bool:
        """Whether the model has not been audited in the modes that it is in."""
        modes = tuple(module.training for module in model.modules())
        changed, self.audited = modes != self.audited, modes
        return changed

    def _settled(self, reason: str | None) -> bool:
        if reason is not None and self.setting is True:
            self.audited = None
            raise ValueError(f"reuse=True needs a loss that is a mean over samples that do not meet; but {reason}.")
        self.reason = reason
        return reason is None

    def extra_repr(self) -> str:
        """The setting, for `print(balancer)`."""
        return repr(self.setting)


def _visible_reason(model: nn.Module) -> str | None:
    for module in model.modules():
        if not module.training:
            continue
        name = type(module).__name__
        if isinstance(module, _BatchNorm):
            return f"the samples of a batch meet in {name}"
        if isinstance(module, _InstanceNorm) and module.track_running_stats:
            return f"{name} keeps running statistics"
        if isinstance(module, _DropoutNd) and module.p > 0:
            return f"{name} draws random numbers"
    return None


def _unverifiable_reason(model: nn.Module, losses: Losses) -> str | None:
    if not losses.follow_outputs:
        return "an objective runs the model itself, so that nothing tells whether it is a mean over samples"
    if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None:
        return "the model is compiled, and the vote's passes run eagerly"
    return None


def trace_reason(before: list[object], after: list[object], buffers: Iterable[Tensor]) -> str | None:
    """What the passes have shown: random numbers drawn, or a buffer written to since it was copied."""
    if before != after:
        return "the forward pass draws random numbers"
    if any(buffer._version for buffer in buffers):
        return "the forward pass changes the model's buffers"
    return None


def mean_reason(whole: Mapping[str, Tensor], parts: Mapping[str, Tensor], *, tolerance: float) -> str | None:
    """The first domain whose loss is not the mean of its halves', up to rounding (relative to the largest loss)."""
    pairs = {name: (float(loss), float(parts[name])) for name, loss in whole.items()}
    scale = max((abs(value) for pair in pairs.values() for value in pair if math.isfinite(value)), default=0.0)
    for name, (found, expected) in pairs.items():
        if math.isfinite(found) and not abs(found - expected) <= tolerance * scale:
            return (
                f"the loss of domain {name!r} over all samples is {found:.6g}, and {expected:.6g} as a mean of halves"
            )
    return None


def rounding(loss: Tensor, *, model: bool) -> float:
    """What a mean computed in parts may lose, or, with the model, a forward pass over other batch sizes."""
    own = (4096 if model else 1024) * torch.finfo(loss.dtype).eps
    device = loss.device.type
    if model and torch.is_autocast_enabled(device):
        return max(own, 4 * torch.finfo(torch.get_autocast_dtype(device)).eps)
    return float(own)


def leaf_reason(loss: Tensor, known: Iterable[Tensor]) -> str | None:
    """Whether the loss depends on a trainable tensor of somebody else's."""
    ours = {id(tensor) for tensor in known}
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in ours:
            return f"it depends on a trainable tensor of shape {tuple(leaf.shape)} outside the model and the loss"
        waiting.extend(following for following, _ in node.next_functions)
    return None
