"""Adam for a weighting's own parameters, with its state in buffers."""

from typing import final

import torch
from torch import Tensor, nn


@final
class Adam(nn.Module):
    """Adam with the usual decay rates, 0.9 and 0.999, for weightings that learn parameters of their own.

    `torch.optim.Adam` keeps its state outside the module, where a checkpoint of the weighting would miss it.

    Args:
        size: how many parameters.
        rate: the learning rate.

    Reference: Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015.
    """

    mean: Tensor
    """m, the moving average of the gradient."""
    square: Tensor
    """v, the moving average of the squared gradient."""
    taken: Tensor
    """t, the number of steps taken."""

    def __init__(self, size: int, *, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("square", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("taken", torch.zeros((), dtype=torch.int64))

    def step(self, values: Tensor, gradient: Tensor) -> None:
        """Move the values down the gradient, in place."""
        self.taken += 1
        steps = int(self.taken)
        gradient = gradient.clamp(-1e100, 1e100)  # so that its square is finite
        self.mean.lerp_(gradient, 0.1)
        self.square.lerp_(gradient.square(), 0.001)
        # Both averages start at 0. Dividing by 1 − decay^t removes that bias.
        scale = (self.square / (1 - 0.999**steps)).sqrt_().add_(1e-8)
        values.sub_(self.rate * (self.mean / (1 - 0.9**steps)) / scale)
