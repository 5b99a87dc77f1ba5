"""Which modules are layers that are linear in their own parameters."""

from collections.abc import Sequence

from torch import nn

from steelyard.probing.layer import Layer
from steelyard.probing.product_layers import Convolution, LinearLayer
from steelyard.probing.scaling_layers import GroupNorm, InstanceNorm, LayerNorm

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_KINDS: dict[type[nn.Module], type[Layer]] = {
    nn.Linear: LinearLayer,
    nn.LayerNorm: LayerNorm,
    nn.GroupNorm: GroupNorm,
    **dict.fromkeys(_CONVOLUTIONS, Convolution),
    **dict.fromkeys(_INSTANCE_NORMS, InstanceNorm),
}
_FORWARDS = {kind: kind.forward for kind in _KINDS}  # what they do, unless somebody patches them later


def layer_of(module: nn.Module, pieces: Sequence[int] = ()) -> Layer | None:
    """The module as a layer, if it is of a kind that is known; pieces are sizes of runs of samples to be told apart."""
    kind = _KINDS.get(type(module))
    known = "forward" not in vars(module) and not module._forward_pre_hooks
    known &= getattr(module, "weight", None) is not None and type(module).forward is _FORWARDS.get(type(module))
    if kind is Convolution:
        known &= module.padding_mode == "zeros" and not isinstance(module.padding, str)
    if kind is InstanceNorm:
        known &= not module.track_running_stats
    return kind(module, pieces) if kind is not None and known else None
