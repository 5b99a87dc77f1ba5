"""The one base of all weightings."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Self, final

from torch import Tensor, nn

from steelyard.measurement import Measurement, Outcome, Statistic, Verdict

# How many domains a measurement must have: values that are compared with each other need two.
_FEWEST = {
    Statistic.NOTHING: 0,
    Statistic.LOSSES: 1,
    Statistic.HYPOTHETICAL_LOSSES: 2,
    Statistic.GRAMIAN: 2,
}


class Weighting(nn.Module, ABC):
    """Turns one statistic over the domains into their weights.

    A subclass names the `statistic` it needs, keeps what changes in training in buffers that `_start` registers, and
    answers `weights` and `_update`. It is a module so that a checkpoint carries its buffers; they follow the module to
    another device and keep their precision when the module is cast.
    """

    statistic: ClassVar[Statistic]
    on_simplex: ClassVar[bool] = True
    """Whether the weights sum to 1; those that do not scale the step as well."""

    def __init__(self) -> None:
        super().__init__()
        self._domains: int | None = None

    @property
    def domains(self) -> int:
        """How many domains are weighed."""
        if self._domains is None:
            raise RuntimeError(f"{type(self).__name__} has not begun: a balancer starts it, or start(domains) does.")
        return self._domains

    @final
    def start(self, domains: int) -> None:
        """Begin with this many domains. The balancer that owns the weighting calls this once."""
        if self._domains is not None:
            raise ValueError(f"{type(self).__name__} already serves a balancer; make a new one for each balancer.")
        if domains < 1:
            raise ValueError(f"domains must be at least 1; got {domains}.")
        self._start(domains)
        self._domains = domains

    @final
    def observe(self, measurement: Measurement) -> Verdict:
        """Let a measurement move the weights; one that is not finite or has too few domains never does."""
        if len(measurement.taking_part) < _FEWEST[self.statistic]:
            return Verdict(Outcome.TOO_FEW)
        if not measurement.is_finite:
            return Verdict(Outcome.NOT_FINITE)
        return self._update(measurement)

    @abstractmethod
    def weights(self) -> tuple[float, ...]:
        """The weights now: one per domain; none negative and sum 1, unless the class says otherwise."""

    @abstractmethod
    def _start(self, domains: int) -> None:
        """Check that the settings fit this many domains and register buffers."""

    @abstractmethod
    def _update(self, measurement: Measurement) -> Verdict:
        """Let a finite measurement of enough domains move the weights."""

    @final
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow `to(device)`, but keep the precision that `half()` and its like would take from the weights."""
        super()._apply(lambda tensor: tensor.to(fn(tensor).device), recurse)  # type: ignore[no-untyped-call]
        return self
