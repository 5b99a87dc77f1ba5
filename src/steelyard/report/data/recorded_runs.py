"""The runs of an experiment, also where only its tables are left: results.csv and the compressed curves."""

from pathlib import Path

from steelyard.errors import UserError
from steelyard.files.records import read_rows
from steelyard.imaging.runs.curves import CURVES, read_curves
from steelyard.imaging.runs.experiment_folder import RESULTS, RUN_PATTERN, RUNS, UnitKey
from steelyard.imaging.runs.run_folder import CONFIG
from steelyard.report.data.results import SCORE_KEYS
from steelyard.report.data.runs import VALIDATION, Row, RunRecord, check_epoch, read_runs, sorted_runs

RowsOfRun = dict[UnitKey, list[Row]]


def read_experiment_runs(folder: Path) -> list[RunRecord]:
    """Read the runs of an experiment: run folders, and from its tables those that have none.

    A run that is known from tables alone has its scores, and where there are curves its losses and weights after every
    epoch. It has no steps, no config and no network.

    Raises:
        UserError: There is no run, a table is damaged, or runs serve different domains.
    """
    runs: list[RunRecord] = []
    if next(folder.glob(f"{RUN_PATTERN}/{CONFIG}"), None) is not None:
        runs = read_runs([folder / RUNS])
    present = {run.key for run in runs}
    scores = _read_scores(folder)
    epochs = _read_epochs(folder)
    domains = runs[0].domains if runs else _recorded_domains(scores, epochs)
    for key in dict.fromkeys((*scores, *epochs)):
        if key not in present:
            record = RunRecord(
                path=folder / key.folder,
                model=key.model,
                method=key.method.name,
                domains=domains,
                seed=key.repeat,
                epochs=epochs.get(key, []),
                metrics=scores.get(key, []),
            )
            runs.append(record)
    if not runs:
        raise UserError(f"{folder}: holds no run; `steelyard experiment` makes a folder of runs.")
    return sorted_runs(runs)


def _read_scores(folder: Path) -> RowsOfRun:
    """Return the rows of results.csv as those of metrics.csv, by run."""
    rows: RowsOfRun = {}
    if (folder / RESULTS).exists():
        for where, cells in read_rows(folder / RESULTS, SCORE_KEYS):
            key = UnitKey.parse(cells, place=where)
            rows.setdefault(key, []).append({"part": "test"} | cells)
    return rows


def _read_epochs(folder: Path) -> RowsOfRun:
    """Return the rows of the compressed curves as those of epochs.csv, by run."""
    rows: RowsOfRun = {}
    for number, cells in enumerate(read_curves(folder), start=2):
        where = f"{folder / CURVES}, line {number}"
        check_epoch(where, cells)
        rows.setdefault(UnitKey.parse(cells, place=where), []).append(cells)
    return rows


def _recorded_domains(scores: RowsOfRun, epochs: RowsOfRun) -> tuple[str, ...]:
    """Return the domains that runs serve: those of the curves, in their order, else those that were tested."""
    for rows in epochs.values():
        return tuple(name.removeprefix(VALIDATION) for name in rows[0] if name.startswith(VALIDATION))
    domains: dict[str, None] = {}  # a set that keeps its order
    for rows in scores.values():
        domains |= dict.fromkeys(row["domain"] for row in rows)
    return tuple(domains)
