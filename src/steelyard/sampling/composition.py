"""How many samples of each domain a batch has."""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import NamedTuple, final


class Composition(NamedTuple):
    """What a batch is made of.

    Attributes:
        counts: n_d, the number of samples of each domain; 0 for a domain that is absent.
        factors: f_d, what the weight of each domain is multiplied by.
    """

    counts: dict[str, int]
    factors: dict[str, float]


@final
class Composer:
    """Composes batches of one size from the shares that domains should have.

    With shares that change, n_d is random with the expectation q_d, and f_d = n_d / q_d. Because the expectation of f_d
    is 1, that of the outer loss's gradient is Σ_d λ_d ∇L_d whatever the shares are.

    Args:
        shares: what part of a batch each domain should have, asked for each batch; not negative.
        size: the number of samples in a batch.
        minimum: of samples of each domain, as far as the batch has room for so many.
        fixed: whether all batches are composed alike; then the factors are 1.
    """

    def __init__(self, shares: Callable[[], Mapping[str, float]], *, size: int, minimum: int, fixed: bool) -> None:
        self.shares = shares
        self.size = size
        self.minimum = minimum
        self.fixed = fixed

    def __call__(self, offset: float) -> Composition:
        """Compose a batch; the offset is a random number from 0 to 1, the same on every rank."""
        shares = self.shares()
        expected = quotas(shares, self.size, minimum=min(self.minimum, self.size // len(shares)))
        if self.fixed:
            counts = nearest(expected)
            for name, count in counts.items():
                if count == 0:
                    raise ValueError(
                        f"a batch of {self.size} samples has none of domain {name!r}: "
                        "raise batch_size, or minimum to at least 1."
                    )
            return Composition(counts, dict.fromkeys(counts, 1.0))
        counts = rounded_at_random(expected, offset)
        factors = {}
        for name, count in counts.items():
            if count:
                factors[name] = count / expected[name]
        return Composition(counts, factors)


def quotas(shares: Mapping[str, float], size: int, *, minimum: int) -> dict[str, float]:
    """q_d = max(minimum, c · share_d), with the c for which they sum to the size of the batch.

    >>> quotas({"a": 0.75, "b": 0.25, "c": 0.0}, 10, minimum=2)
    {'a': 6.0, 'b': 2.0, 'c': 2.0}
    """
    free = dict(shares)  # domains that get more than the minimum
    while free:
        per_share = (size - minimum * (len(shares) - len(free))) / sum(free.values())
        above = {name: share for name, share in free.items() if share * per_share >= minimum}
        if len(above) == len(free):
            break
        free = above
    expected = dict.fromkeys(shares, float(minimum))
    for name, share in free.items():
        expected[name] = share * per_share
    return expected


def rounded_at_random(expected: Mapping[str, float], offset: float) -> dict[str, int]:
    """Whole numbers ⌊q_d⌋ or ⌈q_d⌉ with the expectations q_d and the same sum, for a uniform random offset.

    This is systematic sampling: the quotas lie end to end on a line, and each counts the marks of a ruler in it.

    >>> [rounded_at_random({"a": 2.5, "b": 1.5}, offset) for offset in (0.2, 0.7)]
    [{'a': 2, 'b': 2}, {'a': 3, 'b': 1}]
    """
    ends = [0.0]
    for quota in expected.values():
        ends.append(ends[-1] + quota)
    ends[-1] = round(ends[-1])  # a whole number but for rounding errors
    marks = [math.floor(end + offset) for end in ends]
    return {name: after - before for name, (before, after) in zip(expected, pairwise(marks), strict=True)}


def nearest(expected: Mapping[str, float]) -> dict[str, int]:
    """Whole numbers with the same sum: rounded down, and then up where most was lost.

    >>> nearest({"a": 2.4, "b": 1.6})
    {'a': 2, 'b': 2}
    """
    counts = {name: math.floor(quota) for name, quota in expected.items()}
    by_loss = sorted(expected, key=lambda name: counts[name] - expected[name])
    for name in by_loss[: round(sum(expected.values())) - sum(counts.values())]:
        counts[name] += 1
    return counts
