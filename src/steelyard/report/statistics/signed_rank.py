"""Wilcoxon's signed-rank test, exact also with ties, its effect size, and Holm's correction."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from steelyard.report.statistics.grid import Array

_EXACT = 300  # more subjects than this, and the normal approximation is as good
_NOISE = 12  # decimals; differences below are rounding errors of the same number


@dataclass(frozen=True, kw_only=True)
class SignedRank:
    """The result of a signed-rank test.

    Args:
        p: Two-sided; 1 if no difference is other than zero.
        used: How many differences are not zero; zeros say nothing about the direction and are dropped.
        rank_biserial: (W+ − W−) / (W+ + W−): 1 if every difference is positive, −1 if every one is negative.
    """

    p: float
    used: int
    rank_biserial: float


def signed_rank(differences: Array) -> SignedRank:
    """Test whether differences are symmetric about zero.

    The p-value is exact for the ranks, ties included: every choice of signs is equally likely. (scipy's exact
    distribution is valid without ties only.)

    >>> signed_rank(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])).p
    0.03125
    """
    rounded = np.round(differences[np.isfinite(differences)], _NOISE)
    used = rounded[rounded != 0]
    if used.size == 0:
        return SignedRank(p=1.0, used=0, rank_biserial=0.0)
    ranks = stats.rankdata(np.abs(used))
    positive, everything = float(ranks[used > 0].sum()), float(ranks.sum())
    if used.size <= _EXACT:
        p = _exact(np.rint(2 * ranks).astype(np.int64), round(2 * positive))
    else:
        p = float(stats.wilcoxon(used, method="approx").pvalue)
    return SignedRank(p=p, used=int(used.size), rank_biserial=(2 * positive - everything) / everything)


def smallest_p(subjects: int) -> float:
    """Return the smallest two-sided p that a signed-rank test of so many subjects can give.

    >>> smallest_p(5)
    0.0625
    """
    return min(1.0, math.ldexp(1.0, 1 - subjects))


def cohens_dz(differences: Array) -> float:
    """Return the mean of paired differences in units of their s.d.; NaN where there is no spread.

    >>> round(cohens_dz(np.array([1.0, 2.0, 3.0])), 12)
    2.0
    """
    rounded = np.round(differences[np.isfinite(differences)], _NOISE)
    if rounded.size < 2:
        return math.nan
    deviation = float(rounded.std(ddof=1))
    if deviation == 0:
        return math.nan
    return float(rounded.mean()) / deviation


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's step-down method for their number.

    >>> holm([0.25, 0.125, 0.01])
    [0.25, 0.25, 0.03]
    """
    corrected = [1.0] * len(p_values)
    largest = 0.0
    ascending = sorted(range(len(p_values)), key=lambda position: p_values[position])
    for rank, position in enumerate(ascending):
        # The smallest is multiplied by the number of tests, the next by one less; none may be below its predecessor.
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[position]))
        corrected[position] = largest
    return corrected


def _exact(doubled: np.ndarray[tuple[int, ...], np.dtype[np.int64]], observed: int) -> float:
    """Return the two-sided p of the sum of positive ranks; ranks are doubled, so that halves are whole numbers."""
    total = int(doubled.sum())
    chances = np.zeros(total + 1)
    chances[0] = 1.0
    for rank in doubled:
        shifted = np.zeros_like(chances)
        shifted[rank:] = chances[: total + 1 - rank]
        chances = (chances + shifted) / 2
    below, above = float(chances[: observed + 1].sum()), float(chances[observed:].sum())
    return min(1.0, 2 * min(below, above))
