"""The results on disk: names, writing, and telling whether a scan is still up to date."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.imaging.bids import PREDICTOR
from steelyard.imaging.derivatives import FIGURES, Kind, remove
from steelyard.imaging.nifti import read_header
from steelyard.imaging.prediction.options import REVISION, Options
from steelyard.imaging.prediction.pipeline import Prediction
from steelyard.imaging.prediction.scans import Scan
from steelyard.imaging.prediction.table import Row, read_row
from steelyard.imaging.preprocessing.settings import REVISION as PREPARED
from steelyard.imaging.provenance import versions
from steelyard.imaging.records import read_json
from steelyard.imaging.volumes import Volume, turned_back
from steelyard.imaging.workers import one_line
from steelyard.imaging.writing import write_bytes, write_json, write_nifti

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


def files_of(record: Path, out: Path) -> list[Path]:
    """Return the files that a record vouches for, itself last; no name is taken from what any file says."""
    stem = record.name.removesuffix(f"{_MASK}.json")
    names = (f"{_MAP}.nii.gz", f"{_MAP}.json", f"{_MASK}.nii.gz")
    return [*(record.with_name(stem + name) for name in names), figure_path(record, out), record]


def fingerprint(scan_digest: str, about: Mapping[str, Any], options: Options) -> str:
    """Return what changes when the scan, the model, an option or the method changes."""
    content = [REVISION, PREPARED, scan_digest, dict(about), options.as_dict()]
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_record(record: Path, out: Path) -> tuple[str, Row] | None:
    """Return the fingerprint and the row of a scan, if every file of it is there and whole."""
    try:
        held = read_json(record)["Steelyard"]
        whole = held["Outputs"] == _sizes(record, out)
        return (str(held["Fingerprint"]), read_row(held["Row"])) if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def records(out: Path) -> list[Path]:
    """Return the records in a folder, by name."""
    return sorted({*out.glob(f"sub-*/anat/*{_MASK}.json"), *out.glob(f"sub-*/ses-*/anat/*{_MASK}.json")})


def sweep(out: Path) -> None:
    """Remove what a killed run left without a record to vouch for it."""
    for folder in (*out.glob("sub-*/anat"), *out.glob("sub-*/ses-*/anat")):
        for path in folder.iterdir():
            name = path.name.removesuffix(".json").removesuffix(".nii.gz")
            stem = name.removesuffix(_MASK).removesuffix(_MAP)
            if stem != name and not path.with_name(f"{stem}{_MASK}.json").exists():
                remove(path)
    known = {figure_path(record, out).name for record in records(out)}
    for picture in (out / FIGURES).glob("*.jpg"):
        if picture.name not in known:
            remove(picture)


def write_scan(out: Path, scan: Scan, found: Prediction, *, common: Mapping[str, Any], picture: bytes) -> None:
    """Write everything of one scan, the record that vouches for it last."""
    record = record_path(out, scan)
    probabilities, about, mask, figure, _ = files_of(record, out)
    remove(record)
    header = read_header(scan.path)
    own = Volume(found.scan.voxels, header.get_best_affine())
    beside = {"Sources": [_source(scan.path, out)], "SpatialReference": "orig"}
    for path, volume, kind in ((probabilities, found.probabilities, np.float32), (mask, found.lesions.mask, np.uint8)):
        write_nifti(path, turned_back(volume.voxels.astype(kind), own).voxels, own.affine, like=header)
    write_json(about, {"Description": "Probability of white matter hyperintensity.", **beside})
    write_bytes(figure, picture)
    told = {**common, "Versions": versions(), "Outputs": _sizes(record, out)}
    write_json(record, {"Type": "Lesion", **beside, "Steelyard": told})


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


def _sizes(record: Path, out: Path) -> dict[str, int]:
    return {path.relative_to(out).as_posix(): path.stat().st_size for path in files_of(record, out)[:-1]}


def _source(path: Path, out: Path) -> str:
    """Where a scan lies as seen from the results, or its name if no path leads there."""
    try:
        return one_line(Path(os.path.relpath(path.resolve(), out.resolve())).as_posix())
    except ValueError:  # another drive
        return one_line(path.name)
