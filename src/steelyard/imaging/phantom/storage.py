"""The files of one synthetic subject; the same subject gives the same bytes."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.files.atomic import write_bytes, write_text
from steelyard.files.records import write_json
from steelyard.imaging.anatomy.rigid import Matrix
from steelyard.imaging.phantom import sidecars
from steelyard.imaging.phantom.scanner import Scanner
from steelyard.imaging.phantom.subject import SimulatedSubject
from steelyard.imaging.scans.grids import itk_text
from steelyard.imaging.scans.nifti import pack_nifti

_COMPRESSION = 1  # noise hardly compresses; higher levels cost seconds a subject for a few per cent


def write_scans(folder: Path, name: str, subject: SimulatedSubject, scanner: Scanner) -> None:
    """Write the scans of a subject with their sidecars."""
    for contrast, scan, sequence in (
        ("T1w", subject.t1w, scanner.t1w),
        ("FLAIR", subject.flair, scanner.flair),
    ):
        write_nifti(folder / f"{name}_{contrast}.nii.gz", scan.image, scan.grid.affine)
        write_json(folder / f"{name}_{contrast}.json", sidecars.scan_sidecar(scan, sequence, scanner))


def write_truth(folder: Path, name: str, subject: SimulatedSubject) -> None:
    """Write what real data lack: the exact masks, the ideal scans, the bias fields and the motion."""
    grid = subject.flair.grid
    for label, mask, kind in (("WMH", subject.wmh, "Lesion"), ("brain", subject.brain, "Brain")):
        stem = f"{name}_space-FLAIR_label-{label}_mask"
        write_nifti(folder / f"{stem}.nii.gz", mask.astype(np.uint8), grid.affine)
        volume = float(mask.sum()) * grid.voxel_ml
        write_json(folder / f"{stem}.json", sidecars.mask_sidecar(name, volume, kind))
    for contrast, ideal, scan in (
        ("T1w", subject.ideal_t1w, subject.t1w),
        ("FLAIR", subject.ideal_flair, subject.flair),
    ):
        stem = f"{name}_space-FLAIR_desc-preproc_{contrast}"
        write_nifti(folder / f"{stem}.nii.gz", ideal, grid.affine)
        write_json(folder / f"{stem}.json", sidecars.ideal_sidecar(name, contrast))
        stem = f"{name}_desc-biasfield_{contrast}"
        write_fixed_point(folder / f"{stem}.nii.gz", scan.bias, scan.grid.affine, step=1e-3)
        write_json(folder / f"{stem}.json", sidecars.bias_sidecar(name, contrast))
    stem = f"{name}_from-T1w_to-FLAIR_mode-image_xfm"
    write_text(folder / f"{stem}.txt", itk_text(subject.flair_to_t1w))
    write_json(folder / f"{stem}.json", sidecars.transform_sidecar(subject))


def write_nifti(path: Path, voxels: NDArray[Any], affine: Matrix, *, slope: float | None = None) -> None:
    """Write a compressed NIfTI file; `slope` is what a stored 1 is worth, default 1."""
    write_bytes(path, pack_nifti(voxels, affine, slope=slope, compression=_COMPRESSION))


def write_fixed_point(path: Path, values: NDArray[np.floating], affine: Matrix, *, step: float) -> None:
    """Write real numbers as 16-bit multiples of `step`: half the time and size of floats."""
    counts = np.clip(np.rint(values / step), -32768, 32767).astype(np.int16)
    write_nifti(path, counts, affine, slope=step)
