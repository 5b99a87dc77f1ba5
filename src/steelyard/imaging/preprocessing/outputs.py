"""The derivatives on disk: names, writing, and telling whether a subject is still up to date."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.errors import UserError
from steelyard.imaging.bids import GENERATOR, SUFFIX, Subject
from steelyard.imaging.grids import itk_text
from steelyard.imaging.preprocessing import record
from steelyard.imaging.preprocessing.pipeline import Prepared
from steelyard.imaging.writing import reason, write_bytes, write_json, write_nifti, write_text

FIGURES = "figures"
_MASKS = {"WMH": "Lesion", "brain": "Brain"}


def claim(out: Path, source: Path) -> None:
    """Make a folder ours, or refuse to touch somebody else's.

    Raises:
        UserError: It is the input, a file, another's work, or cannot be written.
    """
    if out.resolve() == source.resolve():
        raise UserError(f"{out}: the output must not be the input.")
    try:
        if out.exists() and not out.is_dir():
            raise UserError(f"{out}: is a file; a folder is needed.")
        if out.is_dir() and any(out.iterdir()) and not _is_ours(out):
            raise UserError(f"{out}: is not empty and was not written by {GENERATOR}; nothing was written.")
        out.mkdir(parents=True, exist_ok=True)
        for unfinished in out.rglob(".*.part"):
            unfinished.unlink()
    except OSError as error:
        raise UserError(f"{out}: {reason(error)}; nothing was written.") from error
    write_json(
        out / "dataset_description.json",
        {
            "Name": "Aligned, bias-corrected, stripped and normalised scans",
            "BIDSVersion": "1.10.0",
            "DatasetType": "derivative",
            "GeneratedBy": [{"Name": GENERATOR, "Version": record.versions()["steelyard"]}],
        },
    )
    write_text(out / ".bidsignore", f"{FIGURES}/\nindex.html\n")


def read_record(out: Path, subject: Subject) -> dict[str, Any] | None:
    """Return what an earlier run wrote down about a subject, if every file it names is there and whole."""
    for contrast in ("flair", "t1"):
        path = out / subject.folder / f"{scan_stem(subject, contrast)}.json"
        try:
            found: dict[str, Any] = json.loads(path.read_text())["Steelyard"]
            whole = all((out / name).stat().st_size == size for name, size in found["Outputs"].items())
        except (OSError, ValueError, KeyError):
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
    """Write everything of one subject, the record that vouches for it last."""
    folder = out / subject.folder
    main = "flair" if "flair" in done.channels else "t1"
    witness = folder / f"{scan_stem(subject, main)}.json"
    _remove(witness)
    written = [out / figure_path(subject)]
    write_bytes(written[0], picture)
    for contrast, channel in done.channels.items():
        path = folder / f"{scan_stem(subject, contrast)}.nii.gz"
        write_nifti(path, channel.ready.voxels.astype(np.float32), channel.ready.affine)
        written.append(path)
    written += _write_masks(folder, subject, done)
    if done.alignment is not None:
        stem = folder / f"{subject.key}_from-T1w_to-FLAIR_mode-image_xfm"
        write_text(stem.with_name(stem.name + ".txt"), itk_text(done.alignment.matrix))
        note = "ITK transform that resamples T1w onto FLAIR: it maps points of FLAIR to points of T1w."
        write_json(stem.with_name(stem.name + ".json"), {"Description": note})
        written.append(stem.with_name(stem.name + ".txt"))
    common = common | {"Outputs": {path.relative_to(out).as_posix(): path.stat().st_size for path in written}}
    for contrast in sorted(done.channels, key=lambda name: name == main):
        path = folder / f"{scan_stem(subject, contrast)}.json"
        write_json(path, record.sidecar(contrast, done, common))


def _write_masks(folder: Path, subject: Subject, done: Prepared) -> list[Path]:
    stem = f"{subject.key}_space-{done.space}"
    masks = {f"{stem}_label-brain_mask": ("brain", done.brain)}
    if "wmh" in done.masks:
        masks[f"{stem}_label-WMH_mask"] = ("WMH", done.masks["wmh"])
    if "brain" in done.masks:
        masks[f"{stem}_label-brain_desc-supplied_mask"] = ("brain", done.masks["brain"])
    for name, (label, mask) in masks.items():
        write_nifti(folder / f"{name}.nii.gz", mask.voxels.astype(np.uint8), mask.affine)
        write_json(
            folder / f"{name}.json",
            {
                "Type": _MASKS[label],
                "RawSources": [f"bids:raw:{path.name}" for path in subject.files],
                "VolumeMl": float(mask.voxels.sum()) * mask.voxel_ml,
            },
        )
    return [folder / f"{name}.nii.gz" for name in masks]


def _space(subject: Subject) -> str:
    return "FLAIR" if subject.flair is not None else "T1w"


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path}: {reason(error)}.") from error


def _is_ours(out: Path) -> bool:
    try:
        content = json.loads((out / "dataset_description.json").read_text())
        return any(by.get("Name") == GENERATOR for by in content.get("GeneratedBy", []))
    except (OSError, ValueError, AttributeError):
        return False
