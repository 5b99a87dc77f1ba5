"""Does the spread over repeats shrink? GAIN-σ, with an interval and a test."""

import itertools
import math

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from steelyard.report.statistics.bootstrap import Design, Estimate, interval
from steelyard.report.statistics.grid import Array, ScoreGrid, mean

_EXACT_CONTRASTS = 11  # 2¹¹ = 2,048 exchanges: as many as would be drawn


def estimate_spread_gain(grid: ScoreGrid, method: str, baseline: str, *, design: Design) -> Estimate:
    """Estimate GAIN-σ, the decrease in the s.d. over repeats, summed over domains, and test it.

    Only pairs of runs that both methods have in a fold are used; a domain's s.d. is averaged over the folds that test
    it. The p-value is of a permutation test: the R repeats of a fold become R − 1 orthonormal contrasts, which do not
    depend on the fold's mean and are independent if runs are normal, and each is exchanged between the two methods, or
    not, for all domains together; if the two spreads are equal, every exchange is as likely as any other. (Deviations
    from the mean are not independent: to exchange those finds differences where there are none.) The interval is the
    estimate ± t times the standard error of a bootstrap that draws subjects within folds and repeats within folds.
    """
    pair = np.stack([grid.of(method), grid.of(baseline)])
    pair = np.where(np.isfinite(pair).all(axis=0), pair, math.nan)
    folds = [_paired(pair[:, :, grid.fold_of_unit == fold]) for fold in range(grid.folds)]
    folds = [scores for scores in folds if scores.shape[3] > 1]
    if not folds:
        return Estimate(value=math.nan, low=math.nan, high=math.nan, p=math.nan)
    runs = [mean(scores, axis=2) for scores in folds]
    shares = _shares(runs)
    value = sum(float((_lessened(fold) * share).sum()) for fold, share in zip(runs, shares, strict=True))
    rng = np.random.default_rng(design.seed)
    error = float(_redrawn_gains(folds, shares, draws=design.draws, rng=rng).std(ddof=1))
    freedom = sum(fold.shape[2] - 1 for fold in runs)
    found = interval(value, error, freedom=freedom, level=design.level)
    p = _exchange_p(runs, shares, value, rng=rng, draws=design.draws)
    return Estimate(value=value, low=found.low, high=found.high, p=p)


def _paired(scores: Array) -> Array:
    """Return a fold's scores by method, domain, unit and repeat, without repeats that lack any run mean others have."""
    known = np.isfinite(mean(scores, axis=2))
    needed = known.any(axis=(0, 2))
    return scores[..., known[:, needed].all(axis=(0, 1)) & needed.any()]


def _shares(runs: list[Array]) -> Array:
    """Return what a fold counts for a domain, by fold and domain: nothing where it does not test it."""
    tested = np.array([np.isfinite(fold).all(axis=(0, 2)) for fold in runs], dtype=float)
    shares: Array = tested / np.maximum(tested.sum(axis=0), 1)
    return shares


def _lessened(fold: Array) -> Array:
    """Return the baseline's s.d. over repeats less the method's, by domain; 0 for one that was not tested."""
    method, baseline = np.nan_to_num(fold.std(axis=2, ddof=1))
    return np.asarray(baseline - method)


def _redrawn_gains(folds: list[Array], shares: Array, *, draws: int, rng: np.random.Generator) -> Array:
    """Return the gain by draw, with subjects and repeats of every fold drawn anew."""
    gains = np.zeros(draws)
    for scores, share in zip(folds, shares, strict=True):
        subjects, repeats = scores.shape[2:]
        times = rng.multinomial(subjects, np.full(subjects, 1 / subjects), size=draws).astype(float)
        there = np.isfinite(scores).astype(float)
        weight = np.einsum("bs,mdsr->bmdr", times, there)
        sums = np.einsum("bs,mdsr->bmdr", times, np.nan_to_num(scores))
        # A draw may hold only subjects that a run has no score of.
        means = np.where(weight > 0, sums / np.maximum(weight, 1), mean(scores, axis=2))
        drawn = np.take_along_axis(means, rng.integers(repeats, size=(draws, 1, 1, repeats)), axis=3)
        # A draw of R repeats has (R − 1) / R of their variance.
        deviations = drawn.std(axis=3, ddof=1) * math.sqrt(repeats / (repeats - 1))
        gains += np.nan_to_num(deviations[:, 1] - deviations[:, 0]) @ share
    return gains


def _exchange_p(runs: list[Array], shares: Array, observed: float, *, rng: np.random.Generator, draws: int) -> float:
    contrasts = [np.nan_to_num(fold) @ linalg.helmert(fold.shape[2]).T for fold in runs]
    total = sum(fold.shape[2] for fold in contrasts)
    exact = total <= _EXACT_CONTRASTS
    exchanges = _every_exchange(total) if exact else rng.integers(2, size=(draws, total)).astype(bool)
    gains = np.zeros(len(exchanges))
    start = 0
    for fold, share in zip(contrasts, shares, strict=True):
        swap = exchanges[:, None, start : start + fold.shape[2]]
        method, baseline = np.where(swap, fold[1], fold[0]), np.where(swap, fold[0], fold[1])
        # The root mean square of the contrasts is the s.d. of the runs they are made of.
        method, baseline = (np.sqrt(np.square(one).mean(axis=2)) for one in (method, baseline))
        gains += (baseline - method) @ share
        start += fold.shape[2]
    as_far = int((np.abs(gains) >= abs(observed) - 1e-12).sum())
    return as_far / len(exchanges) if exact else (as_far + 1) / (draws + 1)


def _every_exchange(pairs: int) -> NDArray[np.bool_]:
    return np.array(list(itertools.product((False, True), repeat=pairs)))
