"""The tables of an experiment: results and curves of all finished runs, and the runs that failed."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from steelyard.errors import UserError
from steelyard.experiments.executor import UnitReport
from steelyard.experiments.units import RUNS, Unit, is_done, run_path
from steelyard.files.checks import brief, is_name, parse_whole
from steelyard.files.records import read_loose_rows, read_rows
from steelyard.files.writing import as_csv, remove, write_text
from steelyard.imaging.networks.build import NAMES
from steelyard.imaging.runs.method import Method
from steelyard.imaging.runs.run import METRICS, RunDirectory

RESULTS, FAILURES = "results.csv", "failures.csv"
KEYS = ("model", "availability", "method", "fold", "repeat")
"""The columns that name a run in every table."""

Row = dict[str, str]


def units_to_do(out: Path, units: Sequence[Unit]) -> list[Unit]:
    """Return the units that are not done.

    A unit is done if its run directory holds a run that is trained and judged. A unit without a run directory is done
    if results.csv has a row for each of its test subjects: raw runs need not be kept.
    """
    tested: dict[Path, set[str]] = {}
    for row in _rows_without_run(out):
        tested.setdefault(run_path(out, row), set()).add(row["subject"])
    to_do = []
    for unit in units:
        if not is_done(unit.path) and tested.get(unit.path) != set(unit.split.test):
            to_do.append(unit)
    return to_do


def write_results(out: Path) -> int:
    """Write a row per run, test subject and domain of all finished runs; return the number of runs.

    Rows of runs whose run directory is gone are kept. The order is that of the design (the paper's networks and methods
    first), whatever the order of the work.

    Raises:
        UserError: A run's files are damaged.
    """
    rows = _rows_without_run(out)
    for path in sorted(out.glob(f"{RUNS}/*/*/fold-*_repeat-*/{METRICS}")):
        rows += _test_rows(path)
    rows.sort(key=design_order)  # sorting is stable: the rows of a run keep their order
    for row in rows:
        if set(row) != set(rows[0]):
            name, first = run_path(out, row), run_path(out, rows[0])
            raise UserError(f"{name / METRICS}: has other columns than {first / METRICS}.")
    if rows:
        write_text(out / RESULTS, as_csv(rows))
    return len({run_path(out, row) for row in rows})


def design_order(row: Mapping[str, str]) -> tuple[object, ...]:
    """Return the sort key of rows: the paper's networks and methods first, much data before little."""
    number = row["availability"].rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    scarcity = float("-inf")
    if number.isascii() and number.isdecimal():
        scarcity = -int(number)
    networks = list(NAMES)
    position = networks.index(row["model"]) if row["model"] in networks else len(networks)
    return (
        position,
        row["model"],
        scarcity,
        Method.read(row["method"]).order,
        int(row["fold"]),
        int(row["repeat"]),
    )


def _rows_without_run(out: Path) -> list[Row]:
    """Return the rows of results.csv whose run directories are gone.

    Raises:
        UserError: The table is damaged.
    """
    if not (out / RESULTS).exists():
        return []
    rows = []
    for where, row in read_rows(out / RESULTS, (*KEYS, "subject", "domain")):
        _check_identity(where, row)
        if not run_path(out, row).exists():
            rows.append(row)
    return rows


def _test_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a run's metrics that are about test subjects."""
    identity = _identity(path.parent)
    try:
        rows = [row for _, row in read_rows(path, ("subject", "domain", "part"))]
    except UserError as error:
        raise UserError(f"{path}: is damaged; remove it to have the run judged again.") from error
    for row in rows:
        if row.pop("part") == "test":
            yield identity | row


def _identity(path: Path) -> Row:
    """Return the cells that name the run of a run directory."""
    config = RunDirectory(path).config
    fold = re.fullmatch(r"fold-(\d+)_repeat-\d+", path.name)
    if fold is None:
        raise UserError(f"{path}: is not a run of an experiment.")
    availability = path.parent.parent.name.rpartition("-")[2]
    values = (config.model, availability, config.method.name, fold[1], str(config.seed))
    return dict(zip(KEYS, values, strict=True))


def write_failures(out: Path, failed: Sequence[UnitReport]) -> None:
    """Write failures.csv, in the order of results.csv; no file if no unit failed.

    A failure stays in the table until its unit is done or fails again, whichever units later calls run.

    Args:
        out: The experiment folder.
        failed: The units that failed now.
    """
    path = out / FAILURES
    rows = {run_path(out, row): row for row in _read_failures(path)}
    for report in failed:
        identity = report.unit.identity
        rows[run_path(out, identity)] = identity | {"message": report.message}
    lasting = [row for run, row in rows.items() if not is_done(run)]
    lasting.sort(key=design_order)
    if lasting:
        write_text(path, as_csv(lasting))
    else:
        remove(path)


def _read_failures(path: Path) -> list[Row]:
    """Return the rows of an earlier call; none if the table makes no sense."""
    try:
        rows = read_loose_rows(path)
        for row in rows:
            if list(row) != [*KEYS, "message"]:
                raise UserError(f"{path}: is not a table of failures.")
            _check_identity(str(path), row)
    except UserError:
        return []
    return rows


def _check_identity(where: str, row: Row) -> None:
    """Refuse a row whose cells cannot name a run.

    Raises:
        UserError: A cell is not a name, or fold or repeat is not a whole number.
    """
    for name in KEYS:
        if not is_name(row[name]):
            raise UserError(f"{where}: {name} must be a name; got {brief(row[name])}.")
    for name in ("fold", "repeat"):
        parse_whole(f"{where}: {name}", row[name])
