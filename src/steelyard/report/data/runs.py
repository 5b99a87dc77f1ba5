"""What run folders say."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from pathlib import Path
from statistics import fmean, stdev

from torch import nn

from steelyard.errors import UserError
from steelyard.files.checks import parse_number
from steelyard.files.records import read_json, read_rows
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.runs.experiment_folder import UnitKey, is_run_name, model_order
from steelyard.imaging.runs.method import Method
from steelyard.imaging.runs.run_folder import AUDIT, CONFIG, EPOCHS, METRICS, STEPS, RunFolder
from steelyard.imaging.train.audit_record import parse_audit
from steelyard.report.data.metrics import METRICS as METRIC_NAMES
from steelyard.report.data.metrics import check_names, read_metric, read_weight
from steelyard.report.data.steps import WEIGHT, Steps, read_steps
from steelyard.training.audit import Audit

Row = dict[str, str]

VALIDATION = "validation_"
"""What the columns of the domains' validation losses begin with."""

_SCORE_COLUMNS = ("subject", "domain", "part")


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run, read from its folder or from the tables of its experiment.

    Args:
        path: Its folder; that of a run that is known from tables alone does not exist.
        model: The network's name or import path.
        method: How it weighed its domains, by the readable name.
        domains: The domains that the network must serve.
        seed: The repeat: it settles everything random.
        epochs: The rows of epochs.csv.
        metrics: The rows of metrics.csv; none if the run was not evaluated.
        steps: What steps.csv says of weights and votes; none for a run that is known from tables alone.
        config: All settings; none for a run that is known from tables alone.
        audit: Who helped whom; none for a run that did not vote.
    """

    path: Path
    model: str
    method: str
    domains: tuple[str, ...]
    seed: int
    epochs: list[Row]
    metrics: list[Row]
    steps: Steps = field(default_factory=Steps)
    config: TrainingConfig | None = None
    audit: Audit | None = None

    @property
    def trained(self) -> tuple[str, ...]:
        """The domains that it was trained on."""
        return Method.parse_or_unknown(self.method).trained_domains(self.domains)

    @property
    def key(self) -> UnitKey | None:
        """What the tables of an experiment call the run; none for a run outside of one, or one without a config."""
        if self.config is None or not is_run_name(self.path.name):
            return None
        return UnitKey.of_run(self.path, self.config)

    @property
    def setting(self) -> str:
        """The model, and in an experiment also how much data the run got."""
        if is_run_name(self.path.name):  # experiments keep runs as SETTING/METHOD/fold-0_repeat-0
            return self.path.absolute().parents[1].name
        return self.model

    @property
    def subjects(self) -> list[str]:
        """The test subjects that it was evaluated on."""
        return list(dict.fromkeys(row["subject"] for row in self._test_rows()))

    def network(self, trusted: Collection[str] = ()) -> nn.Module:
        """Return the trained network; a user's own only if the user has named it, because it is code."""
        if self.model in trusted:
            return RunFolder(self.path).network(model=self.model)
        return RunFolder(self.path).network()

    def domains_of(self, subject: str) -> list[str]:
        """Return the domains that a test subject was evaluated in."""
        tested = {row["domain"] for row in self._test_rows() if row["subject"] == subject}
        return [domain for domain in self.domains if domain in tested]

    def scores(self, domain: str, metric: str = "dsc") -> list[float]:
        """Return a metric of every test subject, in one domain."""
        return [_value(row, metric) for row in self._test_rows() if row["domain"] == domain]

    def score(self, subject: str, domain: str, metric: str = "dsc") -> float:
        """Return a metric of one test subject; NaN if there is none."""
        for row in self._test_rows():
            if row["subject"] == subject and row["domain"] == domain:
                return _value(row, metric)
        return nan

    def step_weights(self, domain: str) -> Sequence[float]:
        """Return a domain's weight after every step; none if it was not trained on, or steps were not kept."""
        return self.steps.weights.get(domain, ())

    def epoch_weights(self, domain: str) -> list[float]:
        """Return a domain's weight after every epoch; none if it was not trained on."""
        return self._curve(f"{WEIGHT}{domain}")

    def final_weight(self, domain: str) -> float:
        """Return a domain's weight at the end of training; NaN if it is not known."""
        for curve in (self.step_weights(domain), self.epoch_weights(domain)):
            if len(curve):
                return curve[-1]
        return nan

    def hypothetical_losses(self) -> list[tuple[float, ...]]:
        """Read the domains' hypothetical losses at every step; an empty tuple where no vote was due."""
        names = [f"hypothetical_{name}" for name in self.trained]
        losses = []
        for where, row in _rows(self.path / STEPS):
            if all(row.get(name) for name in names):
                losses.append(tuple(parse_number(f"{where}: {name}", row[name]) for name in names))
            else:
                losses.append(())
        return losses

    def validation(self, domain: str) -> list[float]:
        """Return a domain's validation loss after every epoch."""
        return self._curve(f"{VALIDATION}{domain}")

    def _curve(self, column: str) -> list[float]:
        """Return a column of epochs.csv without its empty cells."""
        curve = []
        for row in self.epochs:
            text = row.get(column, "").strip()
            if text:
                curve.append(float(text))
        return curve

    def _test_rows(self) -> list[Row]:
        return [row for row in self.metrics if row["part"] == "test"]


def read_run(path: Path) -> RunRecord:
    """Read a run folder.

    Raises:
        UserError: It is not one, or a file in it is damaged.
    """
    config = RunFolder(path).config
    try:
        return RunRecord(
            path=path,
            model=config.model,
            method=config.method.name,
            domains=config.domains,
            seed=config.seed,
            epochs=_read_epochs(path),
            metrics=_read_metrics(path),
            steps=read_steps(path / STEPS),
            config=config,
            audit=_read_audit(path / AUDIT),
        )
    except UserError as error:
        fault = str(error).removeprefix(f"{path}/").removesuffix(".")
        raise UserError(f"{path}: its tables are damaged ({fault}).") from error


def check_epoch(where: str, row: Row) -> None:
    """Check a row of epochs.csv; a loss may be infinite or NaN, as those of networks that diverge are.

    Raises:
        UserError: A cell that figures need is not a number.
    """
    for name, text in row.items():
        if name.startswith(VALIDATION):
            parse_number(f"{where}: {name}", text)
        elif name.startswith(WEIGHT) and text:
            read_weight(where, name, text)


def read_runs(folders: Iterable[Path]) -> list[RunRecord]:
    """Read run folders, and all those within other folders, in the paper's order of networks and methods.

    Raises:
        UserError: A folder holds none, a run is damaged, or runs serve different domains.
    """
    paths: dict[Path, None] = {}  # a set that keeps its order
    for folder in folders:
        run_folders = [folder]
        if not (folder / CONFIG).exists():
            run_folders = sorted(path.parent for path in folder.rglob(CONFIG))
        if not run_folders:
            raise UserError(f"{folder}: there is no run folder in it. `steelyard train` makes one.")
        paths |= dict.fromkeys(path.resolve() for path in run_folders)
    return sorted_runs([read_run(path) for path in paths])


def sorted_runs(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return runs in the paper's order of networks and methods.

    Raises:
        UserError: They serve different domains.
    """
    for run in runs:
        if run.domains != runs[0].domains:
            raise UserError(f"{run.path}: serves other domains than {runs[0].path}; they are two reports.")
    return sorted(
        runs, key=lambda run: (model_order(run.model), run.setting, Method.parse_or_unknown(run.method).order)
    )


def by_method(runs: Iterable[RunRecord]) -> dict[str, list[RunRecord]]:
    """Group runs by method, in the order of their first."""
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(run.method, []).append(run)
    return groups


def by_setting(runs: Iterable[RunRecord]) -> dict[str, list[RunRecord]]:
    """Group runs by model and availability."""
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(run.setting, []).append(run)
    return groups


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and s.d. over the subjects in whom a metric is defined; NaN where there are too few.

    >>> mean_and_spread([0.5, 0.7])[0]
    0.6
    """
    finite = [value for value in values if isfinite(value)]
    if not finite:
        return nan, nan
    if len(finite) == 1:
        return finite[0], nan
    return fmean(finite), stdev(finite)


def _read_epochs(path: Path) -> list[Row]:
    rows = []
    for where, row in _rows(path / EPOCHS):
        check_epoch(where, row)
        rows.append(row)
    return rows


def _read_metrics(path: Path) -> list[Row]:
    rows = []
    for where, row in _rows(path / METRICS, _SCORE_COLUMNS):
        check_names(where, row, _SCORE_COLUMNS)
        for name, text in row.items():
            if name in METRIC_NAMES:
                read_metric(where, name, text)
        rows.append(row)
    return rows


def _read_audit(path: Path) -> Audit | None:
    if not path.exists():
        return None
    content = read_json(path)
    try:
        return parse_audit(content)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _value(row: Row, metric: str) -> float:
    """Return a metric, which was checked when it was read; NaN where it is not defined."""
    text = row.get(metric, "").strip()
    if not text:
        return nan
    return float(text)


def _rows(path: Path, columns: Sequence[str] = ()) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a table, each with its file and line; none if there is no such file."""
    if path.exists():
        yield from read_rows(path, columns)
