"""Weights that never change."""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, final

from steelyard.measurement import Measurement, Outcome, Statistic, Update
from steelyard.weighting.weighting import Weighting


@final
class Fixed(Weighting):
    """The same weights throughout training.

    Args:
        weights: one per domain, none negative, sum 1; in the order of the domains, or a mapping of their names to
            weights. By default all are equal.

    >>> fixed = Fixed([0.1, 0.9])
    >>> fixed.start(domains=2)
    >>> fixed.weights()
    (0.1, 0.9)
    >>> by_name = Fixed({"t1": 0.9, "flair": 0.1})
    >>> by_name.start(domains=("flair", "t1"))
    >>> by_name.weights()
    (0.1, 0.9)
    """

    statistic: ClassVar[Statistic] = Statistic.NOTHING

    def __init__(self, weights: Mapping[str, float] | Sequence[float] | None = None) -> None:
        super().__init__()
        self._by_name: dict[str, float] | None = None
        # `None` for equal weights, whose number `start` tells, and for weights by name until `start` tells the order.
        self._constant: tuple[float, ...] | None = None
        if isinstance(weights, Mapping):
            self._by_name = {name: float(weight) for name, weight in weights.items()}
            _check_on_simplex(tuple(self._by_name.values()))
        elif weights is not None:
            self._constant = tuple(map(float, weights))
            _check_on_simplex(self._constant)

    def weights(self) -> tuple[float, ...]:
        """The weights, which never change."""
        if self._constant is None:
            return (1 / self.domains,) * self.domains
        return self._constant

    def _start(self, domains: int) -> None:
        if self._by_name is not None:
            self._constant = _in_order(self._by_name, self._names)
        if self._constant is not None and len(self._constant) != domains:
            raise ValueError(f"weights must hold one number per domain ({domains}); got {len(self._constant)}.")

    def _update(self, measurement: Measurement) -> Update:  # noqa: ARG002
        return Update(Outcome.FIXED)

    def extra_repr(self) -> str:
        """The weights, for `print(balancer)`."""
        return f"weights={self._constant or self._by_name or 'equal'}"


def _in_order(weights: Mapping[str, float], names: Sequence[str] | None) -> tuple[float, ...]:
    """The weights of the domains with these names."""
    if names is None:
        raise ValueError(
            f"weights by name need the domains' names, and start got only their number: pass the names to start, or "
            f"weights in the domains' order; got {dict(weights)}."
        )
    missing = [name for name in names if name not in weights]
    unknown = [name for name in weights if name not in names]
    if missing or unknown:
        raise ValueError(
            f"weights must name each of the domains {list(names)} and no other; "
            f"missing are {missing}, unknown are {unknown}."
        )
    return tuple(weights[name] for name in names)


def _check_on_simplex(weights: tuple[float, ...]) -> None:
    within_range = all(0 <= weight <= 1 for weight in weights)
    if not within_range or not math.isclose(sum(weights), 1, abs_tol=1e-6):
        raise ValueError(f"weights must not be negative and must sum to 1; got {weights}.")
