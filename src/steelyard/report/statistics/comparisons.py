"""Paired comparisons of methods: the difference, its interval, and p-values corrected for their number."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import UserError
from steelyard.imaging.runs.method import Method
from steelyard.report.data.metrics import LOWER_IS_BETTER
from steelyard.report.data.names import BASELINE
from steelyard.report.data.results import Results, Setting
from steelyard.report.statistics.bootstrap import DRAWS, Design, Estimate, estimate_mean, extra_repeats, subject_means
from steelyard.report.statistics.grid import ScoreGrid, mean, score_grid
from steelyard.report.statistics.signed_rank import SignedRank, cohens_dz, holm, signed_rank
from steelyard.report.statistics.spread import estimate_spread_gain

ComparisonOutcome = Literal["better", "worse", "no evidence either way", "cannot be told"]
ALPHA = 0.05
"""What a corrected p-value must stay below."""

BEST_FIXED = "the best fixed weighting"
"""Stands for the fixed weighting that did best on the other folds' subjects."""


@dataclass(frozen=True, kw_only=True)
class ComparisonSettings:
    """How comparisons are made.

    Args:
        metric: What is compared.
        baseline: The method that the others are compared with; `equal` by default.
        seed: Of the bootstrap's draws.
        draws: How many draws.
    """

    metric: str = "dsc"
    baseline: str | None = None
    seed: int = 0
    draws: int = DRAWS


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One method against another, on the same folds, repeats and subjects.

    Args:
        setting: The network and the data it had.
        metric: What is compared.
        method: The one.
        against: The other.
        subjects: How many subjects both were tested on.
        folds: In how many folds.
        pairs: On how many pairs of runs.
        total: The difference, summed over domains.
        domains: The difference in each domain.
        ranks: The signed-rank test of the subjects' mean differences, summed over domains.
        dz: Their mean in units of their s.d.
        repeated: Whether any fold has two pairs of runs; otherwise run-to-run variation is unknown.
        spread: The decrease in s.d. over repeats, summed over domains (GAIN-σ).
        family: How many methods the corrections are for.
        p: The larger of the signed-rank test's p and the bootstrap's: a difference must hold over subjects *and* runs.
        corrected: `p` after Holm's correction.
        spread_corrected: The p of `spread` after Holm's correction.
    """

    setting: Setting
    metric: str
    method: str
    against: str
    subjects: int
    folds: int
    pairs: int
    total: Estimate
    domains: Mapping[str, Estimate]
    ranks: SignedRank
    dz: float
    repeated: bool
    spread: Estimate | None = None
    family: int = 1
    p: float = math.nan
    corrected: float = math.nan
    spread_corrected: float = math.nan

    @property
    def outcome(self) -> ComparisonOutcome:
        """What the difference shows."""
        if math.isnan(self.p) or not self.repeated:
            return "cannot be told"
        if self.corrected >= ALPHA or self.total.value * self.ranks.rank_biserial <= 0:
            return "no evidence either way"
        lower_is_better = self.metric in LOWER_IS_BETTER
        if (self.total.value < 0) == lower_is_better:
            return "better"
        return "worse"

    @property
    def spread_outcome(self) -> ComparisonOutcome:
        """What the difference in spread shows; `better` is steadier."""
        if self.spread is None or math.isnan(self.spread.p):
            return "cannot be told"
        if self.spread_corrected >= ALPHA:
            return "no evidence either way"
        if self.spread.value > 0:
            return "better"
        return "worse"


def compare_with_baseline(results: Results, settings: ComparisonSettings | None = None) -> tuple[Comparison, ...]:
    """Compare every method that trains on all domains with the baseline, in every setting that has one.

    p-values are corrected for the number of methods within a setting, those of the spread apart.

    Raises:
        UserError: No setting has the baseline, or the metric is infinite somewhere.
    """
    settings = settings or ComparisonSettings()
    comparisons: list[Comparison] = []
    has_baseline = False
    for setting in results.settings:
        baseline = results.baseline(setting, settings.baseline)
        if baseline is None:
            continue
        has_baseline = True
        grid = _finite_grid(results, setting, settings.metric)
        family = []
        for name in grid.methods:
            if name != baseline and not Method.parse_or_unknown(name).is_single:
                family.append(_compare(grid, name, baseline, settings=settings))
        comparisons += _corrected(family)
    if not has_baseline:
        raise UserError(f"{results.source}: there is no run of the baseline {settings.baseline or BASELINE}.")
    return tuple(comparisons)


def compare_with_best_fixed(results: Results, settings: ComparisonSettings | None = None) -> tuple[Comparison, ...]:
    """Compare every method that learns its weights with the best fixed weighting, in settings that have several.

    Which one is best is chosen for each fold by the subjects of all other folds (with one fold: for each subject by all
    other subjects). A choice by the subjects that are then compared would favour the fixed weightings by chance.
    """
    settings = settings or ComparisonSettings()
    comparisons: list[Comparison] = []
    for setting in results.settings:
        grid = _finite_grid(results, setting, settings.metric)
        fixed = [name for name in grid.methods if Method.parse_or_unknown(name).is_fixed]
        if len(fixed) > 1:
            extended = _with_best_fixed(grid, fixed)
            learned = [name for name in grid.methods if Method.parse_or_unknown(name).is_learned]
            family = [_compare(extended, name, BEST_FIXED, settings=settings) for name in learned]
            comparisons += _corrected(family)
    return tuple(comparisons)


def _finite_grid(results: Results, setting: Setting, metric: str) -> ScoreGrid:
    grid = score_grid(results, setting, metric)
    if infinite := int(np.isinf(grid.values).sum()):
        raise UserError(f"{results.source}: {metric} is infinite in {infinite} rows, so its means compare nothing.")
    return grid


def _with_best_fixed(grid: ScoreGrid, fixed: Sequence[str]) -> ScoreGrid:
    """Return the grid with one method more: for each case, the fixed weighting that did best on others."""
    groups = grid.subject_of_case
    if grid.folds > 1:
        groups = grid.fold_of_case
    best_scores = np.full(grid.values.shape[1:], math.nan)
    for group in np.unique(groups):
        others = groups != group
        totals = [_total(grid, name, among=others) for name in fixed]
        if not all(map(math.isnan, totals)):
            best = fixed[int(np.nanargmax(totals))]
            best_scores[:, ~others] = grid.of(best)[:, ~others]
    values = np.concatenate([grid.values, best_scores[None]])
    return replace(grid, methods=(*grid.methods, BEST_FIXED), values=values)


def _total(grid: ScoreGrid, method: str, *, among: NDArray[np.bool_]) -> float:
    """Return a method's mean over some cases, summed over domains; higher is better."""
    summed = grid.summed(grid.of(method), among=among)
    total = float(mean(mean(summed, axis=1), axis=0))
    if grid.metric in LOWER_IS_BETTER:
        return -total
    return total


def _compare(grid: ScoreGrid, method: str, against: str, *, settings: ComparisonSettings) -> Comparison:
    design = Design(
        fold_of_case=grid.fold_of_case,
        subject_of_case=grid.subject_of_case,
        seed=settings.seed,
        draws=settings.draws,
    )
    by_domain = grid.of(method) - grid.of(against)
    summed = grid.summed(by_domain)
    by_subject = subject_means(summed, design)
    total, ranks = estimate_mean(summed, design), signed_rank(by_subject)
    cases, repeats = np.nonzero(np.isfinite(summed))
    runs = set(zip(grid.fold_of_case[cases].tolist(), repeats.tolist(), strict=True))
    p = math.nan
    if not math.isnan(total.p):
        p = max(total.p, ranks.p)
    spread = None
    if against != BEST_FIXED:
        spread = estimate_spread_gain(grid, method, against, design=design)
    return Comparison(
        setting=grid.setting,
        metric=grid.metric,
        method=method,
        against=against,
        subjects=int(np.isfinite(by_subject).sum()),
        folds=len({fold for fold, _ in runs}),
        pairs=len(runs),
        total=total,
        domains={name: estimate_mean(by_domain[row], design) for row, name in enumerate(grid.domains)},
        ranks=ranks,
        dz=cohens_dz(by_subject),
        repeated=extra_repeats(summed, design) > 0,
        spread=spread,
        p=p,
    )


def _corrected(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons with p-values corrected for their number; one without a p-value counts as a test."""
    p_values, spread_p_values = [], []
    for comparison in comparisons:
        p_values.append(_p_or_one(comparison.p))
        spread_p_values.append(_p_or_one(comparison.spread.p) if comparison.spread else 1.0)
    corrected = []
    for comparison, p, spread_p in zip(comparisons, holm(p_values), holm(spread_p_values), strict=True):
        if comparison.spread is None:
            spread_p = math.nan
        corrected.append(replace(comparison, family=len(comparisons), corrected=p, spread_corrected=spread_p))
    return corrected


def _p_or_one(p: float) -> float:
    if math.isnan(p):
        return 1.0
    return p
