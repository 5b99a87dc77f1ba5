"""The base class of all weightings."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Self, final

from torch import Tensor, nn

from steelyard.measurement import Measurement, Outcome, Statistic, Update

# The fewest domains that must take part in a measurement. Values that are compared with each other need two.
_FEWEST_DOMAINS = {
    Statistic.NOTHING: 0,
    Statistic.LOSSES: 1,
    Statistic.HYPOTHETICAL_LOSSES: 2,
    Statistic.WORTH: 2,
    Statistic.GRAMIAN: 2,
}


class Weighting(nn.Module, ABC):
    """Turns one statistic over the domains into their weights.

    A subclass names the `statistic` that it needs and has three methods. `_start` registers buffers for everything that
    changes in training. `_update` changes them by a measurement. `weights` computes the weights from them.

    A weighting is a module so that a checkpoint contains its buffers. They follow the module to another device and
    keep their precision when the module is cast.
    """

    statistic: ClassVar[Statistic]
    """What a measurement must contain."""
    on_simplex: ClassVar[bool] = True
    """Whether the weights sum to 1. Weights that do not sum to 1 scale the step as well."""

    def __init__(self) -> None:
        super().__init__()
        self._domains: int | None = None  # until `start`
        self._names: tuple[str, ...] | None = None  # of the domains, where `start` got them

    @property
    def domains(self) -> int:
        """The number of domains."""
        if self._domains is None:
            raise RuntimeError(f"{type(self).__name__} has not begun: a balancer starts it, or start(domains) does.")
        return self._domains

    @final
    def start(self, domains: int | Sequence[str]) -> None:
        """Begin with domains of these names, or with this many. The balancer that owns the weighting calls this once.

        Only settings by name, as of `Fixed({"a": 0.2, "b": 0.8})`, need the names.
        """
        if self._domains is not None:
            raise ValueError(f"{type(self).__name__} already serves a balancer; make a new one for each balancer.")
        if isinstance(domains, Sequence):
            self._names = tuple(domains)
            domains = len(domains)
        if domains < 1:
            raise ValueError(f"domains must be at least 1; got {domains}.")
        self._start(domains)
        self._domains = domains

    @final
    def observe(self, measurement: Measurement) -> Update:
        """Update the weights by a measurement; one that is not finite or has too few domains changes nothing."""
        if len(measurement.taking_part) < _FEWEST_DOMAINS[self.statistic]:
            return Update(Outcome.TOO_FEW)
        if not measurement.is_finite:
            return Update(Outcome.NOT_FINITE)
        return self._update(measurement)

    @abstractmethod
    def weights(self) -> tuple[float, ...]:
        """The current weights, one per domain. None is negative and they sum to 1, unless `on_simplex` is false."""

    @abstractmethod
    def _start(self, domains: int) -> None:
        """Check that the settings fit this many domains and register buffers. `_names` has their names, if given."""

    @abstractmethod
    def _update(self, measurement: Measurement) -> Update:
        """Change the buffers by a measurement, which is finite and has enough domains."""

    @final
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move buffers to another device, but never to another precision: `half()` would round the weights."""
        super()._apply(lambda tensor: tensor.to(fn(tensor).device), recurse)  # type: ignore[no-untyped-call]
        return self
