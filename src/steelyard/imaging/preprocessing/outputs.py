"""The derivatives on disk: names, writing, and telling whether a subject is still up to date."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.errors import UserError
from steelyard.imaging.bids import GENERATOR, SUFFIX, Subject
from steelyard.imaging.derivatives import FIGURES, Kind, remove
from steelyard.imaging.grids import itk_text
from steelyard.imaging.preprocessing import record
from steelyard.imaging.preprocessing.pipeline import Prepared
from steelyard.imaging.writing import write_bytes, write_json, write_nifti, write_text

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
_RECORD = re.compile(
    r"\.?(sub-[0-9a-zA-Z]+(?:_ses-[0-9a-zA-Z]+)?)_(?:unfinished|space-(?:FLAIR|T1w)_desc-preproc_(?:FLAIR|T1w))\.json"
)
_Writer = Callable[[Path], None]


def read_record(out: Path, subject: Subject) -> record.Record | None:
    """Return what an earlier run wrote down about a subject, if every file it names is there and whole."""
    for contrast in ("flair", "t1"):
        try:
            found = record.read_record(out / subject.folder / f"{scan_stem(subject, contrast)}.json")
            whole = all((out / name).stat().st_size == size for name, size in found.outputs.items())
        except (OSError, ValueError):
            continue
        return found if whole else None
    return None


def scan_stem(subject: Subject, contrast: str) -> str:
    """Return the name of a preprocessed scan without its ending."""
    return f"{subject.key}_space-{_space(subject)}_desc-preproc_{SUFFIX[contrast]}"


def figure_path(subject: Subject) -> str:
    """Return where the subject's picture lies within the derivatives."""
    return f"{FIGURES}/{subject.key}.jpg"


def write_subject(out: Path, subject: Subject, done: Prepared, *, common: dict[str, Any], picture: bytes) -> None:
    """Write everything of one subject, the record that vouches for it last; what an earlier run left is removed.

    While files are being written a list of them lies in the folder, so that a killed run's can be told later.
    """
    folder = out / subject.folder
    main = "flair" if "flair" in done.channels else "t1"
    records = {name: folder / f"{scan_stem(subject, name)}.json" for name in done.channels}
    plan: dict[Path, _Writer] = {out / figure_path(subject): partial(write_bytes, content=picture)}
    plan |= _scans(folder, subject, done) | _masks(folder, subject, done, common) | _transform(folder, subject, done)
    earlier = written_files(out).get(subject.key, set())
    names = sorted(path.relative_to(out).as_posix() for path in {*plan, *earlier})
    journal = folder / f".{subject.key}_unfinished.json"
    write_json(journal, {"Steelyard": {"Outputs": names}})
    for stale in {*earlier, *records.values()} - {*plan, journal}:
        remove(stale)
    for path, write in plan.items():
        write(path)
    common = common | {"Outputs": {path.relative_to(out).as_posix(): path.stat().st_size for path in plan}}
    for contrast in sorted(records, key=lambda name: name == main):
        write_json(records[contrast], record.sidecar(contrast, done, common))
    remove(journal)


def written_files(out: Path) -> dict[str, set[Path]]:
    """Return the files that earlier runs wrote, by subject, as their records tell."""
    found: dict[str, set[Path]] = {}
    for path in [*out.glob("sub-*/anat/*.json"), *out.glob("sub-*/ses-*/anat/*.json")]:
        match = _RECORD.fullmatch(path.name)
        if match is None:
            continue
        key = match[1]
        try:
            listed = [out / name for name in record.read_outputs(path)]
        except UserError:
            listed = []
        own = [name for name in listed if name.parent == path.parent and name.name.startswith(f"{key}_")]
        beside = [name.with_name(name.name.split(".")[0] + ".json") for name in own]
        figure = [out / FIGURES / f"{key}.jpg"] if listed else []
        found.setdefault(key, set()).update((path, *own, *beside, *figure))
    return found


def files_of(out: Path, key: str) -> list[Path]:
    """Return what earlier runs wrote of a subject, its records last."""
    return sorted(written_files(out).get(key, ()), key=lambda path: _RECORD.fullmatch(path.name) is not None)


def _scans(folder: Path, subject: Subject, done: Prepared) -> dict[Path, _Writer]:
    return {
        folder / f"{scan_stem(subject, contrast)}.nii.gz": partial(
            write_nifti, voxels=channel.ready.voxels.astype(np.float32), affine=channel.ready.affine
        )
        for contrast, channel in done.channels.items()
    }


def _transform(folder: Path, subject: Subject, done: Prepared) -> dict[Path, _Writer]:
    if done.alignment is None:
        return {}
    stem = f"{subject.key}_from-T1w_to-FLAIR_mode-image_xfm"
    note = "ITK transform that resamples T1w onto FLAIR: it maps points of FLAIR to points of T1w."
    return {
        folder / f"{stem}.txt": partial(write_text, text=itk_text(done.alignment.matrix)),
        folder / f"{stem}.json": partial(write_json, content={"Description": note}),
    }


def _masks(folder: Path, subject: Subject, done: Prepared, common: dict[str, Any]) -> dict[Path, _Writer]:
    stem = f"{subject.key}_space-{done.space}"
    masks = {f"{stem}_label-brain_mask": ("brain", done.brain)}
    if "wmh" in done.masks:
        masks[f"{stem}_label-WMH_mask"] = ("WMH", done.masks["wmh"])
    if "brain" in done.masks:
        masks[f"{stem}_label-brain_desc-supplied_mask"] = ("brain", done.masks["brain"])
    plan: dict[Path, _Writer] = {}
    for name, (label, mask) in masks.items():
        beside = {
            "Type": _TYPES[label],
            "Sources": record.sources(common["Inputs"]),
            "SpatialReference": "orig",
            "VolumeMl": float(mask.voxels.sum()) * mask.voxel_ml,
        }
        voxels = mask.voxels.astype(np.uint8)
        plan[folder / f"{name}.nii.gz"] = partial(write_nifti, voxels=voxels, affine=mask.affine)
        plan[folder / f"{name}.json"] = partial(write_json, content=beside)
    return plan


def _space(subject: Subject) -> str:
    return "FLAIR" if subject.flair is not None else "T1w"
