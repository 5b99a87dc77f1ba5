"""Adam on a few numbers, with its state in buffers."""

from typing import final

import torch
from torch import Tensor, nn


@final
class Adam(nn.Module):
    """Kingma and Ba's step with the usual moments (0.9, 0.999), for weightings that learn parameters of their own.

    Args:
        size: how many numbers.
        rate: the learning rate.
    """

    mean: Tensor
    square: Tensor
    taken: Tensor

    def __init__(self, size: int, *, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("square", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("taken", torch.zeros((), dtype=torch.int64))

    def step(self, values: Tensor, gradient: Tensor) -> None:
        """Move the values down the gradient, in place."""
        self.taken += 1
        count = int(self.taken)
        gradient = gradient.clamp(-1e100, 1e100)  # so that its square is finite
        self.mean.lerp_(gradient, 0.1)
        self.square.lerp_(gradient.square(), 0.001)
        size = (self.square / (1 - 0.999**count)).sqrt_().add_(1e-8)
        values.sub_(self.rate * (self.mean / (1 - 0.9**count)) / size)
