"""Records of derivatives: what `steelyard preprocess` and `steelyard predict` do alike.

Both commands write several results for each subject or scan, and one record: a JSON file beside the results that lists
them (`files.ownership` says how). The record's entry `Steelyard` also holds a fingerprint of everything that the
results depend on. The next run compares fingerprints and leaves results alone that are up to date.
"""

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from steelyard.files.destinations import refuse_links
from steelyard.files.ownership import is_intact
from steelyard.imaging.datasets.derivatives import FIGURES, anat_folders


class Record(Protocol):
    """What a command reads from a record of its own; more than this differs between commands."""

    @property
    def fingerprint(self) -> str:
        """Of everything that the results depend on."""


def fingerprint(content: Mapping[str, Any] | Sequence[Any]) -> str:
    """Return a digest of everything that results depend on: inputs, settings, and the revision of the method.

    >>> fingerprint({"threshold": 0.5}) == fingerprint({"threshold": 0.4})
    False
    """
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def is_up_to_date(out: Path, path: Path, record: Record | None, *, expected: str) -> bool:
    """Whether an earlier run wrote the same results, and nobody changed them since.

    Args:
        out: The folder of derivatives.
        path: The record's file.
        record: Its content; None if there is no valid record.
        expected: The fingerprint that the results would have now.

    Raises:
        UserError: A folder on the way to the record is a link; nothing may be read or written there.
    """
    refuse_links(path.parent, within=out)
    return record is not None and record.fingerprint == expected and is_intact(out, path)


def records_in(out: Path, name: re.Pattern[str]) -> list[Path]:
    """Return the files in a folder of derivatives that are named like records, sorted."""
    records = []
    for folder in anat_folders(out):
        records += [path for path in folder.glob("sub-*.json") if name.fullmatch(path.name)]
    return sorted(records)


def figure_path(out: Path, key: str) -> Path:
    """Return the picture of a subject or scan."""
    return out / FIGURES / f"{key}.jpg"


def rounded_seconds(seconds: Mapping[str, float], *, total: float) -> dict[str, float]:
    """Return the duration of each step as a record holds it, and of all.

    >>> rounded_seconds({"read": 0.123}, total=2.0)
    {'read': 0.12, 'total': 2.0}
    """
    rounded = {step: round(duration, 2) for step, duration in seconds.items()}
    return rounded | {"total": round(total, 2)}
