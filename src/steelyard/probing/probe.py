"""The one base of all probes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from steelyard.batches import Tree
from steelyard.measurement import Measurement, Statistic
from steelyard.probing.gathering import Gathering


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
        gather: keep samples of consecutive batches and measure on those, once there are this many of at least two
            domains (`True`: two, one for each half); for batches too small to divide.
    """

    statistic: ClassVar[Statistic]
    steps: Tensor

    def __init__(self, *, every: int = 1, gather: bool | int = False) -> None:
        super().__init__()
        if every < 1:
            raise ValueError(f"every must be at least 1; got {every}.")
        self.every = every
        self.gathering = Gathering(2 if gather is True else gather) if gather else None
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @final
    def measure(
        self, model: nn.Module, batch: Mapping[str, Tree], *, losses: Losses, optimizer: Optimizer
    ) -> Measurement | None:
        """Count a step; measure if one is due, else return `None`."""
        due = (int(self.steps) + 1) % self.every == 0
        if self.gathering is not None:
            self.gathering.add(batch)
            batch = self.gathering.take() if due else {}
        measurement = self._measure(model, batch, losses=losses, optimizer=optimizer) if due else None
        self.steps += 1
        return measurement

    @abstractmethod
    def _measure(
        self, model: nn.Module, batch: Mapping[str, Tree], *, losses: Losses, optimizer: Optimizer
    ) -> Measurement:
        """The statistic over the domains; one that cannot be measured on this batch is not present in it."""
