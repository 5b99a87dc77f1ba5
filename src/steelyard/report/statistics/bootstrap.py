"""Bootstrap intervals: how the mean difference varies over subjects and seeds."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from steelyard.report.statistics.grid import Array, mean

DRAWS = 2000
"""How often the bootstrap resamples; its standard error is then within about 3 % of what more draws would give."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean difference and its confidence interval.

    Args:
        value: The estimate; NaN if there is nothing to estimate from.
        low: The lower end of the confidence interval; NaN where there are too few subjects or runs.
        high: Its upper end.
        p: Two-sided, of a true difference of zero; below 1 − level exactly when the interval leaves out zero.
    """

    value: float
    low: float
    high: float
    p: float


UNKNOWN = Estimate(value=math.nan, low=math.nan, high=math.nan, p=math.nan)
"""The estimate where there is nothing to estimate from."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Design:
    """Which subject was tested in which fold; resampling follows it.

    Args:
        fold_of_case: The fold of each case (a test subject in a fold), from 0.
        subject_of_case: Its subject, from 0.
        seed: Settles the draws.
        draws: How many.
        level: Of confidence intervals.
    """

    fold_of_case: NDArray[np.int64]
    subject_of_case: NDArray[np.int64]
    seed: int = 0
    draws: int = DRAWS
    level: float = 0.95


def subject_means(differences: Array, design: Design) -> Array:
    """Return each subject's mean over its runs, of differences by case and repeat; NaN for one without any."""
    return _by_subject(mean(differences, axis=1), design)


def estimate_mean(differences: Array, design: Design) -> Estimate:
    """Estimate the mean over subjects of paired differences, by case and repeat.

    Each draw takes subjects with replacement and, in every fold, repeats with replacement. The subjects of a fold were
    tested on the same networks, so a repeat is drawn for all of them together; drawing for each subject apart would
    count one lucky network as many independent ones. Deviations of the drawn repeats are stretched by √(R / (R − 1)),
    since R repeats understate their own variance. The interval is the estimate ± t times the standard error over draws,
    stretched by √(S / (S − 1)) for S subjects; t has as many degrees of freedom as subjects or runs leave, the fewer.

    With one subject there is no interval. With one repeat a fold it covers subjects alone.
    """
    by_subject = subject_means(differences, design)
    tested = np.isfinite(by_subject)
    if not tested.any():
        return UNKNOWN
    count = int(tested.sum())
    value = float(by_subject[tested].mean())
    if count < 2:
        return Estimate(value=value, low=math.nan, high=math.nan, p=math.nan)
    rng = np.random.default_rng(design.seed)
    times_drawn = rng.multinomial(count, np.full(count, 1 / count), size=design.draws)
    means = _redrawn(differences, design, rng)[:, tested]
    error = float((times_drawn * means).sum(axis=1).std(ddof=1)) / count * math.sqrt(count / (count - 1))
    freedom = count - 1
    repeats = extra_repeats(differences, design)
    if repeats > 0:
        freedom = min(freedom, repeats)
    return interval(value, error, freedom=freedom, level=design.level)


def extra_repeats(differences: Array, design: Design) -> int:
    """Return how many pairs of runs there are beyond one in each fold; with none, run-to-run variation is unknown."""
    extra = 0
    for fold in np.unique(design.fold_of_case):
        runs = int(np.isfinite(differences[design.fold_of_case == fold]).any(axis=0).sum())
        extra += max(0, runs - 1)
    return extra


def interval(value: float, error: float, *, freedom: int, level: float) -> Estimate:
    """Return an estimate with its t interval and p-value."""
    reach = float(stats.t.ppf((1 + level) / 2, freedom)) * error
    p = float(value == 0)  # without any spread the sign is certain
    if error > 0:
        p = float(2 * stats.t.sf(abs(value) / error, freedom))
    return Estimate(value=value, low=value - reach, high=value + reach, p=p)


def _redrawn(differences: Array, design: Design, rng: np.random.Generator) -> Array:
    """Return each subject's mean with the repeats of every fold drawn anew: by draw and subject."""
    by_case = np.empty((design.draws, len(differences)))
    for fold in np.unique(design.fold_of_case):
        cases = design.fold_of_case == fold
        runs = np.isfinite(differences[cases]).any(axis=0)
        by_case[:, cases] = _redrawn_fold(differences[cases][:, runs], design.draws, rng)
    return _by_subject(by_case, design)


def _by_subject(by_case: Array, design: Design) -> Array:
    """Return the mean over each subject's cases, which are the last axis; NaN for one without any."""
    belongs = design.subject_of_case[:, None] == np.arange(design.subject_of_case.max() + 1)  # by case and subject
    defined = np.isfinite(by_case)
    count = defined.astype(float) @ belongs
    total = np.where(defined, by_case, 0.0) @ belongs
    return np.where(count > 0, total / np.maximum(count, 1), math.nan)


def _redrawn_fold(differences: Array, draws: int, rng: np.random.Generator) -> Array:
    repeats = differences.shape[1]
    centre = mean(differences, axis=1)
    if repeats < 2:
        return np.broadcast_to(centre, (draws, len(centre)))
    times = rng.multinomial(repeats, np.full(repeats, 1 / repeats), size=draws)
    defined = np.isfinite(differences)
    deviations = np.where(defined, differences - centre[:, None], 0.0)
    weight = times @ defined.T  # a case may lack a repeat that others of its fold have
    moved = (times @ deviations.T) / np.maximum(weight, 1)
    redrawn: Array = centre + math.sqrt(repeats / (repeats - 1)) * moved
    return redrawn
