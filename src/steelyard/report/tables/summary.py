"""The numbers of the paper's tables, of any results, and those that the paper published."""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from steelyard.errors import UserError
from steelyard.imaging.runs.method import Method
from steelyard.report.data.results import Results, Setting
from steelyard.report.statistics.grid import ScoreGrid, score_grid

GAIN_METRIC = "dsc"
"""What GAIN-μ and GAIN-σ are computed from."""

PAPER_DOMAINS = ("flair", "t1")
"""The domains of the paper's numbers; beside those of other domains they would mislead."""

_PAPER_MODELS = {"unet": "U-Net", "u-net": "U-Net", "lightweight": "LW", "lw": "LW"}
_PAPER_AVAILABILITIES = {"all": "12F"}  # all of the paper's training subjects are twelve
_PAPER_METHODS = {"flair-only": "FLAIR only", "t1-only": "T1 only"}


@dataclass(frozen=True, kw_only=True)
class Published:
    """A row of the paper's tables 1, S1 and S2.

    Args:
        model: As the paper calls it.
        availability: As the paper calls it.
        method: As the paper calls it.
        printed: Whether the row was printed; some are comments in the paper's source only.
        numbers: By `dsc_flair`, `dsc_flair_sd`, `gain_mean`, `gain_sd`, …; NaN where the paper has none.
    """

    model: str
    availability: str
    method: str
    printed: bool
    numbers: dict[str, float]


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

    @property
    def paper_numbers(self) -> dict[str, float]:
        """The paper's numbers; none if it has no such row."""
        if self.paper is None:
            return {}
        return self.paper.numbers


@cache
def published_rows() -> tuple[Published, ...]:
    """Return every row of the paper's tables."""
    text = files(__package__).joinpath("published.csv").read_text(encoding="utf-8")
    rows = []
    for cells in csv.DictReader(text.splitlines()):
        row = Published(
            model=cells.pop("model"),
            availability=cells.pop("availability"),
            method=cells.pop("method"),
            printed=cells.pop("published") == "yes",
            numbers={name: float(cell or "nan") for name, cell in cells.items()},
        )
        rows.append(row)
    return tuple(rows)


def published(setting: Setting, method: str) -> Published | None:
    """Return the paper's row for a method in a setting, if it has one.

    `all` stands for the paper's 12F, `unet` for U-Net and `lightweight` for LW.

    >>> published(Setting("unet", "8F"), "conservative-25").numbers["gain_mean"]
    0.011
    """
    paper_name = Method.parse_or_unknown(method).paper_name
    key = (
        _PAPER_MODELS.get(setting.model.lower(), setting.model),
        _PAPER_AVAILABILITIES.get(setting.availability, setting.availability),
        _PAPER_METHODS.get(paper_name, paper_name),
    )
    for row in published_rows():
        if (row.model, row.availability, row.method) == key:
            return row
    return None


def summarise(results: Results, *, baseline: str | None = None) -> tuple[Line, ...]:
    """Return the numbers of every method in every setting, at full precision.

    Args:
        results: All rows.
        baseline: The method that GAIN-μ and GAIN-σ are over; `equal` by default.

    Raises:
        UserError: A baseline is asked for that no setting has.
    """
    if baseline and not any(results.baseline(setting, baseline) for setting in results.settings):
        raise UserError(f"{results.source}: there is no run of the baseline {baseline}.")
    lines: list[Line] = []
    for setting in results.settings:
        lines += _lines(results, setting, baseline)
    return tuple(lines)


def summary_csv(lines: Sequence[Line]) -> str:
    """Return the numbers as CSV, to six decimals; the paper's in columns that begin with `paper_`."""
    columns: dict[str, None] = {}  # a set that keeps its order
    for line in lines:
        columns |= dict.fromkeys(line.numbers)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    paper_columns = [f"paper_{name}" for name in columns]
    writer.writerow(["model", "availability", "method", "runs", "expected_runs", *columns, *paper_columns])
    for line in lines:
        key = [line.setting.model, line.setting.availability, line.method, line.runs, line.expected]
        numbers = _decimals(line.numbers, columns)
        writer.writerow([*key, *numbers, *_decimals(line.paper_numbers, columns)])
    return text.getvalue()


def _lines(results: Results, setting: Setting, baseline: str | None) -> Iterator[Line]:
    grids = {metric: score_grid(results, setting, metric) for metric in results.metrics}
    expected, missing = results.expected_runs(setting), results.missing_runs(setting)
    base = results.baseline(setting, baseline)
    for method in results.methods(setting):
        numbers: dict[str, float] = {}
        for metric, grid in grids.items():
            for domain in results.domains:
                numbers |= _mean_and_spread(grid, method, domain)
            if metric == GAIN_METRIC:
                numbers |= _gains(grid, method, base)
        expected_count = sum(run.method == method for run in expected)
        missing_count = sum(run.method == method for run in missing)
        paper = None
        if results.domains == PAPER_DOMAINS:
            paper = published(setting, method)
        yield Line(
            setting=setting,
            method=method,
            runs=expected_count - missing_count,
            expected=expected_count,
            numbers=numbers,
            paper=paper,
        )


def _mean_and_spread(grid: ScoreGrid, method: str, domain: str) -> dict[str, float]:
    name = f"{grid.metric}_{domain}"
    if domain not in grid.domains:
        return {name: math.nan, f"{name}_sd": math.nan}
    row, column = grid.methods.index(method), grid.domains.index(domain)
    return {name: float(grid.means[row, column]), f"{name}_sd": float(grid.spreads[row, column])}


def _gains(grid: ScoreGrid, method: str, baseline: str | None) -> dict[str, float]:
    if baseline is None or Method.parse_or_unknown(method).is_single:
        return {"gain_mean": math.nan, "gain_sd": math.nan}
    means, spreads = grid.gains(baseline)
    row = grid.methods.index(method)
    return {"gain_mean": float(means[row]), "gain_sd": float(spreads[row])}


def _decimals(numbers: Mapping[str, float], columns: Mapping[str, None]) -> list[str]:
    """Return a cell per column, to six decimals; empty where there is no number."""
    cells = []
    for name in columns:
        value = numbers.get(name, math.nan)
        if math.isnan(value):
            cells.append("")
        else:
            cells.append(f"{value:.6f}".replace("-0.000000", "0.000000"))
    return cells
