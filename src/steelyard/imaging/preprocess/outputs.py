"""The derivatives of a subject on disk: their names, what their JSON files say, and writing them."""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.errors import UserError
from steelyard.files.checks import LARGEST, check_number
from steelyard.files.ownership import Pack, delete_results, read_sealed, withdraw, write_results
from steelyard.files.records import as_json, read_object
from steelyard.files.regular_files import digest
from steelyard.imaging.datasets import derivative_records
from steelyard.imaging.datasets.bids import GENERATOR, SUFFIX
from steelyard.imaging.datasets.derivatives import FIGURES, Kind
from steelyard.imaging.datasets.subjects import Subject
from steelyard.imaging.preprocess.pipeline import PreparedSubject
from steelyard.imaging.preprocess.settings import REVISION, Settings
from steelyard.imaging.scans.grids import itk_text
from steelyard.imaging.scans.nifti import pack_nifti
from steelyard.imaging.scans.volumes import Volume

KIND = Kind(
    generator=GENERATOR,
    title="Aligned, bias-corrected, stripped and normalised scans",
    readme=f"""Scans prepared for segmentation by {GENERATOR}.

Every subject's FLAIR and T1w lie on one grid, aligned, bias-corrected, stripped and normalised, beside its masks.
The JSON beside a scan says how it was made and from which files: bids:raw: stands for the dataset that
dataset_description.json links to as raw. index.html shows every subject, outliers first; {FIGURES}/ holds its pictures.
""",
    ignored=("*_xfm.*",),
)
"""What `steelyard preprocess` writes."""

Inputs = dict[str, dict[str, str]]
"""By role, such as `flair`: the path of a file within the dataset and its digest."""

_MASK_TYPES = {"WMH": "Lesion", "brain": "Brain"}  # the BIDS term for each label
_RECORD = re.compile(r"sub-[0-9a-zA-Z]+(?:_ses-[0-9a-zA-Z]+)?_space-(?:FLAIR|T1w)_desc-preproc_(?:FLAIR|T1w)\.json")


@dataclass(frozen=True, kw_only=True)
class SubjectRecord:
    """What the record of a subject says.

    Args:
        fingerprint: Of inputs, settings and method.
        measures: Of quality, by name; NaN where one could not be measured.
        seconds: Duration of the whole subject.
    """

    fingerprint: str
    measures: dict[str, float]
    seconds: float


def record_path(out: Path, subject: Subject) -> Path:
    """Return the record of a subject: the JSON beside the scan whose grid the results are on."""
    return out / subject.folder / f"{_scan_stem(subject, _output_contrast(subject))}.json"


def read_record(out: Path, subject: Subject) -> SubjectRecord | None:
    """Return what an earlier run recorded about a subject; None if there is no record, or not as it was written."""
    own = read_sealed(record_path(out, subject))
    if own is None:
        return None
    try:
        measures = _checked_numbers(own.get("Measures"))
        seconds = _checked_numbers(own.get("Seconds"))
    except UserError:
        return None
    return SubjectRecord(fingerprint=str(own.get("Fingerprint")), measures=measures, seconds=seconds.get("total", 0.0))


def _checked_numbers(content: object) -> dict[str, float]:
    if not isinstance(content, dict):
        raise UserError("an object is needed.")
    for name, value in content.items():
        is_nan = isinstance(value, float) and math.isnan(value)
        if not is_nan:
            check_number(name, value, -LARGEST)
    return content


def describe_inputs(subject: Subject, root: Path) -> Inputs:
    """Return each input's path within the dataset and its digest, by role."""
    inputs: Inputs = {}
    for role in ("flair", "t1", "wmh", "brain"):
        path: Path | None = getattr(subject, role)
        if path is not None:
            relative = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
            inputs[role] = {"Path": relative, "SHA256": digest(path)}
    return inputs


def fingerprint(inputs: Inputs, settings: Settings) -> str:
    """Return what changes when the content of an input, a setting or the method changes."""
    digests = {role: entry["SHA256"] for role, entry in inputs.items()}
    return derivative_records.fingerprint(
        {"revision": REVISION, "settings": settings.as_dict(), "inputs": digests},
    )


def write_subject(
    out: Path, subject: Subject, prepared: PreparedSubject, *, common: Mapping[str, Any], picture: bytes
) -> list[Path]:
    """Write all results of one subject and its record, in place of those that an earlier run wrote.

    Args:
        out: The folder of derivatives.
        subject: The subject.
        prepared: Its results.
        common: What the JSON of each scan says of the whole subject.
        picture: A JPEG.

    Returns:
        The files that were moved out of the way, because somebody had changed them.
    """
    record = record_path(out, subject)
    folder = record.parent
    plan: dict[Path, Pack] = {derivative_records.figure_path(out, subject.key): lambda: picture}
    plan |= _scan_files(folder, subject, prepared)
    plan |= _mask_files(folder, subject, prepared, common["Inputs"])
    plan |= _transform_files(folder, subject, prepared)
    for contrast in prepared.scans:
        sidecar = folder / f"{_scan_stem(subject, contrast)}.json"
        if sidecar != record:
            plan[sidecar] = as_json(scan_sidecar(contrast, prepared, common)).encode
    moved: list[Path] = []
    # While the subject had other scans, its record had another name.
    for earlier in _records_of(out, subject.key):
        if earlier == record or earlier in plan:
            continue
        if read_sealed(earlier) is not None:
            moved += delete_results(out, earlier)
        else:
            moved += withdraw(out, _listed_files(out, earlier))
    return moved + write_results(out, record, plan, scan_sidecar(_output_contrast(subject), prepared, common))


def files_by_subject(out: Path) -> dict[str, list[Path]]:
    """Return the files that earlier runs wrote, by the subject's key, as their records list them; records last."""
    files: dict[str, list[Path]] = {}
    for record in derivative_records.records_in(out, _RECORD):
        listed = _listed_files(out, record)
        if listed:
            files.setdefault(_key(record), []).extend(listed)
    return files


def files_of(out: Path, key: str) -> list[Path]:
    """Return the files that earlier runs wrote of a subject, its records last."""
    return list(dict.fromkeys(files_by_subject(out).get(key, ())))


def _records_of(out: Path, key: str) -> list[Path]:
    return [path for path in derivative_records.records_in(out, _RECORD) if _key(path) == key]


def _key(record: Path) -> str:
    return record.name.partition("_space-")[0]


def _listed_files(out: Path, record: Path) -> list[Path]:
    """Return the files that a record lists, even one that somebody changed, itself last; none if it lists none.

    Only names in the record's folder that begin with its subject's key are taken from it.
    """
    own = read_object(record).get("Steelyard")
    listed = own.get("Outputs") if isinstance(own, dict) else None
    if not isinstance(listed, dict) or not all(map(str.isprintable, listed)):
        return []
    key = _key(record)
    files = []
    for name in listed:
        path = out / name
        if path.parent == record.parent and path.name.startswith(f"{key}_"):
            files.append(path)
    return [*files, derivative_records.figure_path(out, key), record]


def _output_contrast(subject: Subject) -> str:
    """Return the contrast whose grid the results are on."""
    return "t1" if subject.flair is None else "flair"


def _scan_stem(subject: Subject, contrast: str) -> str:
    """Return the name of a preprocessed scan without its ending."""
    return f"{subject.key}_space-{SUFFIX[_output_contrast(subject)]}_desc-preproc_{SUFFIX[contrast]}"


def _scan_files(folder: Path, subject: Subject, prepared: PreparedSubject) -> dict[Path, Pack]:
    files: dict[Path, Pack] = {}
    for contrast, scan in prepared.scans.items():
        path = folder / f"{_scan_stem(subject, contrast)}.nii.gz"
        files[path] = partial(pack_nifti, voxels=scan.ready.voxels.astype(np.float32), affine=scan.ready.affine)
    return files


def _mask_files(folder: Path, subject: Subject, prepared: PreparedSubject, inputs: Inputs) -> dict[Path, Pack]:
    """Return the brain that was applied, the supplied masks, and a sidecar for each."""
    masks = [("brain", "_label-brain_mask", prepared.brain)]
    if "wmh" in prepared.masks:
        masks.append(("WMH", "_label-WMH_mask", prepared.masks["wmh"]))
    if "brain" in prepared.masks:
        masks.append(("brain", "_label-brain_desc-supplied_mask", prepared.masks["brain"]))
    files: dict[Path, Pack] = {}
    for label, name, mask in masks:
        stem = f"{subject.key}_space-{prepared.space}{name}"
        voxels = mask.voxels.astype(np.uint8)
        files[folder / f"{stem}.nii.gz"] = partial(pack_nifti, voxels=voxels, affine=mask.affine)
        files[folder / f"{stem}.json"] = as_json(_mask_sidecar(label, mask, inputs)).encode
    return files


def _transform_files(folder: Path, subject: Subject, prepared: PreparedSubject) -> dict[Path, Pack]:
    if prepared.alignment is None:
        return {}
    stem = f"{subject.key}_from-T1w_to-FLAIR_mode-image_xfm"
    description = "ITK transform that resamples T1w onto FLAIR: it maps points of FLAIR to points of T1w."
    return {
        folder / f"{stem}.txt": itk_text(prepared.alignment.matrix).encode,
        folder / f"{stem}.json": as_json({"Description": description}).encode,
    }


def _mask_sidecar(label: str, mask: Volume, inputs: Inputs) -> dict[str, Any]:
    return {
        "Type": _MASK_TYPES[label],
        "Sources": _sources(inputs),
        "SpatialReference": "orig",
        "VolumeMl": float(mask.voxels.sum()) * mask.voxel_ml,
    }


def scan_sidecar(contrast: str, prepared: PreparedSubject, common: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON beside a preprocessed scan."""
    scan = prepared.scans[contrast]
    own: dict[str, Any] = {"Contrast": SUFFIX[contrast]}
    if scan.stripe is not None:
        own["WhiteStripe"] = asdict(scan.stripe)
    if contrast == "t1" and prepared.alignment is not None:
        own["Alignment"] = {
            "FlairToT1Matrix": prepared.alignment.matrix.tolist(),
            "Coordinates": "right-anterior-superior, mm",
            "MovedMm": prepared.alignment.moved_mm,
            "MutualInformation": prepared.alignment.information,
            "LeftUntouched": prepared.alignment.unchanged,
        }
    return {
        "Description": "Preprocessed for segmentation by steelyard.",
        "Sources": _sources(common["Inputs"]),
        "SkullStripped": common["Settings"]["brain"] != "skip",
        "SpatialReference": "orig",
        "Steelyard": {**own, **common},
    }


def _sources(inputs: Inputs) -> list[str]:
    """Return the BIDS address of each input."""
    return [f"bids:raw:{entry['Path']}" for entry in inputs.values()]
