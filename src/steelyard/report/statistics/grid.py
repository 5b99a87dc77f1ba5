"""One metric of one setting as an array, and the means and spreads the authors took of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import UserError
from steelyard.report.data.results import Results, Setting

Array = NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreGrid:
    """A metric by method, domain, case and repeat.

    A case is a test subject in a fold; with folds that share no subject, as in cross-validation, it is the subject.

    Args:
        setting: The network and the data it had.
        metric: Which metric.
        methods: First axis.
        domains: Second axis.
        cases: Third axis: fold and subject.
        repeats: Fourth axis.
        values: The scores; NaN where there is none.
        tested: Which domains a case was tested in, by domain and case; a subject may lack scans of one.
    """

    setting: Setting
    metric: str
    methods: tuple[str, ...]
    domains: tuple[str, ...]
    cases: tuple[tuple[int, str], ...]
    repeats: tuple[int, ...]
    values: Array
    tested: NDArray[np.bool_]

    @cached_property
    def fold_of_case(self) -> NDArray[np.int64]:
        """The fold of each case, as a number from 0."""
        folds, _ = zip(*self.cases, strict=True)
        return np.unique(folds, return_inverse=True)[1]

    @cached_property
    def subject_of_case(self) -> NDArray[np.int64]:
        """The subject of each case, as a number from 0."""
        _, subjects = zip(*self.cases, strict=True)
        return np.unique(subjects, return_inverse=True)[1]

    def of(self, method: str) -> Array:
        """Return a method's scores by domain, case and repeat."""
        scores: Array = self.values[self.methods.index(method)]
        return scores

    def summed(self, scores: Array, *, among: NDArray[np.bool_] | None = None) -> Array:
        """Return scores by domain, case and repeat summed over the domains, by case and repeat.

        A case is summed over the domains it was tested in, each multiplied by how many cases there are for one that has
        it, so that the mean over cases is the sum of the domains' means even where nobody was tested in all of them.

        Args:
            scores: By domain, case and repeat.
            among: The cases that count; all if not given. Others are NaN, and so is everything where no case is left
                of some domain.
        """
        complete = np.isfinite(scores) | ~self.tested[:, :, None]
        counted = np.asarray(complete.all(axis=0)).any(axis=1)
        if among is not None:
            counted = counted & among
        cases_of_domain = (self.tested & counted).sum(axis=1)
        if not cases_of_domain.all():
            return np.full(scores.shape[1:], math.nan)
        factor = (counted.sum() / cases_of_domain)[:, None, None]
        total: Array = (np.where(self.tested[:, :, None], scores, 0.0) * factor).sum(axis=0)
        return np.where(np.asarray(counted)[:, None], total, math.nan)

    @cached_property
    def run_means(self) -> Array:
        """The mean over its test subjects of each run: by method, domain, fold and repeat."""
        parts = [mean(self.values[:, :, self.fold_of_case == fold], axis=2) for fold in range(self.folds)]
        return np.stack(parts, axis=2)

    @property
    def folds(self) -> int:
        """How many folds there are."""
        return int(self.fold_of_case.max()) + 1

    @cached_property
    def means(self) -> Array:
        """The mean over folds and repeats: by method and domain. A fold counts the same however many repeats it has."""
        return mean(mean(self.run_means, axis=3), axis=2)

    @cached_property
    def spreads(self) -> Array:
        """The s.d. (n − 1) over the repeats of a fold, averaged over the folds: by method and domain."""
        return mean(spread(self.run_means, axis=3), axis=2)

    def gains(self, baseline: str) -> tuple[Array, Array]:
        """Return GAIN-μ and GAIN-σ by method; NaN where a method lacks a fold that the baseline has, or the reverse."""
        row = self.methods.index(baseline)
        tested = np.isfinite(mean(self.run_means, axis=3))  # by method, domain and fold
        comparable = (tested == tested[row]).all(axis=(1, 2)) & tested[row].any(axis=1).all()
        gain_mean = (self.means - self.means[row]).sum(axis=1)
        gain_spread = (self.spreads[row] - self.spreads).sum(axis=1)
        return np.where(comparable, gain_mean, math.nan), np.where(comparable, gain_spread, math.nan)


def score_grid(results: Results, setting: Setting, metric: str) -> ScoreGrid:
    """Return a metric of a setting as an array.

    Raises:
        UserError: The results do not hold the metric.
    """
    if metric not in results.metrics:
        raise UserError(f"{results.source}: does not hold {metric}; it holds {', '.join(results.metrics)}.")
    rows = results.of(setting)
    methods = results.methods(setting)
    tested_domains, tested_cases, run_repeats = set(), set(), set()
    for row in rows:
        tested_domains.add(row.domain)
        tested_cases.add((row.run.fold, row.subject))
        run_repeats.add(row.run.repeat)
    domains = tuple(name for name in results.domains if name in tested_domains)
    cases, repeats = tuple(sorted(tested_cases)), tuple(sorted(run_repeats))
    values = np.full((len(methods), len(domains), len(cases), len(repeats)), math.nan)
    tested = np.zeros((len(domains), len(cases)), dtype=bool)
    method_index, domain_index = _index(methods), _index(domains)
    case_index, repeat_index = _index(cases), _index(repeats)
    for row in rows:
        domain = domain_index[row.domain]
        case = case_index[row.run.fold, row.subject]
        values[method_index[row.run.method], domain, case, repeat_index[row.run.repeat]] = row.metrics[metric]
        tested[domain, case] = True
    return ScoreGrid(
        setting=setting,
        metric=metric,
        methods=methods,
        domains=domains,
        cases=cases,
        repeats=repeats,
        values=values,
        tested=tested,
    )


def _index(names: Sequence[T]) -> dict[T, int]:
    """Return the position of each name along its axis."""
    return dict(zip(names, range(len(names)), strict=True))


def mean(values: Array, axis: int) -> Array:
    """Return the mean along an axis without NaN; NaN where there is nothing else.

    >>> mean(np.array([[1.0, np.nan, 2.0], [np.nan, np.nan, np.nan]]), axis=1).tolist()
    [1.5, nan]
    """
    count = (~np.isnan(values)).sum(axis=axis)
    return np.where(count > 0, np.nansum(values, axis=axis) / np.maximum(count, 1), math.nan)


def spread(values: Array, axis: int) -> Array:
    """Return the s.d. (n − 1) along an axis without NaN; NaN where fewer than two values are left.

    >>> spread(np.array([[1.0, np.nan, 3.0], [1.0, np.nan, np.nan]]), axis=1).round(3).tolist()
    [1.414, nan]
    """
    count = (~np.isnan(values)).sum(axis=axis)
    with np.errstate(invalid="ignore"):  # infinite less infinite: the s.d. of such is NaN
        squares = np.square(values - np.expand_dims(mean(values, axis), axis))
    variance = np.nansum(squares, axis=axis) / np.maximum(count - 1, 1)
    finite = np.isfinite(mean(values, axis))
    return np.where((count > 1) & finite, np.sqrt(variance), math.nan)
