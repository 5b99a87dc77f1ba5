"""How tensors lie in memory."""

import torch
from torch import Tensor

_DIMENSIONS = {torch.channels_last: 4, torch.channels_last_3d: 5}


def layout_of(tensor: Tensor) -> torch.memory_format | None:
    """How the tensor lies in memory if channels are last in it."""
    if tensor.is_contiguous():
        return None
    fitting = (layout for layout, dimensions in _DIMENSIONS.items() if dimensions == tensor.dim())
    return next((layout for layout in fitting if tensor.is_contiguous(memory_format=layout)), None)


def arranged(tensor: Tensor, layout: torch.memory_format | None) -> Tensor:
    """The tensor, rearranged in memory if there is a layout to follow, and it can."""
    if layout is None or tensor.dim() != _DIMENSIONS[layout]:
        return tensor
    return tensor.contiguous(memory_format=layout)
