"""The files of synthetic subjects, with what BIDS requires beside the images; the same subject gives the same bytes."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.files.atomic import write_bytes, write_text
from steelyard.files.records import write_json
from steelyard.imaging.anatomy.rigid import Matrix
from steelyard.imaging.datasets.bids_names import BIDS_VERSION
from steelyard.imaging.phantom.scanner import Scanner
from steelyard.imaging.phantom.signal import Sequence
from steelyard.imaging.phantom.subject import SimulatedScan, SimulatedSubject
from steelyard.imaging.scans.grids import itk_text
from steelyard.imaging.scans.nifti import pack_nifti

TEMPLATE_REFERENCE = "Fonov et al., NeuroImage 54:313 (2011), doi:10.1016/j.neuroimage.2010.07.033"

README = """Synthetic T1w and FLAIR heads
=============================

Made by `steelyard phantom`. No person was scanned: each head is a random deformation of the MNI152
average anatomy with simulated white matter hyperintensities, imaged by the MR signal equations. The T1w
scan lies on its own grid and the head has moved between the scans.

`derivatives/truth` holds what real data lack: the exact masks, the transform, the bias fields, and the
pair as perfect preprocessing would leave it.
"""

PARTICIPANTS = {
    "age": {"Description": "Simulated age", "Units": "year"},
    "wmh_ml": {"Description": "Volume of the white matter hyperintensities' mask", "Units": "mL"},
    "brain_ml": {"Description": "Volume of the brain mask", "Units": "mL"},
    "scanner": {"Description": "Preset of the simulated scanner"},
}
"""The meaning of the columns of participants.tsv."""

_COMPRESSION = 1  # noise hardly compresses; higher levels cost seconds a subject for a few per cent


def write_scans(folder: Path, name: str, subject: SimulatedSubject, scanner: Scanner) -> None:
    """Write the scans of a subject with their sidecars."""
    for contrast, scan, sequence in (
        ("T1w", subject.t1w, scanner.t1w),
        ("FLAIR", subject.flair, scanner.flair),
    ):
        write_nifti(folder / f"{name}_{contrast}.nii.gz", scan.image, scan.grid.affine)
        write_json(folder / f"{name}_{contrast}.json", scan_sidecar(scan, sequence, scanner))


def write_truth(folder: Path, name: str, subject: SimulatedSubject) -> None:
    """Write what real data lack: the exact masks, the ideal scans, the bias fields and the motion."""
    grid = subject.flair.grid
    for label, mask, kind in (("WMH", subject.wmh, "Lesion"), ("brain", subject.brain, "Brain")):
        stem = f"{name}_space-FLAIR_label-{label}_mask"
        write_nifti(folder / f"{stem}.nii.gz", mask.astype(np.uint8), grid.affine)
        volume = float(mask.sum()) * grid.voxel_ml
        write_json(folder / f"{stem}.json", mask_sidecar(name, volume, kind))
    for contrast, ideal, scan in (
        ("T1w", subject.ideal_t1w, subject.t1w),
        ("FLAIR", subject.ideal_flair, subject.flair),
    ):
        stem = f"{name}_space-FLAIR_desc-preproc_{contrast}"
        write_nifti(folder / f"{stem}.nii.gz", ideal, grid.affine)
        write_json(folder / f"{stem}.json", ideal_sidecar(name, contrast))
        stem = f"{name}_desc-biasfield_{contrast}"
        write_fixed_point(folder / f"{stem}.nii.gz", scan.bias, scan.grid.affine, step=1e-3)
        write_json(folder / f"{stem}.json", bias_sidecar(name, contrast))
    stem = f"{name}_from-T1w_to-FLAIR_mode-image_xfm"
    write_text(folder / f"{stem}.txt", itk_text(subject.flair_to_t1w))
    write_json(folder / f"{stem}.json", transform_sidecar(subject))


def write_nifti(path: Path, voxels: NDArray[Any], affine: Matrix, *, slope: float | None = None) -> None:
    """Write a compressed NIfTI file; `slope` is what a stored 1 is worth, default 1."""
    write_bytes(path, pack_nifti(voxels, affine, slope=slope, compression=_COMPRESSION))


def write_fixed_point(path: Path, values: NDArray[np.floating], affine: Matrix, *, step: float) -> None:
    """Write real numbers as 16-bit multiples of `step`: half the time and size of floats."""
    counts = np.clip(np.rint(values / step), -32768, 32767).astype(np.int16)
    write_nifti(path, counts, affine, slope=step)


def raw_description(scanner: str, seed: int) -> dict[str, Any]:
    """Return dataset_description.json of the scans."""
    return {
        "Name": f"Synthetic T1w and FLAIR heads (scanner {scanner}, seed {seed})",
        "BIDSVersion": BIDS_VERSION,
        "DatasetType": "raw",
        "License": "CC0",
        "Authors": ["steelyard phantom"],
        "ReferencesAndLinks": [TEMPLATE_REFERENCE],
    }


def truth_description(scanner: str, seed: int, version: str) -> dict[str, Any]:
    """Return dataset_description.json of the truth."""
    return {
        "Name": f"Truth of the synthetic heads (scanner {scanner}, seed {seed})",
        "BIDSVersion": BIDS_VERSION,
        "DatasetType": "derivative",
        "License": "CC0",
        "Authors": ["steelyard phantom"],
        "GeneratedBy": [{"Name": "steelyard phantom", "Version": version}],
        "DatasetLinks": {"raw": "../.."},
    }


def scan_sidecar(scan: SimulatedScan, sequence: Sequence, scanner: Scanner) -> dict[str, Any]:
    """Return the sidecar of a scan; BIDS counts time in seconds."""
    sidecar: dict[str, Any] = {
        "Manufacturer": "steelyard phantom",
        "MagneticFieldStrength": scanner.field_strength,
        "PulseSequenceType": type(sequence).__name__,
        "EchoTime": sequence.echo_time / 1000,
        "RepetitionTime": sequence.repetition_time / 1000,
        "FlipAngle": sequence.flip_angle,
    }
    inversion = getattr(sequence, "inversion_time", None)
    if inversion is not None:
        sidecar["InversionTime"] = inversion / 1000
    sidecar["SliceThickness"] = float(round(abs(scan.grid.affine[:3, 2]).max(), 6))
    return sidecar


def mask_sidecar(name: str, volume_ml: float, kind: str) -> dict[str, Any]:
    """Return the sidecar of a mask on FLAIR's grid."""
    return {
        "Description": f"{kind} mask: at least half of the voxel is inside",
        "Type": kind,
        "VolumeMl": round(volume_ml, 3),
    } | _from_flair(name)


def ideal_sidecar(name: str, contrast: str) -> dict[str, Any]:
    """Return the sidecar of an ideally preprocessed scan."""
    return {
        "Description": f"{contrast} on FLAIR's grid, without bias, WhiteStripe normalised, 0 off the brain",
        "SkullStripped": True,
    } | _from_flair(name)


def _from_flair(name: str) -> dict[str, Any]:
    flair = f"bids:raw:{name}/anat/{name}_FLAIR.nii.gz"
    return {"Sources": [flair], "SpatialReference": flair}


def bias_sidecar(name: str, contrast: str) -> dict[str, Any]:
    """Return the sidecar of a bias field."""
    return {
        "Description": "The factor by which the bias field multiplies the signal",
        "Sources": [f"bids:raw:{name}/anat/{name}_{contrast}.nii.gz"],
        "SkullStripped": False,
    }


def transform_sidecar(subject: SimulatedSubject) -> dict[str, Any]:
    """Return the sidecar of the transform: which way it points, and what motion it undoes."""
    motion = subject.traits.motion
    return {
        "Description": "Takes the T1w image to FLAIR's grid. As ITK has it: maps points of FLAIR to points "
        "of T1w, left-posterior-superior mm; SimpleITK.Resample(t1w, flair, transform).",
        "RotationDegrees": [round(angle, 6) for angle in motion.angles],
        "TranslationMm": [round(shift, 6) for shift in motion.translation],
    }
