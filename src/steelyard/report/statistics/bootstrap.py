"""What the mean difference might have been with other subjects and other seeds."""

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
    """A mean difference and how sure it is.

    Args:
        value: The estimate; NaN if there is nothing to estimate from.
        low: The confidence interval begins here; NaN where there are too few subjects or runs to tell.
        high: And ends here.
        p: Two-sided, of a true difference of zero; below 1 − level exactly when the interval leaves out zero.
    """

    value: float
    low: float
    high: float
    p: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Design:
    """Who was tested when, which resampling must respect.

    Args:
        fold_of_unit: The fold of each unit (a test subject in a fold), from 0.
        subject_of_unit: Its subject, from 0.
        seed: Settles the draws.
        draws: How many.
        level: Of confidence intervals.
    """

    fold_of_unit: NDArray[np.int64]
    subject_of_unit: NDArray[np.int64]
    seed: int = 0
    draws: int = DRAWS
    level: float = 0.95


def subject_means(differences: Array, design: Design) -> Array:
    """Return each subject's mean over its runs, of differences by unit and repeat; NaN for one without any."""
    return _by_subject(mean(differences, axis=1), design)


def estimate_mean(differences: Array, design: Design) -> Estimate:
    """Estimate the mean over subjects of paired differences, by unit and repeat.

    Each draw takes subjects with replacement and, in every fold, repeats with replacement. The subjects of a fold were
    tested on the same networks, so a repeat is drawn for all of them together; drawing for each subject apart would
    take one lucky network for as many lucky chances. Deviations of the drawn repeats are stretched by √(R / (R − 1)),
    since R repeats understate their own variance. The interval is the estimate ± t times the standard error over draws,
    stretched by √(S / (S − 1)) for S subjects; t has as many degrees of freedom as subjects or runs leave, the fewer.

    With one subject there is no interval. With one repeat a fold it covers subjects alone.
    """
    by_subject = subject_means(differences, design)
    there = np.isfinite(by_subject)
    if not there.any():
        return Estimate(value=math.nan, low=math.nan, high=math.nan, p=math.nan)
    count = int(there.sum())
    value = float(by_subject[there].mean())
    if count < 2:
        return Estimate(value=value, low=math.nan, high=math.nan, p=math.nan)
    rng = np.random.default_rng(design.seed)
    chosen = rng.multinomial(count, np.full(count, 1 / count), size=design.draws)
    drawn = _redrawn(differences, design, rng)[:, there]
    error = float((chosen * drawn).sum(axis=1).std(ddof=1)) / count * math.sqrt(count / (count - 1))
    freedom = count - 1
    if spare := spare_runs(differences, design):
        freedom = min(freedom, spare)
    return interval(value, error, freedom=freedom, level=design.level)


def spare_runs(differences: Array, design: Design) -> int:
    """Return how many pairs of runs there are beyond one in each fold; with none, chance in training cannot be seen."""
    spare = 0
    for fold in np.unique(design.fold_of_unit):
        runs = int(np.isfinite(differences[design.fold_of_unit == fold]).any(axis=0).sum())
        spare += max(0, runs - 1)
    return spare


def interval(value: float, error: float, *, freedom: int, level: float) -> Estimate:
    """Return the t interval about an estimate, and the p-value that belongs to it."""
    reach = float(stats.t.ppf((1 + level) / 2, freedom)) * error
    p = float(value == 0)  # without any spread there is nothing to doubt
    if error > 0:
        p = float(2 * stats.t.sf(abs(value) / error, freedom))
    return Estimate(value=value, low=value - reach, high=value + reach, p=p)


def _redrawn(differences: Array, design: Design, rng: np.random.Generator) -> Array:
    """Return each subject's mean with the repeats of every fold drawn anew: by draw and subject."""
    by_unit = np.empty((design.draws, len(differences)))
    for fold in np.unique(design.fold_of_unit):
        units = design.fold_of_unit == fold
        runs = np.isfinite(differences[units]).any(axis=0)
        by_unit[:, units] = _redrawn_fold(differences[units][:, runs], design.draws, rng)
    return _by_subject(by_unit, design)


def _by_subject(by_unit: Array, design: Design) -> Array:
    """Return the mean over each subject's units, which are the last axis; NaN for one without any."""
    belongs = design.subject_of_unit[:, None] == np.arange(design.subject_of_unit.max() + 1)
    there = np.isfinite(by_unit)
    count = there.astype(float) @ belongs
    return np.where(count > 0, np.where(there, by_unit, 0.0) @ belongs / np.maximum(count, 1), math.nan)


def _redrawn_fold(differences: Array, draws: int, rng: np.random.Generator) -> Array:
    repeats = differences.shape[1]
    centre = mean(differences, axis=1)
    if repeats < 2:
        return np.broadcast_to(centre, (draws, len(centre)))
    times = rng.multinomial(repeats, np.full(repeats, 1 / repeats), size=draws)
    there = np.isfinite(differences)
    deviations = np.where(there, differences - centre[:, None], 0.0)
    weight = times @ there.T  # a unit may lack a repeat that others of its fold have
    moved = (times @ deviations.T) / np.maximum(weight, 1)
    redrawn: Array = centre + math.sqrt(repeats / (repeats - 1)) * moved
    return redrawn
