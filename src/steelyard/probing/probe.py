"""The base of all probes, and what a probe is given and gives back."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from steelyard.batches import Tree
from steelyard.measurement import Measurement, Scores, Statistic
from steelyard.probing.gathering import Gathering

Gradients = Sequence[Tensor | None]
"""One gradient for each parameter; `None` where the loss does not depend on it."""


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

    @property
    def one_for_all(self) -> bool:
        """Whether all domains have the same loss function."""
        return False

    def takes_one_pass(self, batch: Mapping[str, Tree]) -> bool:  # noqa: ARG002
        """Whether the losses of a batch take one pass of the model, over the samples of all its domains."""
        return False

    @property
    def have_judge(self) -> bool:
        """Whether hypothetical steps are judged by a score of the user's own, instead of by the losses."""
        return False

    @abstractmethod
    def outputs(self, model: nn.Module, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        """The model's outputs for each domain in the batch; only where the losses follow from them."""

    @abstractmethod
    def of(self, outputs: Mapping[str, Tree], batch: Mapping[str, Tree]) -> dict[str, Tensor]:
        """A scalar loss for each domain, from the model's outputs; only where the losses follow from them."""

    def scores(self, model: nn.Module, batch: Mapping[str, Tree]) -> dict[str, Tensor]:
        """The scalar by which each domain is judged: its loss, or the score of the user's own judge."""
        return self(model, batch)  # type: ignore[no-any-return]

    def scores_of(self, outputs: Mapping[str, Tree], batch: Mapping[str, Tree]) -> dict[str, Tensor]:
        """The same from the model's outputs; only where the losses follow from them."""
        return self.of(outputs, batch)


def _draw_nothing() -> None:
    """Leave the generators unchanged."""


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Part of each domain's outer loss, with its gradient, and the samples left to run.

    Attributes:
        losses: the computed part of each domain's loss, detached.
        combine: takes each domain's weight λ_d and returns Σ_d λ_d ∇(computed part of d); called once.
        parameters: the live parameters that the gradients belong to.
        rest: domain name to the samples left to run and their share in the domain's loss.
        advance_generators: gives the global random generators the states that the computed part's passes left them in;
            to be called before the rest is run.
    """

    losses: Mapping[str, Tensor]
    combine: Callable[[Mapping[str, float]], Gradients]
    parameters: Sequence[Tensor]
    rest: Mapping[str, tuple[float, Tree]] = field(default_factory=dict)
    advance_generators: Callable[[], None] = _draw_nothing


@dataclass(frozen=True)
class Finding:
    """The result of a probe.

    Attributes:
        measurement: the statistic over the domains.
        shared: the part of the outer losses and gradients that the probe has computed, if any.
        scores: of a vote, each domain's score after each hypothetical step, where they were asked for.
        held_out: whether the scores are those of held-out samples.
    """

    measurement: Measurement
    shared: Shared | None = None
    scores: Scores | None = None
    held_out: bool = False


class Probe(nn.Module, ABC):
    """Measures one statistic over the domains, without a side effect.

    A subclass names the `statistic` it provides and implements `_measure`. That method must leave the model, the
    optimizer and all random number generators unchanged, even when it is interrupted.

    Args:
        every: measure on each n-th step only.
        warm_up: measure on each of the first steps, this many, before `every` applies.
        gather: collect samples of consecutive batches, and measure once there are this many of at least two domains
            (`True`: two, one for each half); for batches too small to divide.
    """

    statistic: ClassVar[Statistic]
    steps: Tensor

    def __init__(self, *, every: int = 1, warm_up: int = 0, gather: bool | int = False) -> None:
        super().__init__()
        if every < 1:
            raise ValueError(f"every must be at least 1; got {every}.")
        if warm_up < 0:
            raise ValueError(f"warm_up must not be negative; got {warm_up}.")
        self.every = every
        self.warm_up = warm_up
        self.gathering: Gathering | None = None
        if gather:
            self.gathering = Gathering(2 if gather is True else gather)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @property
    def vote_number(self) -> int:
        """The number of the vote that is due next, from 1."""
        steps = int(self.steps)
        if steps < self.warm_up:
            return steps + 1
        return self.warm_up + (steps - self.warm_up) // self.every + 1

    @property
    def is_due(self) -> bool:
        """Whether the next step is measured."""
        steps = int(self.steps)
        return steps < self.warm_up or (steps - self.warm_up + 1) % self.every == 0

    @final
    def measure(
        self, model: nn.Module, batch: Mapping[str, Tree], *, losses: Losses, optimizer: Optimizer
    ) -> Measurement | None:
        """Count a step; measure if a measurement is due, else return `None`."""
        finding = self.find(model, batch, losses=losses, optimizer=optimizer)
        if finding is None:
            return None
        return finding.measurement

    @final
    def find(
        self,
        model: nn.Module,
        batch: Mapping[str, Tree],
        *,
        losses: Losses,
        optimizer: Optimizer,
        held_out: Mapping[str, Tree] | None = None,
    ) -> Finding | None:
        """Count a step; if a measurement is due, return it with what the outer step can use.

        Args:
            model: the live model.
            batch: each domain's samples.
            losses: the live losses.
            optimizer: the one that will step the model.
            held_out: samples to judge by, for a probe that judges; default: part of the batch.
        """
        if held_out is not None and self.gathering is not None:
            raise ValueError("with held-out samples nothing need be gathered: use a probe without gather.")
        if self.gathering is not None:
            self.gathering.add(batch)
        if not self.is_due:
            self.steps += 1
            return None
        if self.gathering is not None:
            batch = self.gathering.take()
        if held_out is None:
            result = self._measure(model, batch, losses=losses, optimizer=optimizer)
        else:
            result = self._measure_held_out(model, batch, held_out, losses=losses, optimizer=optimizer)
        self.steps += 1
        if isinstance(result, Measurement):
            return Finding(result)
        return replace(result, held_out=held_out is not None)

    def _measure_held_out(
        self,
        model: nn.Module,  # noqa: ARG002
        batch: Mapping[str, Tree],  # noqa: ARG002
        held_out: Mapping[str, Tree],  # noqa: ARG002
        *,
        losses: Losses,  # noqa: ARG002
        optimizer: Optimizer,  # noqa: ARG002
    ) -> Measurement | Finding:
        """The same, judged by held-out samples."""
        raise ValueError(f"{type(self).__name__} judges nothing, and so takes no held-out samples.")

    @abstractmethod
    def _measure(
        self, model: nn.Module, batch: Mapping[str, Tree], *, losses: Losses, optimizer: Optimizer
    ) -> Measurement | Finding:
        """The statistic over the domains; one that cannot be measured on this batch is not present in it.

        A finding says in addition which part of the outer step is done already.
        """
