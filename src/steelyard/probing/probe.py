"""The one base of all probes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from steelyard.batches import Tree
from steelyard.measurement import Measurement, Statistic
from steelyard.probing.gathering import Gathering
from steelyard.probing.shared import Shared


class Losses(nn.Module, ABC):
    """Each domain's loss, as the balancer computes it and a probe asks for it."""

    domains: tuple[str, ...]

    @abstractmethod
    def forward(self, model: nn.Module, batch: Mapping[str, Tree]) -> dict[str, Tensor]:
        """A scalar loss for each domain in the batch."""

    @property
    @abstractmethod
    def follow_outputs(self) -> bool:
        """Whether the losses are computed from the model's outputs; an objective runs the model itself."""

    @abstractmethod
    def outputs(self, model: nn.Module, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        """The model's outputs for each domain in the batch; only where the losses follow from them."""

    @abstractmethod
    def of(self, outputs: Mapping[str, Tree], batch: Mapping[str, Tree]) -> dict[str, Tensor]:
        """A scalar loss for each domain, from the model's outputs; only where the losses follow from them."""


@dataclass(frozen=True)
class Finding:
    """What a probe brings back.

    Attributes:
        measurement: the statistic over the domains.
        shared: what it has computed of the outer losses and their gradients on the way, if anything.
    """

    measurement: Measurement
    shared: Shared | None = None


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
        finding = self.find(model, batch, losses=losses, optimizer=optimizer)
        return None if finding is None else finding.measurement

    @final
    def find(
        self, model: nn.Module, batch: Mapping[str, Tree], *, losses: Losses, optimizer: Optimizer
    ) -> Finding | None:
        """Count a step; if one is due, measure, and keep what the outer step can use."""
        due = (int(self.steps) + 1) % self.every == 0
        if self.gathering is not None:
            self.gathering.add(batch)
            batch = self.gathering.take() if due else {}
        found = self._measure(model, batch, losses=losses, optimizer=optimizer) if due else None
        self.steps += 1
        return Finding(found) if isinstance(found, Measurement) else found

    @abstractmethod
    def _measure(
        self, model: nn.Module, batch: Mapping[str, Tree], *, losses: Losses, optimizer: Optimizer
    ) -> Measurement | Finding:
        """The statistic over the domains; one that cannot be measured on this batch is not present in it.

        A finding says in addition what of the outer step is done already.
        """
