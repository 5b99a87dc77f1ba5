"""The runs of an experiment, also where only its tables are left: results.csv and the compressed curves."""

import re
from collections.abc import Iterable
from pathlib import Path

from steelyard.errors import UserError
from steelyard.files.records import read_rows
from steelyard.imaging.runs.curves import CURVES, read_curves
from steelyard.imaging.runs.run import CONFIG
from steelyard.report.data.results import KEYS, RESULTS, RUNS, RunKey, Setting, key_of_run, run_of, setting_of
from steelyard.report.data.runs import VALIDATION, Row, RunRecord, check_epoch, read_runs, sorted_runs

Key = tuple[Setting, RunKey]


def read_experiment_runs(folder: Path) -> list[RunRecord]:
    """Read the runs of an experiment: run directories, and from its tables those that have none.

    A run that is known from tables alone has its scores, and where there are curves its losses and weights after every
    epoch. It has no steps, no config and no network.

    Raises:
        UserError: There is no run, a table is damaged, or runs serve different domains.
    """
    runs: list[RunRecord] = []
    if _has_run_folders(folder / RUNS):
        runs = read_runs([folder / RUNS])
    present = {key_of_run(run) for run in runs}
    rows_by_run = _read_scores(folder)
    epochs_by_run = _read_epochs(folder)
    absent = [key for key in dict.fromkeys((*rows_by_run, *epochs_by_run)) if key not in present]
    domains = _domains(runs, epochs_by_run, rows_by_run)
    for setting, run in absent:
        record = RunRecord(
            path=_run_folder(folder, setting, run),
            model=setting.model,
            method=run.method,
            domains=domains,
            seed=run.repeat,
            epochs=epochs_by_run.get((setting, run), []),
            metrics=rows_by_run.get((setting, run), []),
        )
        runs.append(record)
    if not runs:
        raise UserError(f"{folder}: holds no run.")
    return sorted_runs(runs)


def _has_run_folders(folder: Path) -> bool:
    return folder.is_dir() and next(folder.rglob(CONFIG), None) is not None


def _run_folder(folder: Path, setting: Setting, run: RunKey) -> Path:
    """Return where the run would be, so that it is grouped with those that have a folder."""
    model = re.sub(r"[^\w.@-]", "_", setting.model)
    return folder / RUNS / f"{model}-{setting.availability}" / run.method / f"fold-{run.fold}_repeat-{run.repeat}"


def _read_scores(folder: Path) -> dict[Key, list[Row]]:
    """Return the rows of results.csv as those of metrics.csv, by run."""
    if not (folder / RESULTS).exists():
        return {}
    rows: dict[Key, list[Row]] = {}
    for where, cells in read_rows(folder / RESULTS, KEYS):
        key = setting_of(cells), run_of(where, cells)
        rows.setdefault(key, []).append(cells | {"part": cells.get("part", "test")})
    return rows


def _read_epochs(folder: Path) -> dict[Key, list[Row]]:
    """Return the rows of the compressed curves as those of epochs.csv, by run."""
    rows: dict[Key, list[Row]] = {}
    for number, cells in enumerate(read_curves(folder), start=2):
        where = f"{folder / CURVES}, line {number}"
        check_epoch(where, cells)
        rows.setdefault((setting_of(cells), run_of(where, cells)), []).append(cells)
    return rows


def _domains(
    runs: list[RunRecord], epochs_by_run: dict[Key, list[Row]], rows_by_run: dict[Key, list[Row]]
) -> tuple[str, ...]:
    """Return the domains that all runs serve, from the first source that names them."""
    if runs:
        return runs[0].domains
    for rows in epochs_by_run.values():
        return tuple(name.removeprefix(VALIDATION) for name in rows[0] if name.startswith(VALIDATION))
    return tuple(dict.fromkeys(_domain_cells(rows_by_run.values())))


def _domain_cells(groups: Iterable[list[Row]]) -> Iterable[str]:
    for rows in groups:
        for row in rows:
            yield row["domain"]
