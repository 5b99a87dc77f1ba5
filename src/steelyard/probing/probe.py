"""The one base of all probes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from steelyard.batches import Tree
from steelyard.measurement import Measurement, Statistic


class Losses(nn.Module, ABC):
    """Each domain's loss, as the balancer computes it and a probe asks for it."""

    domains: tuple[str, ...]

    @abstractmethod
    def forward(self, model: nn.Module, batch: Mapping[str, Tree]) -> dict[str, Tensor]:
        """A scalar loss for each domain in the batch."""


class Probe(nn.Module, ABC):
    """Measures one statistic over the domains, without a side effect.

    A subclass names the `statistic` it provides and answers `_measure`. Whatever it does there must leave the model,
    the optimizer and all random number generators as found, even when it is interrupted.

    Args:
        every: measure on each n-th step only.
    """

    statistic: ClassVar[Statistic]
    steps: Tensor

    def __init__(self, *, every: int = 1) -> None:
        super().__init__()
        if every < 1:
            raise ValueError(f"every must be at least 1; got {every}.")
        self.every = every
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @final
    def measure(
        self, model: nn.Module, batch: Mapping[str, Tree], *, losses: Losses, optimizer: Optimizer
    ) -> Measurement | None:
        """Count a step; measure if one is due, else return `None`."""
        due = (int(self.steps) + 1) % self.every == 0
        measurement = self._measure(model, batch, losses=losses, optimizer=optimizer) if due else None
        self.steps += 1
        return measurement

    @abstractmethod
    def _measure(
        self, model: nn.Module, batch: Mapping[str, Tree], *, losses: Losses, optimizer: Optimizer
    ) -> Measurement:
        """The statistic over the domains; one that cannot be measured on this batch is not present in it."""
