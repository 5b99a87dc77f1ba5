"""The table of all scans, for spreadsheets and statistics."""

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from steelyard.errors import one_line
from steelyard.imaging.predict.options import Options
from steelyard.imaging.predict.pipeline import Prediction
from steelyard.imaging.predict.scans import Scan
from steelyard.imaging.scans.volumes import Volume

_FORMULA = tuple("=+-@\t\r")  # a spreadsheet would compute a cell that begins so
_OPTIONAL = ("periventricular_ml", "deep_ml", "largest_ml")  # unknown where the ventricles were not found


@dataclass(frozen=True, kw_only=True)
class Row:
    """One scan in the table.

    Args:
        scan: The name of its results.
        source: The name of its file.
        contrast: `flair`, `t1` or nothing.
        status: `done` or `failed`.
        wmh_ml: Volume of all lesions.
        lesions: Number of lesions.
        periventricular_ml: Volume within 10 mm of the lateral ventricles; None where these were not found.
        deep_ml: Volume farther away.
        largest_ml: Volume of the largest lesion.
        sizes_ml: Volumes of all lesions, the largest first, separated by spaces.
        brain_ml: Volume of the brain.
        threshold: A voxel is a lesion if its probability is greater.
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
"""The columns that hold numbers."""


def predicted_row(scan: Scan, prediction: Prediction, *, network: Mapping[str, Any], options: Options) -> Row:
    """Return the row of a scan whose lesions were found.

    Args:
        scan: The scan.
        prediction: Its lesions.
        network: The description of the network.
        options: Those of the prediction.
    """
    lesions = prediction.lesions
    return Row(
        scan=scan.key,
        source=one_line(scan.path.name),
        contrast=scan.contrast or "",
        wmh_ml=_rounded(lesions.total_ml),
        lesions=lesions.count,
        periventricular_ml=_rounded(lesions.periventricular_ml),
        deep_ml=_rounded(lesions.deep_ml),
        largest_ml=_rounded(max(lesions.volumes_ml, default=0.0)),
        sizes_ml=" ".join(f"{size:.4g}" for size in lesions.volumes_ml),
        brain_ml=_rounded(_volume_ml(prediction.brain)),
        threshold=options.threshold,
        smallest_ml=options.smallest_ml,
        brain=prediction.steps["brain"],
        bias=prediction.steps["bias"],
        normalise=prediction.steps["normalise"],
        model=str(network["Name"]),
        weights=str(network["SHA256"])[:12],
    )


def failed_row(scan: Scan, message: str) -> Row:
    """Return the row of a scan that failed with a message."""
    problem = message.removeprefix(f"{scan.key}: ")
    source = one_line(scan.path.name)
    return Row(scan=scan.key, source=source, contrast=scan.contrast or "", status="failed", problem=problem)


def _volume_ml(mask: Volume) -> float:
    return int(np.count_nonzero(mask.voxels)) * mask.voxel_ml


def _rounded(value: float) -> float | None:
    """Return a volume as the table holds it; an unknown one, NaN, is None."""
    return round(value, 4) if math.isfinite(value) else None


def read_row(content: Mapping[str, Any]) -> Row:
    """Return the row that a record holds.

    Raises:
        ValueError: It holds something else.
    """
    if set(content) != set(COLUMNS):
        raise ValueError("not a row of this table")
    for name, value in content.items():
        if not _may_hold(name, value):
            raise ValueError(f"{name} cannot be {value!r}")
        is_required = name in NUMBERS and name not in _OPTIONAL
        if is_required and value is None and content["status"] == "done":
            raise ValueError("a number is missing")
    return Row(**content)


def _may_hold(name: str, value: object) -> bool:
    """Whether a column may hold a value; None in a column of numbers is an empty cell."""
    if name in NUMBERS:
        return value is None or _is_number(value)
    return isinstance(value, str)


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
    """Return the text of a cell.

    >>> _cell("=1+1"), _cell(None), _cell(0.5)
    ("'=1+1", '', '0.5')
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        return f"{value:.10g}"
    text = one_line(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
