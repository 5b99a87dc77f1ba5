"""NIfTI files that are the same bytes for the same content."""

import gzip
import io
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from numpy.typing import NDArray

from steelyard.files.atomic import write_bytes
from steelyard.imaging.anatomy.rigid import Matrix

_COMPRESSION = 1  # noise hardly compresses; higher levels cost seconds a subject for a few per cent


def write_nifti(path: Path, voxels: NDArray[Any], affine: Matrix, *, slope: float | None = None) -> None:
    """Write a compressed NIfTI file in millimetres, without a time stamp.

    Args:
        path: Ends in `.nii.gz`.
        voxels: Written with their own type.
        affine: From voxels to right-anterior-superior millimetres of the scanner.
        slope: What a stored number is worth; 1 if not given.
    """
    image = nibabel.Nifti1Image(voxels, affine)
    image.header.set_xyzt_units("mm")
    image.header.set_qform(affine, code=1)
    image.header.set_sform(affine, code=1)
    if slope is not None:
        image.header.set_slope_inter(slope, 0)
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, compresslevel=_COMPRESSION, mtime=0) as stream:
        stream.write(image.to_bytes())
    write_bytes(path, packed.getvalue())


def write_fixed_point(path: Path, values: NDArray[np.floating], affine: Matrix, *, step: float) -> None:
    """Write real numbers as 16-bit multiples of `step`: half the time and size of floats."""
    counts = np.clip(np.rint(values / step), -32768, 32767).astype(np.int16)
    write_nifti(path, counts, affine, slope=step)
