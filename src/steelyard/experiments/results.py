"""One table of everything that an experiment has found."""

import re
from collections.abc import Mapping
from pathlib import Path

from steelyard.errors import UserError
from steelyard.experiments.units import RUNS
from steelyard.files.records import read_rows
from steelyard.files.writing import as_csv, write_text
from steelyard.imaging.networks.build import NAMES
from steelyard.imaging.runs.method import Method
from steelyard.imaging.runs.run_folder import METRICS, RunFolder

RESULTS = "results.csv"
KEYS = ("model", "availability", "method", "fold", "repeat")
"""What tells runs apart in every table."""


def write_results(out: Path) -> int:
    """Write a row per run, test subject and domain of all finished runs; return how many runs there are.

    The order is that of the design (the paper's networks and methods first), never that of the work.

    Raises:
        UserError: A run's files are damaged.
    """
    found = [_identity(path.parent) for path in out.glob(f"{RUNS}/*/*/fold-*_repeat-*/{METRICS}")]
    runs = sorted(((run, path) for run, path in found), key=lambda pair: design_order(pair[0]))
    rows: list[dict[str, str]] = []
    for run, path in runs:
        for row in _rows(path / METRICS):
            rows.append(run | row)
            if set(rows[-1]) != set(rows[0]):
                raise UserError(f"{path / METRICS}: has other columns than {runs[0][1] / METRICS}.")
    if rows:
        write_text(out / RESULTS, as_csv(rows))
    return len(runs)


def _identity(path: Path) -> tuple[dict[str, str], Path]:
    config = RunFolder(path).config
    fold = re.fullmatch(r"fold-(\d+)_repeat-\d+", path.name)
    if fold is None:
        raise UserError(f"{path}: is no run of an experiment.")
    availability = path.parent.parent.name.rpartition("-")[2]
    values = (config.model, availability, config.method.name, fold[1], str(config.seed))
    return dict(zip(KEYS, values, strict=True)), path


def design_order(run: Mapping[str, str]) -> tuple[object, ...]:
    """Return what the rows of tables are sorted by: the paper's networks and methods first."""
    number = run["availability"].rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    scarcity = -int(number) if number.isascii() and number.isdecimal() else float("-inf")
    return (
        _rank(run["model"], tuple(NAMES)),
        scarcity,
        Method.read(run["method"]).order,
        int(run["fold"]),
        int(run["repeat"]),
    )


def _rank(name: str, known: tuple[str, ...]) -> tuple[int, str]:
    return (known.index(name) if name in known else len(known), name)


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        rows = [row for _, row in read_rows(path, ("subject", "domain", "part"))]
    except UserError as error:
        raise UserError(f"{path}: is damaged; remove it to have the run judged again.") from error
    return [{key: row[key] for key in row if key != "part"} for row in rows if row["part"] == "test"]
