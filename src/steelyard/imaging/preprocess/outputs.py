"""The derivatives on disk: names, writing, and telling whether a subject is still up to date."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.errors import UserError
from steelyard.files.ownership import Pack, delete_results, read_sealed, withdraw, write_results
from steelyard.files.records import as_json
from steelyard.imaging.datasets.bids import GENERATOR, SUFFIX
from steelyard.imaging.datasets.derivatives import FIGURES, Kind, anat_folders
from steelyard.imaging.datasets.subjects import Subject
from steelyard.imaging.preprocess import record
from steelyard.imaging.preprocess.pipeline import Prepared
from steelyard.imaging.scans.grids import itk_text
from steelyard.imaging.scans.nifti import pack_nifti

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

_TYPES = {"WMH": "Lesion", "brain": "Brain"}
_RECORD = re.compile(r"sub-[0-9a-zA-Z]+(?:_ses-[0-9a-zA-Z]+)?_space-(?:FLAIR|T1w)_desc-preproc_(?:FLAIR|T1w)\.json")


def record_path(out: Path, subject: Subject) -> Path:
    """Return the file that vouches for a subject's results: it lies beside the scan whose grid they are on."""
    main = "flair" if subject.flair is not None else "t1"
    return out / subject.folder / f"{scan_stem(subject, main)}.json"


def read_record(out: Path, subject: Subject) -> record.Record | None:
    """Return what an earlier run wrote down about a subject, if its record is as it was written."""
    path = record_path(out, subject)
    try:
        return record.read_record(path) if read_sealed(path) else None
    except UserError:
        return None


def scan_stem(subject: Subject, contrast: str) -> str:
    """Return the name of a preprocessed scan without its ending."""
    return f"{subject.key}_space-{_space(subject)}_desc-preproc_{SUFFIX[contrast]}"


def figure_path(subject: Subject) -> str:
    """Return where the subject's picture lies within the derivatives."""
    return f"{FIGURES}/{subject.key}.jpg"


def write_subject(out: Path, subject: Subject, done: Prepared, *, common: dict[str, Any], picture: bytes) -> list[Path]:
    """Write everything of one subject and the record that vouches for it, in place of what an earlier run wrote.

    Returns what was moved out of the way, because somebody had changed it.
    """
    folder = out / subject.folder
    path = record_path(out, subject)
    main = "flair" if subject.flair is not None else "t1"
    plan: dict[Path, Pack] = {out / figure_path(subject): lambda: picture}
    plan |= _scans(folder, subject, done) | _masks(folder, subject, done, common) | _transform(folder, subject, done)
    for contrast in done.channels:
        if contrast != main:
            beside = record.sidecar(contrast, done, common)
            plan[folder / f"{scan_stem(subject, contrast)}.json"] = as_json(beside).encode
    moved: list[Path] = []
    for other in _records(out, subject.key):  # of when the subject had other scans
        if other in {path, *plan}:
            continue
        moved += delete_results(out, other) if read_sealed(other) else withdraw(out, _files_in_record(out, other))
    return moved + write_results(out, path, plan, record.sidecar(main, done, common))


def written_files(out: Path) -> dict[str, list[Path]]:
    """Return the files that earlier runs wrote, by subject, as their records tell; the records last."""
    files: dict[str, list[Path]] = {}
    for path in _records(out):
        if listed := _files_in_record(out, path):
            files.setdefault(_key(path), []).extend(listed)
    return files


def files_of(out: Path, key: str) -> list[Path]:
    """Return what earlier runs wrote of a subject, its records last."""
    return list(dict.fromkeys(written_files(out).get(key, ())))


def _records(out: Path, key: str | None = None) -> list[Path]:
    """Return the files, of one subject or all, that may be records."""
    paths = [path for folder in anat_folders(out) for path in sorted(folder.glob("sub-*.json"))]
    return [path for path in paths if _RECORD.fullmatch(path.name) and key in (None, _key(path))]


def _key(path: Path) -> str:
    return path.name.partition("_space-")[0]


def _files_in_record(out: Path, path: Path) -> list[Path]:
    """Return what a record, even one that somebody changed, lists of its subject's files, itself last."""
    try:
        names = record.read_outputs(path)
    except UserError:
        return []
    key = _key(path)
    own = [out / name for name in names if Path(name).name.startswith(f"{key}_")]
    beside = [file for file in own if file.parent == path.parent]
    return [*beside, out / FIGURES / f"{key}.jpg", path]


def _scans(folder: Path, subject: Subject, done: Prepared) -> dict[Path, Pack]:
    return {
        folder / f"{scan_stem(subject, contrast)}.nii.gz": partial(
            pack_nifti, voxels=channel.ready.voxels.astype(np.float32), affine=channel.ready.affine
        )
        for contrast, channel in done.channels.items()
    }


def _transform(folder: Path, subject: Subject, done: Prepared) -> dict[Path, Pack]:
    if done.alignment is None:
        return {}
    stem = f"{subject.key}_from-T1w_to-FLAIR_mode-image_xfm"
    note = "ITK transform that resamples T1w onto FLAIR: it maps points of FLAIR to points of T1w."
    return {
        folder / f"{stem}.txt": itk_text(done.alignment.matrix).encode,
        folder / f"{stem}.json": as_json({"Description": note}).encode,
    }


def _masks(folder: Path, subject: Subject, done: Prepared, common: dict[str, Any]) -> dict[Path, Pack]:
    stem = f"{subject.key}_space-{done.space}"
    masks = {f"{stem}_label-brain_mask": ("brain", done.brain)}
    if "wmh" in done.masks:
        masks[f"{stem}_label-WMH_mask"] = ("WMH", done.masks["wmh"])
    if "brain" in done.masks:
        masks[f"{stem}_label-brain_desc-supplied_mask"] = ("brain", done.masks["brain"])
    plan: dict[Path, Pack] = {}
    for name, (label, mask) in masks.items():
        beside = {
            "Type": _TYPES[label],
            "Sources": record.sources(common["Inputs"]),
            "SpatialReference": "orig",
            "VolumeMl": float(mask.voxels.sum()) * mask.voxel_ml,
        }
        voxels = mask.voxels.astype(np.uint8)
        plan[folder / f"{name}.nii.gz"] = partial(pack_nifti, voxels=voxels, affine=mask.affine)
        plan[folder / f"{name}.json"] = as_json(beside).encode
    return plan


def _space(subject: Subject) -> str:
    return "FLAIR" if subject.flair is not None else "T1w"
