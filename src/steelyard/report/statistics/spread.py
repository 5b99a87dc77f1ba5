"""GAIN-σ, the decrease in spread over repeats, with an interval and a test."""

import itertools
import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from steelyard.report.statistics.bootstrap import UNKNOWN, Design, Estimate, interval
from steelyard.report.statistics.grid import Array, ScoreGrid, mean

_EXACT_CONTRASTS = 11  # 2¹¹ = 2,048 exchanges: as many as would be drawn


def estimate_spread_gain(grid: ScoreGrid, method: str, baseline: str, *, design: Design) -> Estimate:
    """Estimate GAIN-σ, the decrease in the s.d. over repeats, summed over domains, and test it.

    Only pairs of runs that both methods have in a fold are used. A domain's s.d. is averaged over the folds that test
    it.

    The p-value is that of a permutation test. The R repeats of a fold become R − 1 orthonormal contrasts. These do not
    depend on the fold's mean, and they are independent if runs are normally distributed. Each contrast is exchanged
    between the two methods or not, for all domains together. If the two spreads are equal, all exchanges are equally
    likely. Deviations from the mean are not independent: exchanging those would report differences that do not exist.

    The interval is the estimate ± t times the standard error of a bootstrap. The bootstrap draws subjects and repeats
    within folds.
    """
    pair = np.stack([grid.of(method), grid.of(baseline)])
    pair = np.where(np.isfinite(pair).all(axis=0), pair, math.nan)
    folds = []
    for fold in range(grid.folds):
        scores = _paired(pair[:, :, grid.fold_of_case == fold])
        if scores.shape[3] > 1:
            folds.append(scores)
    if not folds:
        return UNKNOWN
    runs = [mean(scores, axis=2) for scores in folds]
    shares = _shares(runs)
    value = 0.0
    for run_means, share in zip(runs, shares, strict=True):
        value += float((_decrease(run_means) * share).sum())
    rng = np.random.default_rng(design.seed)
    error = float(_redrawn_gains(folds, shares, draws=design.draws, rng=rng).std(ddof=1))
    freedom = sum(run_means.shape[2] - 1 for run_means in runs)
    estimate = interval(value, error, freedom=freedom, level=design.level)
    return replace(estimate, p=_exchange_p(runs, shares, value, rng=rng, draws=design.draws))


def _paired(scores: Array) -> Array:
    """Return a fold's scores by method, domain, case and repeat, without repeats that lack any run mean others have."""
    defined = np.isfinite(mean(scores, axis=2))  # by method, domain and repeat
    tested = defined.any(axis=(0, 2))  # by domain
    return scores[..., defined[:, tested].all(axis=(0, 1)) & tested.any()]


def _shares(runs: list[Array]) -> Array:
    """Return what a fold counts for a domain, by fold and domain: nothing where it does not test it."""
    tested = np.array([np.isfinite(fold).all(axis=(0, 2)) for fold in runs], dtype=float)
    shares: Array = tested / np.maximum(tested.sum(axis=0), 1)
    return shares


def _decrease(run_means: Array) -> Array:
    """Return the baseline's s.d. over repeats less the method's, by domain; 0 for one that was not tested."""
    method, baseline = np.nan_to_num(run_means.std(axis=2, ddof=1))
    return np.asarray(baseline - method)


def _redrawn_gains(folds: list[Array], shares: Array, *, draws: int, rng: np.random.Generator) -> Array:
    """Return the gain by draw, with subjects and repeats of every fold drawn anew."""
    gains = np.zeros(draws)
    for scores, share in zip(folds, shares, strict=True):
        subjects, repeats = scores.shape[2:]
        times = rng.multinomial(subjects, np.full(subjects, 1 / subjects), size=draws).astype(float)
        # Axes: b draw, s subject, m method, d domain, r repeat.
        weight = np.einsum("bs,mdsr->bmdr", times, np.isfinite(scores).astype(float))
        sums = np.einsum("bs,mdsr->bmdr", times, np.nan_to_num(scores))
        # A draw may hold only subjects that a run has no score of.
        means = np.where(weight > 0, sums / np.maximum(weight, 1), mean(scores, axis=2))
        drawn = np.take_along_axis(means, rng.integers(repeats, size=(draws, 1, 1, repeats)), axis=3)
        # A draw of R repeats has (R − 1) / R of their variance.
        deviations = drawn.std(axis=3, ddof=1) * math.sqrt(repeats / (repeats - 1))
        gains += np.nan_to_num(deviations[:, 1] - deviations[:, 0]) @ share
    return gains


def _exchange_p(runs: list[Array], shares: Array, observed: float, *, rng: np.random.Generator, draws: int) -> float:
    """Return the p-value of the permutation test: how often an exchange gives a gain as far from zero."""
    contrasts = [np.nan_to_num(run_means) @ linalg.helmert(run_means.shape[2]).T for run_means in runs]
    total = sum(fold.shape[2] for fold in contrasts)
    exact = total <= _EXACT_CONTRASTS
    exchanges = _every_exchange(total) if exact else _drawn_exchanges(total, draws, rng)
    gains = np.zeros(len(exchanges))
    start = 0
    for fold, share in zip(contrasts, shares, strict=True):
        swap = exchanges[:, None, start : start + fold.shape[2]]
        method = _root_mean_square(np.where(swap, fold[1], fold[0]))
        baseline = _root_mean_square(np.where(swap, fold[0], fold[1]))
        gains += (baseline - method) @ share
        start += fold.shape[2]
    extreme = int((np.abs(gains) >= abs(observed) - 1e-12).sum())
    if exact:
        return extreme / len(exchanges)
    return (extreme + 1) / (draws + 1)


def _root_mean_square(contrasts: Array) -> Array:
    """Return the s.d. of the runs that orthonormal contrasts are made of."""
    roots: Array = np.sqrt(np.square(contrasts).mean(axis=2))
    return roots


def _drawn_exchanges(pairs: int, draws: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    return rng.integers(2, size=(draws, pairs)).astype(bool)


def _every_exchange(pairs: int) -> NDArray[np.bool_]:
    return np.array(list(itertools.product((False, True), repeat=pairs)))
