"""The results on disk: names, writing, and telling whether a scan is still up to date."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.errors import one_line
from steelyard.files.destinations import first_link
from steelyard.files.ownership import Pack, read_sealed, write_results
from steelyard.files.records import as_json
from steelyard.imaging.datasets.bids import PREDICTOR
from steelyard.imaging.datasets.derivatives import FIGURES, Kind, anat_folders, versions
from steelyard.imaging.predict.options import REVISION, Options
from steelyard.imaging.predict.pipeline import Prediction
from steelyard.imaging.predict.scans import Scan
from steelyard.imaging.predict.table import Row, read_row
from steelyard.imaging.preprocess.settings import REVISION as PREPARED
from steelyard.imaging.scans.nifti import pack_nifti, read_header
from steelyard.imaging.scans.volumes import Volume, turned_back

TABLE = "volumes.csv"
KIND = Kind(
    generator=PREDICTOR,
    title="White matter hyperintensities found in scans",
    readme=f"""White matter hyperintensities found by {PREDICTOR}.

Each scan has a mask and a probability map on its own grid; the JSON beside the mask says how it was made. {TABLE} has
one row for each scan, index.html shows them all, what to look at first; {FIGURES}/ holds the pictures.
""",
    ignored=(TABLE, ".withdrawn"),
)
"""What `steelyard predict` writes."""

_MASK, _MAP = "_label-WMH_mask", "_label-WMH_probseg"


def record_path(out: Path, scan: Scan) -> Path:
    """Return the file that vouches for a scan's results: it is written last."""
    return out / scan.folder / f"{scan.key}{_MASK}.json"


def figure_path(record: Path, out: Path) -> Path:
    """Return the picture that belongs to a record."""
    return out / FIGURES / f"{record.name.removesuffix(f'{_MASK}.json')}.jpg"


def results_of(record: Path, out: Path) -> list[Path]:
    """Return the files that a record must list: probabilities, what is said of them, mask, picture."""
    stem = record.name.removesuffix(f"{_MASK}.json")
    names = (f"{_MAP}.nii.gz", f"{_MAP}.json", f"{_MASK}.nii.gz")
    return [*(record.with_name(stem + name) for name in names), figure_path(record, out)]


def files_of(record: Path, out: Path) -> list[Path]:
    """Return the files of a scan that has a record, itself last; no name is taken from what any file says."""
    if first_link(record.parent, out) is not None or not record.is_file():
        return []
    return [*results_of(record, out), record]


def fingerprint(scan_digest: str, about: Mapping[str, Any], options: Options) -> str:
    """Return what changes when the scan, the model, an option or the method changes."""
    content = [REVISION, PREPARED, scan_digest, dict(about), options.as_dict()]
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_record(record: Path, out: Path) -> tuple[str, Row] | None:
    """Return the fingerprint and the row of a scan, if its record is as it was written and every file of it there."""
    own = read_sealed(record)
    results = results_of(record, out)
    if own is None or set(own["Outputs"]) != {path.relative_to(out).as_posix() for path in results}:
        return None
    try:
        row = read_row(own["Row"])
        return (str(own["Fingerprint"]), row) if all(path.is_file() for path in results) else None
    except (ValueError, KeyError, TypeError):
        return None


def records(out: Path) -> list[Path]:
    """Return the records in a folder, by name."""
    return sorted(path for folder in anat_folders(out) for path in folder.glob(f"sub-*{_MASK}.json"))


def write_scan(out: Path, scan: Scan, found: Prediction, *, common: Mapping[str, Any], picture: bytes) -> list[Path]:
    """Write everything of one scan and the record that vouches for it; return what was moved out of the way."""
    record = record_path(out, scan)
    probabilities, about, mask, figure = results_of(record, out)
    header = read_header(scan.path)
    own = Volume(found.scan.voxels, header.get_best_affine())
    beside = {"Sources": [_source(scan.path, out)], "SpatialReference": "orig"}
    description = {"Description": "Probability of white matter hyperintensity.", **beside}
    plan: dict[Path, Pack] = {
        probabilities: partial(_packed, found.probabilities, np.float32, own, header),
        mask: partial(_packed, found.lesions.mask, np.uint8, own, header),
        about: as_json(description).encode,
        figure: lambda: picture,
    }
    content = {"Type": "Lesion", **beside, "Steelyard": {**common, "Versions": versions()}}
    return write_results(out, record, plan, content)


def _packed(volume: Volume, kind: type[np.generic], own: Volume, header: Any) -> bytes:
    """Return a volume on the axes of the scan itself, as a file."""
    voxels = turned_back(volume.voxels.astype(kind), own).voxels
    return pack_nifti(voxels, own.affine, like=header)


def describe(scan: Scan, found: Prediction, *, about: Mapping[str, Any], options: Options) -> Row:
    """Return the row of a scan."""
    lesions = found.lesions
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
        brain_ml=_rounded(_ml(found.brain)),
        threshold=options.threshold,
        smallest_ml=options.smallest_ml,
        brain=found.steps["brain"],
        bias=found.steps["bias"],
        normalise=found.steps["normalise"],
        model=str(about["Name"]),
        weights=str(about["SHA256"])[:12],
    )


def as_record(row: Row) -> dict[str, Any]:
    """Return a row as a record holds it."""
    return asdict(row)


def _ml(mask: Volume) -> float:
    return int(np.count_nonzero(mask.voxels)) * mask.voxel_ml


def _rounded(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def _source(path: Path, out: Path) -> str:
    """Where a scan lies as seen from the results, or its name if no path leads there."""
    try:
        return one_line(Path(os.path.relpath(path.resolve(), out.resolve())).as_posix())
    except ValueError:  # another drive
        return one_line(path.name)
