"""The cohort as a table, for spreadsheets and statistics."""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from steelyard.errors import one_line

_FORMULA = tuple("=+-@\t\r")  # a spreadsheet would compute a cell that begins so


@dataclass(frozen=True, kw_only=True)
class Row:
    """One scan in the table.

    Args:
        scan: The name of its results.
        source: The name of its file.
        contrast: `flair`, `t1` or nothing.
        status: `done` or `failed`.
        wmh_ml: Volume of all lesions.
        lesions: How many there are.
        periventricular_ml: Volume within 10 mm of the lateral ventricles; none where these were not found.
        deep_ml: Volume farther away.
        largest_ml: Volume of the largest lesion.
        sizes_ml: Volumes of all lesions, the largest first, separated by spaces.
        brain_ml: Volume of the brain.
        threshold: Probability from which a voxel is a lesion.
        smallest_ml: Volume below which lesions were dropped.
        brain: How the brain was found.
        bias: How the bias field was removed.
        normalise: How intensities were normalised.
        model: The network.
        weights: The start of its weights' SHA-256.
        problem: Why it failed.
    """

    scan: str
    source: str
    contrast: str
    status: str = "done"
    wmh_ml: float | None = None
    lesions: int | None = None
    periventricular_ml: float | None = None
    deep_ml: float | None = None
    largest_ml: float | None = None
    sizes_ml: str = ""
    brain_ml: float | None = None
    threshold: float | None = None
    smallest_ml: float | None = None
    brain: str = ""
    bias: str = ""
    normalise: str = ""
    model: str = ""
    weights: str = ""
    problem: str = ""


COLUMNS = tuple(field.name for field in fields(Row))
"""The table's columns, in order."""

NUMBERS = tuple(field.name for field in fields(Row) if field.type is not str)
"""Those that hold numbers."""


def read_row(held: Mapping[str, Any]) -> Row:
    """Return the row that a record holds.

    Raises:
        ValueError: It holds something else.
    """
    if set(held) != set(COLUMNS):
        raise ValueError("no row of this table")
    for name, value in held.items():
        if not (_is_number(value) or value is None if name in NUMBERS else isinstance(value, str)):
            raise ValueError(f"{name} cannot be {value!r}")
    unknown = ("periventricular_ml", "deep_ml", "largest_ml")
    if held["status"] == "done" and any(held[name] is None for name in NUMBERS if name not in unknown):
        raise ValueError("a number is missing")
    return Row(**held)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


def write_table(rows: Iterable[Row]) -> str:
    """Return the table as CSV, sorted by scan; no cell is a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in sorted(rows, key=lambda row: row.scan):
        writer.writerow([_cell(getattr(row, name)) for name in COLUMNS])
    return text.getvalue()


def _cell(value: str | float | None) -> str:
    """Return what a cell holds.

    >>> _cell("=1+1"), _cell(None), _cell(0.5)
    ("'=1+1", '', '0.5')
    """
    if isinstance(value, str):
        plain = one_line(value)
        return f"'{plain}" if plain.startswith(_FORMULA) else plain
    return "" if value is None else f"{value:.10g}"
