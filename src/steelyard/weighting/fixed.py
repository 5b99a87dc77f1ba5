"""Weights that never change."""

import math
from collections.abc import Sequence
from typing import ClassVar, final

from steelyard.measurement import Measurement, Outcome, Statistic, Update
from steelyard.weighting.weighting import Weighting


@final
class Fixed(Weighting):
    """The same weights throughout training.

    Args:
        weights: one per domain, none negative, sum 1; by default all are equal.

    >>> fixed = Fixed([0.1, 0.9])
    >>> fixed.start(domains=2)
    >>> fixed.weights()
    (0.1, 0.9)
    """

    statistic: ClassVar[Statistic] = Statistic.NOTHING

    def __init__(self, weights: Sequence[float] | None = None) -> None:
        super().__init__()
        self._constant: tuple[float, ...] | None = None  # equal weights, whose number `start` tells
        if weights is not None:
            self._constant = tuple(map(float, weights))
            _check_on_simplex(self._constant)

    def weights(self) -> tuple[float, ...]:
        """The weights, which never change."""
        if self._constant is None:
            return (1 / self.domains,) * self.domains
        return self._constant

    def _start(self, domains: int) -> None:
        if self._constant is not None and len(self._constant) != domains:
            raise ValueError(f"weights must hold one number per domain ({domains}); got {len(self._constant)}.")

    def _update(self, measurement: Measurement) -> Update:  # noqa: ARG002
        return Update(Outcome.HELD)

    def extra_repr(self) -> str:
        """The weights, for `print(balancer)`."""
        return f"weights={self._constant or 'equal'}"


def _check_on_simplex(weights: tuple[float, ...]) -> None:
    within_range = all(0 <= weight <= 1 for weight in weights)
    if not within_range or not math.isclose(sum(weights), 1, abs_tol=1e-6):
        raise ValueError(f"weights must not be negative and must sum to 1; got {weights}.")
