"""The results of a scan on disk: their names, what their JSON files say, and writing them."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from steelyard.errors import one_line
from steelyard.files.destinations import first_link
from steelyard.files.ownership import Pack, read_sealed, write_results
from steelyard.files.records import as_json
from steelyard.imaging.datasets import derivative_records
from steelyard.imaging.datasets.bids import PREDICTOR
from steelyard.imaging.datasets.derivatives import FIGURES, Kind, versions
from steelyard.imaging.predict.options import REVISION, Options
from steelyard.imaging.predict.pipeline import Prediction
from steelyard.imaging.predict.scans import Scan
from steelyard.imaging.predict.table import Row, read_row
from steelyard.imaging.preprocess.settings import REVISION as PREPROCESS_REVISION
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

_MASK, _PROBABILITIES = "_label-WMH_mask", "_label-WMH_probseg"
_RECORD = re.compile(rf"sub-.*{_MASK}\.json", re.DOTALL)


class ResultFiles(NamedTuple):
    """The files that the record of a scan must list."""

    probabilities: Path
    probabilities_sidecar: Path
    mask: Path
    figure: Path


@dataclass(frozen=True, kw_only=True)
class ScanRecord:
    """What the record of a scan says.

    Args:
        fingerprint: Of the scan, the network, the options and the method.
        row: The scan's row in the table.
    """

    fingerprint: str
    row: Row


def record_path(out: Path, scan: Scan) -> Path:
    """Return the record of a scan: the JSON beside its mask."""
    return out / scan.folder / f"{scan.key}{_MASK}.json"


def record_paths(out: Path) -> list[Path]:
    """Return the files in a folder that are named like records, sorted."""
    return derivative_records.records_in(out, _RECORD)


def result_files(record: Path, out: Path) -> ResultFiles:
    """Return the files that a record must list."""
    key = record.name.removesuffix(f"{_MASK}.json")
    return ResultFiles(
        probabilities=record.with_name(f"{key}{_PROBABILITIES}.nii.gz"),
        probabilities_sidecar=record.with_name(f"{key}{_PROBABILITIES}.json"),
        mask=record.with_name(f"{key}{_MASK}.nii.gz"),
        figure=derivative_records.figure_path(out, key),
    )


def files_of(record: Path, out: Path) -> list[Path]:
    """Return the files of a scan that has a record, the record last; no name is taken from a file's content."""
    if first_link(record.parent, out) is not None or not record.is_file():
        return []
    return [*result_files(record, out), record]


def fingerprint(scan_digest: str, network: Mapping[str, Any], options: Options) -> str:
    """Return what changes when the scan, the network, an option or the method changes."""
    content = [REVISION, PREPROCESS_REVISION, scan_digest, dict(network), options.as_dict()]
    return derivative_records.fingerprint(content)


def read_record(record: Path, out: Path) -> ScanRecord | None:
    """Return what an earlier run recorded about a scan; None if the record was changed or a result is missing."""
    own = read_sealed(record)
    results = result_files(record, out)
    expected_names = {path.relative_to(out).as_posix() for path in results}
    if own is None or set(own["Outputs"]) != expected_names or not all(map(Path.is_file, results)):
        return None
    try:
        return ScanRecord(fingerprint=str(own["Fingerprint"]), row=read_row(own["Row"]))
    except (ValueError, KeyError, TypeError):
        return None


def write_scan(
    out: Path, scan: Scan, prediction: Prediction, *, common: Mapping[str, Any], picture: bytes
) -> list[Path]:
    """Write all results of one scan and its record; return the files that were moved out of the way.

    Args:
        out: The folder of results.
        scan: The scan.
        prediction: Its results.
        common: What the record says besides versions.
        picture: A JPEG.
    """
    record = record_path(out, scan)
    results = result_files(record, out)
    header = read_header(scan.path)
    scan_grid = Volume(prediction.scan.voxels, header.get_best_affine())
    sidecar = {"Sources": [_relative_source(scan.path, out)], "SpatialReference": "orig"}
    probabilities_sidecar = {"Description": "Probability of white matter hyperintensity.", **sidecar}
    plan: dict[Path, Pack] = {
        results.probabilities: partial(_pack, prediction.probabilities, np.float32, scan_grid, header),
        results.mask: partial(_pack, prediction.lesions.mask, np.uint8, scan_grid, header),
        results.probabilities_sidecar: as_json(probabilities_sidecar).encode,
        results.figure: lambda: picture,
    }
    content = {"Type": "Lesion", **sidecar, "Steelyard": {**common, "Versions": versions()}}
    return write_results(out, record, plan, content)


def _pack(volume: Volume, dtype: type[np.generic], scan_grid: Volume, header: Any) -> bytes:
    """Return an upright volume as a NIfTI file with the axes and the header of the scan's own file.

    Axes are swapped and flipped; no voxel is resampled.
    """
    voxels = turned_back(volume.voxels.astype(dtype), scan_grid).voxels
    return pack_nifti(voxels, scan_grid.affine, like=header)


def _relative_source(path: Path, out: Path) -> str:
    """Return the path of a scan as seen from the results, or its name if no path leads there."""
    try:
        return one_line(Path(os.path.relpath(path.resolve(), out.resolve())).as_posix())
    except ValueError:  # another drive
        return one_line(path.name)
