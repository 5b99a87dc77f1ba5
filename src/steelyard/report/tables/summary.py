"""The numbers of the paper's tables, of any results."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from steelyard.errors import UserError
from steelyard.report.data.kinds import is_single
from steelyard.report.data.published import Published, published
from steelyard.report.data.results import Results, Setting
from steelyard.report.statistics.grid import ScoreGrid, score_grid

GAIN_METRIC = "dsc"
"""What GAIN-μ and GAIN-σ are computed from."""

PAPER_DOMAINS = ("flair", "t1")
"""What the paper's numbers are about; beside those of other domains they would mislead."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """The numbers of a method in a setting.

    Args:
        setting: The network and the data it had.
        method: How it weighed the domains.
        runs: How many runs there are.
        expected: How many there would be with every fold and repeat.
        numbers: By `dsc_flair`, `dsc_flair_sd`, `gain_mean`, `gain_sd`, …; NaN where there is none.
        paper: The paper's row, if it has one.
    """

    setting: Setting
    method: str
    runs: int
    expected: int
    numbers: dict[str, float]
    paper: Published | None


def summarise(results: Results, *, baseline: str | None = None) -> tuple[Line, ...]:
    """Return the numbers of every method in every setting, at full precision.

    Args:
        results: All rows.
        baseline: What GAIN-μ and GAIN-σ are over; F50-T50, or `equal`, if not given.

    Raises:
        UserError: A baseline is asked for that no setting has.
    """
    if baseline and not any(results.baseline(setting, baseline) for setting in results.settings):
        raise UserError(f"{results.source}: there is no run of the baseline {baseline}.")
    return tuple(line for setting in results.settings for line in _lines(results, setting, baseline))


def summary_csv(lines: Sequence[Line]) -> str:
    """Return the numbers as CSV, to six decimals; the paper's in columns that begin with `paper_`."""
    names = list(dict.fromkeys(name for line in lines for name in line.numbers))
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    paper = [f"paper_{name}" for name in names]
    writer.writerow(["model", "availability", "method", "runs", "expected_runs", *names, *paper])
    for line in lines:
        theirs = line.paper.numbers if line.paper else {}
        key = [line.setting.model, line.setting.availability, line.method, line.runs, line.expected]
        ours = [_decimal(line.numbers.get(name, math.nan)) for name in names]
        writer.writerow([*key, *ours, *(_decimal(theirs.get(name, math.nan)) for name in names)])
    return written.getvalue()


def _lines(results: Results, setting: Setting, baseline: str | None) -> Iterator[Line]:
    grids = {metric: score_grid(results, setting, metric) for metric in results.metrics}
    expected, missing = results.expected_runs(setting), results.missing_runs(setting)
    base = results.baseline(setting, baseline)
    for method in results.methods(setting):
        numbers: dict[str, float] = {}
        for metric, grid in grids.items():
            at = grid.methods.index(method)
            for domain in results.domains:
                there = domain in grid.domains
                column = grid.domains.index(domain) if there else 0
                numbers[f"{metric}_{domain}"] = float(grid.means[at, column]) if there else math.nan
                numbers[f"{metric}_{domain}_sd"] = float(grid.spreads[at, column]) if there else math.nan
            if metric == GAIN_METRIC:
                numbers |= _gains(grid, method, base)
        wanted = sum(run.method == method for run in expected)
        runs = wanted - sum(run.method == method for run in missing)
        paper = published(setting, method) if results.domains == PAPER_DOMAINS else None
        yield Line(setting=setting, method=method, runs=runs, expected=wanted, numbers=numbers, paper=paper)


def _gains(grid: ScoreGrid, method: str, baseline: str | None) -> dict[str, float]:
    if baseline is None or is_single(method):
        return {"gain_mean": math.nan, "gain_sd": math.nan}
    means, spreads = grid.gains(baseline)
    at = grid.methods.index(method)
    return {"gain_mean": float(means[at]), "gain_sd": float(spreads[at])}


def _decimal(value: float) -> str:
    return "" if math.isnan(value) else f"{value + 0.0:.6f}".replace("-0.000000", "0.000000")
