"""A module whose buffers keep their precision."""

from collections.abc import Callable
from typing import Self, final

from torch import Tensor, nn


class FullPrecision(nn.Module):
    """Buffers follow the module to another device, but keep their precision when it is cast, as a weighting's do."""

    @final
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move buffers to another device, but never to another precision: `half()` would round what was measured."""
        super()._apply(lambda tensor: tensor.to(fn(tensor).device), recurse)  # type: ignore[no-untyped-call]
        return self
