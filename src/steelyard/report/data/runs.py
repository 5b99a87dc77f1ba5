"""What run directories say."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean, stdev

from torch import nn

from steelyard.errors import UserError
from steelyard.files.checks import parse_number
from steelyard.files.records import read_rows
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.runs.run_folder import CONFIG, EPOCHS, METRICS, STEPS, RunFolder
from steelyard.report.data.cells import check_names, read_metric
from steelyard.report.data.kinds import METRICS as METRIC_NAMES
from steelyard.report.data.kinds import method_order, model_order
from steelyard.report.data.steps import Steps, read_steps

Row = dict[str, str]
_VALIDATION = "validation_"
_OF_A_SCORE = ("subject", "domain", "part")
_OF_A_GRID = r"fold-\d+_repeat-\d+"  # experiments keep runs as SETTING/METHOD/fold-0_repeat-0


@dataclass(frozen=True)
class RunRecord:
    """One run, read.

    Args:
        path: Its folder.
        config: What it is.
        epochs: The rows of epochs.csv.
        steps: What steps.csv says of weights and votes.
        metrics: The rows of metrics.csv; none if the run was not evaluated.
    """

    path: Path
    config: TrainingConfig
    epochs: list[Row]
    steps: Steps
    metrics: list[Row]

    @property
    def method(self) -> str:
        """How the run weighed its domains."""
        return self.config.method.name

    @property
    def setting(self) -> str:
        """What else tells it from runs of the same method: the model, and in an experiment how much data it got."""
        if re.fullmatch(_OF_A_GRID, self.path.name):
            return self.path.absolute().parents[1].name
        return self.config.model

    @property
    def subjects(self) -> list[str]:
        """The test subjects that it was judged on."""
        return list(dict.fromkeys(row["subject"] for row in self.metrics if row["part"] == "test"))

    def network(self, trusted: Collection[str] = ()) -> nn.Module:
        """Return the trained network; one that is not ours only if the user has named it, because it is code."""
        return RunFolder(self.path).network(model=self.config.model if self.config.model in trusted else None)

    def domains_of(self, subject: str) -> list[str]:
        """Return the domains that a test subject was judged in."""
        held = {row["domain"] for row in self.metrics if (row["subject"], row["part"]) == (subject, "test")}
        return [domain for domain in self.config.domains if domain in held]

    def scores(self, domain: str, metric: str = "dsc") -> list[float]:
        """Return a metric of every test subject, in one domain."""
        return [_value(row, metric) for row in self.metrics if row["domain"] == domain and row["part"] == "test"]

    def score(self, subject: str, domain: str, metric: str = "dsc") -> float:
        """Return a metric of one test subject; NaN if there is none."""
        held = (
            _value(row, metric)
            for row in self.metrics
            if (row["subject"], row["domain"], row["part"]) == (subject, domain, "test")
        )
        return next(held, float("nan"))

    def weights(self, domain: str) -> Sequence[float]:
        """Return a domain's weight after every step; none for a domain that was not trained on."""
        return self.steps.weights.get(domain, ())

    def hypothetical(self) -> list[tuple[float, ...]]:
        """Read the domains' hypothetical losses at every step; an empty tuple where no vote was due."""
        names = [f"hypothetical_{name}" for name in self.config.trained]
        losses = []
        for where, row in _rows(self.path / STEPS):
            cells = {name: row.get(name, "") for name in names}
            measured = all(cells.values())
            losses.append(tuple(parse_number(f"{where}: {name}", cells[name]) for name in names if measured))
        return losses

    def validation(self, domain: str) -> list[float]:
        """Return a domain's validation loss after every epoch."""
        cells = [row.get(f"{_VALIDATION}{domain}", "").strip() for row in self.epochs]
        return [float(text) for text in cells if text]


def read_run(path: Path) -> RunRecord:
    """Read a run directory.

    Raises:
        UserError: It is none, or a file in it is damaged.
    """
    config = RunFolder(path).config
    try:
        return RunRecord(path, config, _read_epochs(path), read_steps(path / STEPS), _read_metrics(path))
    except UserError as error:
        fault = str(error).removeprefix(f"{path}/").removesuffix(".")
        raise UserError(f"{path}: its tables are damaged ({fault}).") from error


def _read_epochs(path: Path) -> list[Row]:
    """Read epochs.csv; a loss may be infinite or NaN, as those of networks that diverge are."""
    rows = []
    for where, row in _rows(path / EPOCHS):
        for name, text in row.items():
            if name.startswith(_VALIDATION):
                parse_number(f"{where}: {name}", text)
        rows.append(row)
    return rows


def _read_metrics(path: Path) -> list[Row]:
    """Read metrics.csv; none if the run was not evaluated."""
    rows = []
    for where, row in _rows(path / METRICS, _OF_A_SCORE):
        check_names(where, row, _OF_A_SCORE)
        for name, text in row.items():
            if name in METRIC_NAMES:
                read_metric(where, name, text)
        rows.append(row)
    return rows


def _value(row: Row, metric: str) -> float:
    """Return a metric, which was checked when it was read; NaN where it is not defined."""
    text = row.get(metric, "").strip()
    return float(text) if text else float("nan")


def read_runs(places: Iterable[Path]) -> list[RunRecord]:
    """Read run directories, and all those within other folders, in the paper's order of networks and methods.

    Raises:
        UserError: There are none somewhere, one is damaged, or they serve different domains.
    """
    found: dict[Path, None] = {}
    for place in places:
        held = [place] if (place / CONFIG).exists() else sorted(path.parent for path in place.rglob(CONFIG))
        if not held:
            raise UserError(f"{place}: there is no run directory in it.")
        found |= dict.fromkeys(path.resolve() for path in held)
    runs = [read_run(path) for path in found]
    for run in runs:
        if run.config.domains != runs[0].config.domains:
            raise UserError(f"{run.path}: serves other domains than {runs[0].path}; they are two reports.")
    return sorted(runs, key=lambda run: (model_order(run.config.model), run.setting, method_order(run.method)))


def by_method(runs: Iterable[RunRecord]) -> dict[str, list[RunRecord]]:
    """Gather runs by method, in the order of their first."""
    gathered: dict[str, list[RunRecord]] = {}
    for run in runs:
        gathered.setdefault(run.method, []).append(run)
    return gathered


def by_setting(runs: Iterable[RunRecord]) -> dict[str, list[RunRecord]]:
    """Gather runs by model and availability."""
    gathered: dict[str, list[RunRecord]] = {}
    for run in runs:
        gathered.setdefault(run.setting, []).append(run)
    return gathered


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and s.d. over the subjects in whom a metric is defined; NaN where there are too few.

    >>> mean_and_spread([0.5, 0.7])[0]
    0.6
    """
    finite = [value for value in values if isfinite(value)]
    mean = fmean(finite) if finite else float("nan")
    return mean, stdev(finite) if len(finite) > 1 else float("nan")


def _rows(path: Path, columns: Sequence[str] = ()) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a table with their places; none if there is no such file."""
    if path.exists():
        yield from read_rows(path, columns)
