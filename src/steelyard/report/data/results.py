"""The table of results: one row per run, test subject and domain."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from steelyard.errors import UserError
from steelyard.files.checks import parse_whole
from steelyard.files.records import read_header, read_rows
from steelyard.report.data.cells import check_names, read_metric
from steelyard.report.data.kinds import BASELINES, METRICS, method_order, model_order, natural
from steelyard.report.data.runs import RunRecord

RESULTS, RUNS = "results.csv", "runs"
"""What `steelyard experiment` calls its table and the folder of its runs."""

KEYS = ("model", "availability", "method", "fold", "repeat", "subject", "domain")
"""The columns that say what a row is about; all others are metrics, or ignored."""

_PART = "part"  # `steelyard evaluate` writes it; only the test subjects count here


@dataclass(frozen=True, order=True)
class Setting:
    """What methods are compared within: one network, trained with one amount of data.

    Args:
        model: The network.
        availability: How much data: `all`, or for instance `8F`, eight subjects with FLAIR.
    """

    model: str
    availability: str

    def __str__(self) -> str:
        return f"{self.model} ({self.availability})"


@dataclass(frozen=True, order=True)
class RunKey:
    """Which run of a setting.

    Args:
        method: How it weighed the domains.
        fold: Whose turn it was to be tested on.
        repeat: Which of the runs that differ in their seed alone.
    """

    method: str
    fold: int
    repeat: int

    def __str__(self) -> str:
        return f"{self.method}, fold {self.fold}, repeat {self.repeat}"


@dataclass(frozen=True, kw_only=True)
class Score:
    """How one run did on one test subject in one domain.

    Args:
        setting: The network and the data it had.
        run: Which run.
        subject: The test subject.
        domain: What the network was shown of it.
        metrics: The values by name; NaN where a metric is not defined.
    """

    setting: Setting
    run: RunKey
    subject: str
    domain: str
    metrics: Mapping[str, float]

    @property
    def key(self) -> tuple[Setting, RunKey, str, str]:
        """What no two rows share."""
        return self.setting, self.run, self.subject, self.domain


@dataclass(frozen=True)
class Results:
    """All rows, sorted, each of them once.

    Args:
        rows: In any order.
        source: What to call the table in messages; a file's name, mostly.

    Raises:
        UserError: There is no row, one is there twice, or rows differ in the metrics they hold.
    """

    rows: tuple[Score, ...]
    source: str = "results"

    def __post_init__(self) -> None:
        if not self.rows:
            raise UserError(f"{self.source}: holds no result of a test subject.")
        key, times = Counter(row.key for row in self.rows).most_common(1)[0]
        if times > 1:
            raise UserError(f"{self.source}: {key[0]}, {key[1]}, {key[2]}, {key[3]} is there {times} times.")
        if any(set(row.metrics) != set(self.rows[0].metrics) for row in self.rows):
            raise UserError(f"{self.source}: not every row holds the same metrics.")
        object.__setattr__(self, "rows", tuple(sorted(self.rows, key=lambda row: row.key)))

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """The settings: by model, then from much data to little."""
        found = {row.setting for row in self.rows}
        return tuple(
            sorted(found, key=lambda one: (model_order(one.model), one.availability != "all", _descending(one)))
        )

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that every row holds."""
        return tuple(name for name in METRICS if name in self.rows[0].metrics)

    @cached_property
    def domains(self) -> tuple[str, ...]:
        """The domains that were tested on."""
        return tuple(sorted({row.domain for row in self.rows}, key=natural))

    @cached_property
    def _by_setting(self) -> dict[Setting, tuple[Score, ...]]:
        held: dict[Setting, list[Score]] = {}
        for row in self.rows:
            held.setdefault(row.setting, []).append(row)
        return {setting: tuple(rows) for setting, rows in held.items()}

    def of(self, setting: Setting) -> tuple[Score, ...]:
        """Return the rows of a setting."""
        return self._by_setting.get(setting, ())

    def methods(self, setting: Setting) -> tuple[str, ...]:
        """Return the methods that were run in a setting, in the paper's order."""
        return tuple(sorted({row.run.method for row in self.of(setting)}, key=method_order))

    def expected_runs(self, setting: Setting) -> tuple[RunKey, ...]:
        """Return every method in every fold and repeat that any method of the setting was run in."""
        runs = {row.run for row in self.of(setting)}
        folds, repeats = sorted({run.fold for run in runs}), sorted({run.repeat for run in runs})
        return tuple(
            RunKey(method, fold, repeat) for method in self.methods(setting) for fold in folds for repeat in repeats
        )

    def missing_runs(self, setting: Setting) -> tuple[RunKey, ...]:
        """Return the runs that are expected and of which there is no row."""
        there = {row.run for row in self.of(setting)}
        return tuple(run for run in self.expected_runs(setting) if run not in there)

    def incomplete_runs(self, setting: Setting) -> tuple[RunKey, ...]:
        """Return the runs that lack a subject, or a domain of one, that other runs of the same fold have."""
        tested: dict[int, set[tuple[str, str]]] = {}
        held: dict[RunKey, set[tuple[str, str]]] = {}
        for row in self.of(setting):
            tested.setdefault(row.run.fold, set()).add((row.subject, row.domain))
            held.setdefault(row.run, set()).add((row.subject, row.domain))
        return tuple(run for run in sorted(held) if held[run] != tested[run.fold])

    def baseline(self, setting: Setting, wanted: str | None = None) -> str | None:
        """Return the method that the others of a setting are held against; none if it was not run there."""
        return next((name for name in ((wanted,) if wanted else BASELINES) if name in self.methods(setting)), None)


def read_results(path: Path) -> Results:
    """Read a table of results.

    The columns are `KEYS` and at least one of the metrics that `steelyard evaluate` writes. An empty cell is a metric
    that is not defined. With a column `part`, rows of other than test subjects are left out.

    Raises:
        UserError: The file cannot be read or is no such table, with the line where there is one.
    """
    lines = read_rows(path, KEYS)
    header = read_header(path)
    metrics = [name for name in METRICS if name in header]
    rows = [
        Score(
            setting=setting_of(cells),
            run=run_of(where, cells),
            subject=cells["subject"],
            domain=cells["domain"],
            metrics={name: read_metric(where, name, cells[name]) for name in metrics},
        )
        for where, cells in lines
        if cells.get(_PART, "test") == "test"
    ]
    if not metrics:
        raise UserError(f"{path}: has no column of a metric ({', '.join(METRICS)}).")
    return Results(tuple(rows), str(path))


def results_of_runs(runs: Sequence[RunRecord], *, availability: str = "all") -> Results:
    """Return the results of run directories.

    A run directory does not say which fold it is: runs that test on the same subjects are of one fold, folds are
    numbered by their subjects' names, and the repeat is the seed.

    Args:
        runs: Evaluated runs.
        availability: How much data they had.

    Raises:
        UserError: A run was not evaluated, or two runs are the same.
    """
    tested = {run.path: tuple(sorted({row["subject"] for row in _test_rows(run)})) for run in runs}
    folds = sorted(set(tested.values()))
    rows = [
        Score(
            setting=Setting(run.config.model, availability),
            run=RunKey(run.method, folds.index(tested[run.path]), run.config.seed),
            subject=row["subject"],
            domain=row["domain"],
            metrics={name: read_metric(str(run.path), name, row[name]) for name in METRICS if name in row},
        )
        for run in runs
        for row in _test_rows(run)
    ]
    return Results(tuple(rows), "runs")


def setting_of(cells: Mapping[str, str]) -> Setting:
    """Return the setting that a row of a table names."""
    return Setting(cells["model"], cells["availability"])


def run_of(where: str, cells: Mapping[str, str]) -> RunKey:
    """Return the run that a row of a table names.

    Raises:
        UserError: Fold or repeat is no whole number, or another key is no name.
    """
    check_names(where, cells, KEYS)
    fold, repeat = (parse_whole(f"{where}: {name}", cells[name]) for name in ("fold", "repeat"))
    return RunKey(cells["method"], fold, repeat)


def _test_rows(run: RunRecord) -> list[dict[str, str]]:
    rows = [row for row in run.metrics if row.get(_PART, "test") == "test"]
    if not rows:
        raise UserError(f"{run.path}: has no metrics of a test subject; evaluate it first.")
    return rows


def _descending(setting: Setting) -> tuple[tuple[bool, int, str], ...]:
    return tuple((text, -number, part) for text, number, part in natural(setting.availability))
