"""Paired comparisons of methods: how large the difference is, how sure, and after how many looks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from steelyard.errors import UserError
from steelyard.report.data.kinds import LOWER_IS_BETTER, is_fixed, is_learned, is_single
from steelyard.report.data.results import Results, Setting
from steelyard.report.statistics.bootstrap import DRAWS, Design, Estimate, estimate_mean, spare_runs, subject_means
from steelyard.report.statistics.grid import ScoreGrid, mean, score_grid
from steelyard.report.statistics.signed_rank import SignedRank, cohens_dz, holm, signed_rank
from steelyard.report.statistics.spread import estimate_spread_gain

Outcome = Literal["better", "worse", "no evidence either way", "cannot be told"]
ALPHA = 0.05
"""What a corrected p-value must stay below."""

BEST_FIXED = "the best fixed weighting"
"""Stands for the fixed weighting that did best on the other folds' subjects."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How comparisons are made.

    Args:
        metric: What is compared.
        baseline: What the others are held against; F50-T50, or `equal`, if not given.
        seed: Settles the bootstrap's draws.
        draws: How many.
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
        repeated: Whether any fold has two pairs of runs; without, chance in training cannot be seen.
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
    def outcome(self) -> Outcome:
        """What the difference shows."""
        if math.isnan(self.p) or not self.repeated:
            return "cannot be told"
        if self.corrected >= ALPHA or self.total.value * self.ranks.rank_biserial <= 0:
            return "no evidence either way"
        return "better" if (self.total.value < 0) == (self.metric in LOWER_IS_BETTER) else "worse"

    @property
    def spread_outcome(self) -> Outcome:
        """What the difference in spread shows; `better` is steadier."""
        if self.spread is None or math.isnan(self.spread.p):
            return "cannot be told"
        if self.spread_corrected >= ALPHA:
            return "no evidence either way"
        return "better" if self.spread.value > 0 else "worse"


def compare_with_baseline(results: Results, settings: Settings | None = None) -> tuple[Comparison, ...]:
    """Hold every method that trains on all domains against the baseline, in every setting that has one.

    p-values are corrected for the number of methods within a setting, those of the spread apart.

    Raises:
        UserError: No setting has the baseline, or the metric is infinite somewhere.
    """
    how = settings or Settings()
    found: list[Comparison] = []
    for setting in results.settings:
        baseline = results.baseline(setting, how.baseline)
        if baseline is None:
            continue
        grid = _finite_grid(results, setting, how.metric)
        methods = [name for name in grid.methods if name != baseline and not is_single(name)]
        one_family = [_compare(grid, name, baseline, how=how) for name in methods]
        found += _corrected(one_family)
    if not any(results.baseline(setting, how.baseline) for setting in results.settings):
        raise UserError(f"{results.source}: there is no run of the baseline {how.baseline or 'F50-T50 or equal'}.")
    return tuple(found)


def compare_with_best_fixed(results: Results, settings: Settings | None = None) -> tuple[Comparison, ...]:
    """Hold every method that learns its weights against the best fixed weighting, in settings that have several.

    Which one is best is chosen for each fold by the subjects of all other folds (with one fold: for each subject by all
    other subjects). To choose by the subjects that are then compared would favour the fixed weightings, by as much as
    luck divides them.
    """
    how = settings or Settings()
    found: list[Comparison] = []
    for setting in results.settings:
        grid = _finite_grid(results, setting, how.metric)
        fixed = [name for name in grid.methods if is_fixed(name)]
        if len(fixed) > 1:
            best = _with_best_fixed(grid, fixed)
            learned = [name for name in grid.methods if is_learned(name)]
            found += _corrected([_compare(best, name, BEST_FIXED, how=how) for name in learned])
    return tuple(found)


def _finite_grid(results: Results, setting: Setting, metric: str) -> ScoreGrid:
    grid = score_grid(results, setting, metric)
    if infinite := int(np.isinf(grid.values).sum()):
        raise UserError(f"{results.source}: {metric} is infinite in {infinite} rows, so its means compare nothing.")
    return grid


def _with_best_fixed(grid: ScoreGrid, fixed: Sequence[str]) -> ScoreGrid:
    """Return the grid with one method more: for each unit, the fixed weighting that did best on others."""
    groups = grid.fold_of_unit if grid.folds > 1 else grid.subject_of_unit
    sign = -1.0 if grid.metric in LOWER_IS_BETTER else 1.0
    chosen = np.full(grid.values.shape[1:], math.nan)
    for group in np.unique(groups):
        others = groups != group
        totals = [sign * float(mean(mean(grid.summed(grid.of(name), among=others), axis=1), axis=0)) for name in fixed]
        if not all(map(math.isnan, totals)):
            best = fixed[int(np.nanargmax(totals))]
            chosen[:, ~others] = grid.of(best)[:, ~others]
    return replace(grid, methods=(*grid.methods, BEST_FIXED), values=np.concatenate([grid.values, chosen[None]]))


def _compare(grid: ScoreGrid, method: str, against: str, *, how: Settings) -> Comparison:
    design = Design(
        fold_of_unit=grid.fold_of_unit, subject_of_unit=grid.subject_of_unit, seed=how.seed, draws=how.draws
    )
    by_domain = grid.of(method) - grid.of(against)
    summed = grid.summed(by_domain)
    by_subject = subject_means(summed, design)
    total, ranks = estimate_mean(summed, design), signed_rank(by_subject)
    there = np.isfinite(summed)
    runs = {(fold, repeat) for unit, repeat in np.argwhere(there) for fold in [int(grid.fold_of_unit[unit])]}
    return Comparison(
        setting=grid.setting,
        metric=grid.metric,
        method=method,
        against=against,
        subjects=int(np.isfinite(by_subject).sum()),
        folds=len({fold for fold, _ in runs}),
        pairs=len(runs),
        total=total,
        domains={name: estimate_mean(by_domain[at], design) for at, name in enumerate(grid.domains)},
        ranks=ranks,
        dz=cohens_dz(by_subject),
        repeated=spare_runs(summed, design) > 0,
        spread=None if against == BEST_FIXED else estimate_spread_gain(grid, method, against, design=design),
        p=math.nan if math.isnan(total.p) else max(total.p, ranks.p),
    )


def _corrected(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons with p-values corrected for their number; one without a p-value counts as a look."""
    p_values = holm([1.0 if math.isnan(one.p) else one.p for one in comparisons])
    spreads = holm([1.0 if one.spread is None or math.isnan(one.spread.p) else one.spread.p for one in comparisons])
    return [
        replace(one, family=len(comparisons), corrected=p, spread_corrected=spread_p if one.spread else math.nan)
        for one, p, spread_p in zip(comparisons, p_values, spreads, strict=True)
    ]
