"""The tables of an experiment: results and curves of all finished runs, and which units failed."""

from collections.abc import Sequence
from pathlib import Path

from steelyard.errors import UserError
from steelyard.experiments.executor import UnitReport
from steelyard.experiments.units import Unit, is_done
from steelyard.files.atomic import write_text
from steelyard.files.records import as_csv, read_rows
from steelyard.imaging.runs.curves import CURVES, read_curves, write_curves
from steelyard.imaging.runs.experiment_folder import (
    FAILURES,
    KEYS,
    RESULTS,
    RUN_PATTERN,
    UnitKey,
    read_failures,
    write_failures,
)
from steelyard.imaging.runs.run_folder import EPOCHS, METRICS, RunFolder
from steelyard.imaging.train.data import LabelledSlices

Row = dict[str, str]


def units_to_do(out: Path, units: Sequence[Unit], slices: LabelledSlices) -> list[Unit]:
    """Return the units that are not done.

    A unit is done if its run folder holds a run that is trained and judged. A unit without a run folder is done if
    results.csv has a row for every scan of its test subjects: raw runs need not be kept.

    Args:
        out: The experiment folder.
        units: All units.
        slices: What they learn from; they say which subject has a scan of which domain.

    Raises:
        UserError: results.csv is damaged.
    """
    rows_without_run = _results_without_run(out)
    to_do = []
    for unit in units:
        judged = {(row["subject"], row["domain"]) for row in rows_without_run.get(unit.key, ())}
        if judged != _test_scans(unit, slices) and not is_done(unit.path):
            to_do.append(unit)
    return to_do


def _test_scans(unit: Unit, slices: LabelledSlices) -> set[tuple[str, str]]:
    """Return subject and domain of every scan that a unit is judged on."""
    scans = set()
    for domain, domain_slices in slices.domains.items():
        for subject in set(domain_slices.owners) & set(unit.split.test):
            scans.add((subject, domain))
    return scans


def write_results(out: Path) -> int:
    """Write a row per run, test subject and domain of all finished runs, and their curves; return the number of runs.

    Rows of runs whose folders are gone are kept. The order is that of the design (the paper's networks and methods
    first), whatever the order of the work.

    Raises:
        UserError: A table is damaged.
    """
    results = _results_without_run(out)
    curves = _curves_without_run(out)
    for metrics in sorted(out.glob(f"{RUN_PATTERN}/{METRICS}")):
        run = metrics.parent
        key = UnitKey.of_run(run, RunFolder(run).config)
        results[key] = _test_rows(metrics)
        curves += [key.row | row for _, row in read_rows(run / EPOCHS)]
    rows: list[Row] = []
    for key in sorted(results, key=lambda key: key.order):
        for cells in results[key]:
            row = key.row | cells
            rows.append(row)
            if set(row) != set(rows[0]):
                raise UserError(f"{out / RESULTS}: the metrics of {key} have other columns than those before.")
    if rows:
        write_text(out / RESULTS, as_csv(rows))
        write_curves(out, curves)
    return len(results)


def _results_without_run(out: Path) -> dict[UnitKey, list[Row]]:
    """Return the rows of results.csv whose run folders are gone, without the cells of the key.

    Raises:
        UserError: The table is damaged.
    """
    path = out / RESULTS
    rows: dict[UnitKey, list[Row]] = {}
    if not path.exists():
        return rows
    for location, row in read_rows(path, (*KEYS, "subject", "domain")):
        key = UnitKey.parse(row, place=location)
        if not (out / key.folder).exists():
            metrics = {name: cell for name, cell in row.items() if name not in KEYS}
            rows.setdefault(key, []).append(metrics)
    return rows


def _curves_without_run(out: Path) -> list[Row]:
    """Return the rows of the curves whose run folders are gone."""
    rows = []
    for row in read_curves(out):
        key = UnitKey.parse(row, place=str(out / CURVES))
        if not (out / key.folder).exists():
            rows.append(row | key.row)
    return rows


def _test_rows(path: Path) -> list[Row]:
    """Return the rows of a run's metrics that are about test subjects.

    Raises:
        UserError: The table is damaged.
    """
    rows = []
    try:
        for _, row in read_rows(path, ("subject", "domain", "part")):
            if row.pop("part") == "test":
                rows.append(row)
    except UserError as error:
        raise UserError(f"{path}: is damaged; remove it to have the run judged again.") from error
    return rows


def update_failures(out: Path, failed: Sequence[UnitReport]) -> None:
    """Bring failures.csv up to date, in the order of results.csv; no file if no unit failed.

    A failure stays in the table until its unit is done or fails again, whichever units later calls run.

    Args:
        out: The experiment folder.
        failed: The units that failed now.
    """
    messages = read_failures(out / FAILURES)
    for report in failed:
        messages[report.unit.key] = report.message
    lasting = {key: message for key, message in messages.items() if not is_done(out / key.folder)}
    write_failures(out / FAILURES, lasting)
