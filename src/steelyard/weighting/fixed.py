"""Weights that stay."""

import math
from collections.abc import Sequence
from typing import ClassVar, final

from steelyard.measurement import Measurement, Outcome, Statistic, Verdict
from steelyard.weighting.weighting import Weighting


@final
class Fixed(Weighting):
    """The same weights throughout training; equal ones unless told.

    Args:
        weights: one per domain, none negative, sum 1; `None` weighs all domains alike.

    >>> fixed = Fixed([0.1, 0.9])
    >>> fixed.start(domains=2)
    >>> fixed.weights()
    (0.1, 0.9)
    """

    statistic: ClassVar[Statistic] = Statistic.NOTHING

    def __init__(self, weights: Sequence[float] | None = None) -> None:
        super().__init__()
        given = None if weights is None else tuple(float(weight) for weight in weights)
        if given is not None and (not all(0 <= weight <= 1 for weight in given) or not _sums_to_one(given)):
            raise ValueError(f"weights must not be negative and must sum to 1; got {given}.")
        self._given = given

    def weights(self) -> tuple[float, ...]:
        """The weights, which never change."""
        return self._given or (1 / self.domains,) * self.domains

    def _start(self, domains: int) -> None:
        if self._given is not None and len(self._given) != domains:
            raise ValueError(f"weights must hold one number per domain ({domains}); got {len(self._given)}.")

    def _update(self, measurement: Measurement) -> Verdict:  # noqa: ARG002
        return Verdict(Outcome.HELD)

    def extra_repr(self) -> str:
        """The weights, for `print(balancer)`."""
        return f"weights={self._given or 'equal'}"


def _sums_to_one(weights: Sequence[float]) -> bool:
    return math.isclose(sum(weights), 1, abs_tol=1e-6)
