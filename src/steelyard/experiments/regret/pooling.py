"""What all problems say together.

A *cell* is a problem with a variant: the mean of its gains over optimizers (and numbers of steps). A problem's gain is
the mean of its cells. The pooled gain is the mean over problems with a t interval over problems: each problem counts
the same, and the interval is about problems that were not tried. Wilcoxon's signed-rank test takes the cells, because
the problems are too few for it; cells of one problem are not independent, so its p is a rough guide.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from scipy import stats

from steelyard.experiments.regret.scores import Setting
from steelyard.experiments.regret.statistics import Estimate

_NOISE = 12  # decimals; gains below are rounding errors of zero


@dataclass(frozen=True)
class Pooled:
    """The gain of a method over several problems.

    Args:
        gain: The mean over problems.
        cells: How many problems × variants.
        p: Of the signed-rank test over cells; 1 if no cell differs from zero.
    """

    gain: Estimate
    cells: int
    p: float


def pool_gains(gains: Mapping[Setting, Estimate]) -> dict[str, Pooled]:
    """Return the pooled gain of each method."""
    by_cell: dict[str, dict[tuple[str, str], list[float]]] = {}
    for setting, gain in gains.items():
        cells = by_cell.setdefault(setting.method, {})
        cells.setdefault((setting.problem, setting.variant), []).append(gain.mean)
    return {method: _pool(cells) for method, cells in sorted(by_cell.items())}


def _pool(gains_by_cell: Mapping[tuple[str, str], Sequence[float]]) -> Pooled:
    cells = {cell: fmean(values) for cell, values in gains_by_cell.items()}
    by_problem: dict[str, list[float]] = {}
    for (problem, _), gain in cells.items():
        by_problem.setdefault(problem, []).append(gain)
    problems = [fmean(values) for values in by_problem.values()]
    return Pooled(Estimate.of(problems), len(cells), _signed_rank_p(list(cells.values())))


def _signed_rank_p(differences: Sequence[float]) -> float:
    rounded = np.round(differences, _NOISE)
    nonzero = rounded[rounded != 0]
    if not nonzero.size:
        return 1.0
    return float(stats.wilcoxon(nonzero).pvalue)
