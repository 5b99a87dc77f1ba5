"""The Dirichlet posterior over the weights."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class DirichletPosterior:
    """What the votes say of the weights: a Dirichlet distribution over the simplex.

    Attributes:
        concentration: α_d + N_d for each domain: its prior plus its votes in the window.

    >>> posterior = DirichletPosterior((7.0, 5.0))
    >>> posterior.mode
    (0.6, 0.4)
    >>> [round(edge, 3) for edge in posterior.interval(0.95)[0]]
    [0.308, 0.833]
    """

    concentration: tuple[float, ...]

    @property
    def mode(self) -> tuple[float, ...]:
        """The most probable weights, (α_d + N_d − 1) / (Σα + n − K): the maximum a posteriori estimate."""
        total = sum(self.concentration) - len(self.concentration)
        return tuple((alpha - 1) / total for alpha in self.concentration)

    @property
    def mean(self) -> tuple[float, ...]:
        """The expected weights, (α_d + N_d) / (Σα + n)."""
        total = sum(self.concentration)
        return tuple(alpha / total for alpha in self.concentration)

    def interval(self, mass: float = 0.95) -> tuple[tuple[float, float], ...]:
        """For each domain the equal-tailed interval that holds its weight with this probability."""
        if not 0 < mass < 1:
            raise ValueError(f"mass must lie between 0 and 1; got {mass}.")
        total, tail = sum(self.concentration), (1 - mass) / 2
        return tuple(
            (_beta_quantile(tail, alpha, total - alpha), _beta_quantile(1 - tail, alpha, total - alpha))
            if total > alpha
            else (1.0, 1.0)
            for alpha in self.concentration
        )


def _beta_quantile(probability: float, a: float, b: float) -> float:
    """Where the Beta(a, b) distribution function reaches the probability, by bisection to the last bit but a few."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _beta_cumulative(middle, a, b) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _beta_cumulative(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), for 0 < x < 1."""
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_cumulative(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / (a * _beta_fraction(x, a, b))


def _beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction 1 + d₁/(1 + d₂/(1 + …)) of I_x(a, b), from the inside out (DLMF 8.17.22).

    It needs O(√max(a, b)) terms where x is on the near side of the mean.
    """
    terms = 32 + 8 * math.isqrt(int(max(a, b)) + 1)
    value = 1.0
    for m in range(terms, 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        value = 1 + even / (1 + odd / value)
    return 1 - (a + b) * x / (a + 1) / value
