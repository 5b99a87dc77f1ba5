"""The Dirichlet posterior over the weights."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class DirichletPosterior:
    """The weights' distribution given the votes: a Dirichlet distribution over the simplex.

    Attributes:
        concentration: α_d + N_d for each domain: its prior and its votes in the window.

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
        """For each domain the equal-tailed interval that contains its weight with this probability."""
        if not 0 < mass < 1:
            raise ValueError(f"mass must lie between 0 and 1; got {mass}.")
        total = sum(self.concentration)
        tail = (1 - mass) / 2
        intervals = []
        for alpha in self.concentration:
            rest = total - alpha
            if rest == 0:  # the only domain
                intervals.append((1.0, 1.0))
            else:  # one weight of a Dirichlet distribution follows Beta(α_d, Σα − α_d)
                intervals.append((_beta_quantile(tail, alpha, rest), _beta_quantile(1 - tail, alpha, rest)))
        return tuple(intervals)


def _beta_quantile(probability: float, a: float, b: float) -> float:
    """The value below which a Beta(a, b) variable falls with this probability, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):  # to 2⁻⁶⁰
        middle = (low + high) / 2
        if _beta_cumulative(middle, a, b) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _beta_cumulative(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), for 0 < x < 1."""
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly: I_x(a, b) = 1 − I_{1−x}(b, a)
        return 1 - _beta_cumulative(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / (a * _beta_fraction(x, a, b))


def _beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction 1 + d₁/(1 + d₂/(1 + …)) of I_x(a, b), from the inside out (DLMF 8.17.22).

    It needs O(√max(a, b)) terms where x is below the mean.
    """
    terms = 32 + 8 * math.isqrt(int(max(a, b)) + 1)
    value = 1.0
    for m in range(terms, 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        value = 1 + even / (1 + odd / value)
    return 1 - (a + b) * x / (a + 1) / value
