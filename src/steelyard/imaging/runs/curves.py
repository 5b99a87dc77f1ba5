"""The curves of all runs of an experiment in one compressed file, for figures where the runs themselves are gone.

`curves.csv.gz` has one row per run and epoch: the columns that name the run in every table of an experiment, then those
of the run's `epochs.csv`. A run that was not trained on a domain has empty cells there.
"""

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from steelyard.errors import UserError
from steelyard.files.atomic import write_bytes
from steelyard.files.checks import parse_whole
from steelyard.files.records import Cells
from steelyard.imaging.runs.experiment_folder import KEYS

CURVES = "curves.csv.gz"
"""The file's name in the folder of an experiment."""

_LARGEST = 512_000_000  # bytes after decompression; an experiment of a thousand runs has a few million


def write_curves(folder: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write the curves of an experiment; the same rows, in any order, give the same bytes.

    Args:
        folder: The experiment's folder.
        rows: One per run and epoch, with `KEYS` and the columns of the run's `epochs.csv`.
    """
    ordered = sorted(rows, key=_row_order)
    columns = dict.fromkeys((*KEYS, "epoch"))
    for row in ordered:
        columns |= dict.fromkeys(row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(ordered)
    packed = io.BytesIO()
    # gzip.compress would leave a byte of the header to the platform; without name and time the bytes are reproducible.
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as stream:
        stream.write(text.getvalue().encode())
    write_bytes(folder / CURVES, packed.getvalue())


def read_curves(folder: Path) -> list[Cells]:
    """Return the rows of an experiment's curves, sorted by run and epoch; none where there is no such file.

    Raises:
        UserError: The file is damaged, or lacks a column.
    """
    path = folder / CURVES
    if not path.exists():
        return []
    if not path.is_file():
        raise UserError(f"{path}: is not a file.")
    try:
        with gzip.open(path) as stream:
            content = stream.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise UserError(f"{path}: is larger than {_LARGEST // 1_000_000} MB.")
        reader = csv.DictReader(io.StringIO(content.decode("utf-8"), newline=""))
        rows = list(reader)
    except (OSError, EOFError, ValueError, zlib.error, csv.Error) as error:
        raise UserError(f"{path}: cannot be read as compressed CSV.") from error
    _check_rows(path, list(reader.fieldnames or ()), rows)
    return rows


def _row_order(row: Mapping[str, object]) -> tuple[str, str, str, int, int, int]:
    """Return what rows are sorted by: the run, then the epoch."""
    fold, repeat, epoch = (int(str(row[name])) for name in ("fold", "repeat", "epoch"))
    return str(row["model"]), str(row["availability"]), str(row["method"]), fold, repeat, epoch


def _check_rows(path: Path, header: list[str], rows: list[Cells]) -> None:
    for name in (*KEYS, "epoch"):
        if header.count(name) != 1:
            raise UserError(f"{path}: must have one column {name!r}.")
    for number, row in enumerate(rows, start=2):
        # DictReader puts surplus cells under None, and None into missing ones.
        if None in row or None in row.values():
            raise UserError(f"{path}, line {number}: must have {len(header)} cells.")
        for name in ("fold", "repeat", "epoch"):
            parse_whole(f"{path}, line {number}: {name}", row[name])
