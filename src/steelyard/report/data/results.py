"""The table of results: one row per run, test subject and domain."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product, starmap
from pathlib import Path

from steelyard.errors import UserError
from steelyard.files.records import read_header, read_rows
from steelyard.imaging.runs.experiment_folder import KEYS, UnitKey, model_order
from steelyard.report.data.metrics import METRICS, check_names, read_metric
from steelyard.report.data.names import BASELINE, canonical_method, natural_order, sorted_methods
from steelyard.report.data.runs import RunRecord

SCORE_KEYS = (*KEYS, "subject", "domain")
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
        method: How it weighed the domains, by the readable name.
        fold: Which part of the subjects it was tested on.
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
        for row in self.rows:
            if set(row.metrics) != set(self.rows[0].metrics):
                raise UserError(f"{self.source}: not every row holds the same metrics.")
        object.__setattr__(self, "rows", tuple(sorted(self.rows, key=lambda row: row.key)))

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """The settings: by model, then from much data to little."""
        return tuple(sorted({row.setting for row in self.rows}, key=_setting_order))

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that every row holds."""
        return tuple(name for name in METRICS if name in self.rows[0].metrics)

    @cached_property
    def domains(self) -> tuple[str, ...]:
        """The domains that were tested on."""
        return tuple(sorted({row.domain for row in self.rows}, key=natural_order))

    @cached_property
    def _by_setting(self) -> dict[Setting, list[Score]]:
        groups: dict[Setting, list[Score]] = {}
        for row in self.rows:
            groups.setdefault(row.setting, []).append(row)
        return groups

    def of(self, setting: Setting) -> tuple[Score, ...]:
        """Return the rows of a setting."""
        return tuple(self._by_setting.get(setting, ()))

    def methods(self, setting: Setting) -> tuple[str, ...]:
        """Return the methods that were run in a setting, in the paper's order."""
        return tuple(sorted_methods(row.run.method for row in self.of(setting)))

    def expected_runs(self, setting: Setting) -> tuple[RunKey, ...]:
        """Return every method in every fold and repeat that any method of the setting was run in."""
        folds, repeats = set(), set()
        for row in self.of(setting):
            folds.add(row.run.fold)
            repeats.add(row.run.repeat)
        return tuple(starmap(RunKey, product(self.methods(setting), sorted(folds), sorted(repeats))))

    def missing_runs(self, setting: Setting) -> tuple[RunKey, ...]:
        """Return the runs that are expected and of which there is no row."""
        finished = {row.run for row in self.of(setting)}
        return tuple(run for run in self.expected_runs(setting) if run not in finished)

    def incomplete_runs(self, setting: Setting) -> tuple[RunKey, ...]:
        """Return the runs that lack a subject, or a domain of one, that other runs of the same fold have."""
        tested_in_fold: dict[int, set[tuple[str, str]]] = {}
        tested_in_run: dict[RunKey, set[tuple[str, str]]] = {}
        for row in self.of(setting):
            tested_in_fold.setdefault(row.run.fold, set()).add((row.subject, row.domain))
            tested_in_run.setdefault(row.run, set()).add((row.subject, row.domain))
        return tuple(run for run in sorted(tested_in_run) if tested_in_run[run] != tested_in_fold[run.fold])

    def baseline(self, setting: Setting, name: str | None = None) -> str | None:
        """Return the method that the others of a setting are compared with; none if it was not run there.

        Args:
            setting: The network and the data it had.
            name: The baseline, by any of its names; `equal` by default.
        """
        baseline = canonical_method(name or BASELINE)
        if baseline in self.methods(setting):
            return baseline
        return None


def read_results(path: Path) -> Results:
    """Read a table of results; methods get their readable names.

    The columns are `SCORE_KEYS` and at least one of the metrics that `steelyard evaluate` writes. An empty cell is a
    metric that is not defined. With a column `part`, rows of other than test subjects are left out.

    Raises:
        UserError: The file cannot be read or is not such a table, with the line where there is one.
    """
    lines = list(read_rows(path, SCORE_KEYS))
    header = read_header(path)
    metrics = [name for name in METRICS if name in header]
    rows = []
    for where, cells in lines:
        if cells.get(_PART, "test") != "test":
            continue
        check_names(where, cells, ("subject", "domain"))
        setting, run = split_key(UnitKey.parse(cells, place=where))
        row = Score(
            setting=setting,
            run=run,
            subject=cells["subject"],
            domain=cells["domain"],
            metrics={name: read_metric(where, name, cells[name]) for name in metrics},
        )
        rows.append(row)
    if not metrics:
        raise UserError(f"{path}: has no column of a metric ({', '.join(METRICS)}).")
    return Results(tuple(rows), str(path))


def results_of_runs(runs: Sequence[RunRecord], *, availability: str = "all") -> Results:
    """Return the results of run folders.

    A run folder does not say which fold it is: runs that test on the same subjects are of one fold, folds are
    numbered by their subjects' names, and the repeat is the seed.

    Args:
        runs: Evaluated runs.
        availability: How much data they had.

    Raises:
        UserError: A run was not evaluated, or two runs are the same.
    """
    subjects_of_run = {run.path: tuple(sorted(run.subjects)) for run in runs}
    folds = sorted(set(subjects_of_run.values()))
    rows = []
    for run in runs:
        if not run.subjects:
            raise UserError(f"{run.path}: has no metrics of a test subject; run `steelyard evaluate` first.")
        key = RunKey(run.method, folds.index(subjects_of_run[run.path]), run.seed)
        for row in run.metrics:
            if row["part"] != "test":
                continue
            metrics = {name: read_metric(str(run.path), name, row[name]) for name in METRICS if name in row}
            setting = Setting(run.model, availability)
            rows.append(Score(setting=setting, run=key, subject=row["subject"], domain=row["domain"], metrics=metrics))
    return Results(tuple(rows), "runs")


def split_key(key: UnitKey) -> tuple[Setting, RunKey]:
    """Return the setting of a run, and which run of the setting it is."""
    return Setting(key.model, key.availability), RunKey(key.method.name, key.fold, key.repeat)


def _setting_order(setting: Setting) -> tuple[object, ...]:
    """Return a key that sorts settings by model, then from much data to little: all, 12F, 8F."""
    availability = []
    for is_text, number, part in natural_order(setting.availability):
        availability.append((is_text, -number, part))
    return model_order(setting.model), setting.availability != "all", tuple(availability)
