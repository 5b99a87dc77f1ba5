"""NIfTI files on disk: the one place that writes them, and that reads them whole, checked and no more than declared."""

import gzip
import io
import logging
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from nibabel.nifti1 import Nifti1Header, Nifti1Image
from nibabel.nifti2 import Nifti2Header
from nibabel.spatialimages import HeaderDataError
from nibabel.volumeutils import apply_read_scaling
from nibabel.wrapstruct import WrapStructError
from numpy.typing import NDArray

from steelyard.errors import UserError, reason
from steelyard.files.regular_files import open_regular

MOST_VOXELS = 150_000_000
"""Scans with more voxels are refused unless the caller raises the limit; 512×512×400 are 105 million."""

_LONGEST_HEADER = 540  # bytes of NIfTI-2; NIfTI-1 has 348
_FARTHEST_VOXELS = 2**26  # bytes of header extensions before the voxels; 64 MB is beyond any that are in use
_PADDING = 4096  # bytes after the voxels; some writers fill up a block
_CHUNK = 2**20  # bytes that are unpacked at a time
_SEVERE = 40  # nibabel's level of a fault that it cannot mend
_COMPRESSION = 4  # beyond this gzip takes seconds more for a few per cent less
_PLACE = (  # the fields of a header that say where the voxels lie
    *("qform_code", "sform_code", "srow_x", "srow_y", "srow_z"),
    *("quatern_b", "quatern_c", "quatern_d", "qoffset_x", "qoffset_y", "qoffset_z"),
)

# nibabel reports on standard error what it mends in a header; the faults that matter are refused here.
_SILENT = logging.Logger("steelyard.imaging.scans.nifti", logging.CRITICAL + 1)


def million_voxels(millions: float) -> int:
    """Return a limit in millions as a number of voxels.

    Raises:
        UserError: It is not a positive number.

    >>> million_voxels(0.5)
    500000
    """
    if not 0 < millions < math.inf:
        raise UserError(f"the largest scan must be a positive number of million voxels; got {millions:g}.")
    return round(millions * 1e6)


@dataclass(frozen=True)
class Stored:
    """The voxels of a file as they are stored, and where they lie.

    Args:
        voxels: Three axes, the first fastest, before scaling.
        scaling: Slope and intercept, if the header has any.
        affine: 4×4, from voxel indices to right-anterior-superior millimetres.
    """

    voxels: NDArray[Any]
    scaling: tuple[float, float] | None
    affine: NDArray[np.float64]

    def values(self) -> NDArray[Any]:
        """Return the scaled voxels in the type that scaling asks for."""
        return self.voxels if self.scaling is None else np.asarray(apply_read_scaling(self.voxels, *self.scaling))

    def floats(self) -> NDArray[np.float32]:
        """Return the scaled voxels as 32-bit floats, without a wider copy of all of them."""
        if self.scaling is None:
            return self.voxels.astype(np.float32, copy=False)
        floats = np.empty(self.voxels.shape, dtype=np.float32, order="F")
        for index in range(self.voxels.shape[2]):
            floats[..., index] = apply_read_scaling(self.voxels[..., index], *self.scaling)
        return floats


def read_header(path: Path) -> Any:
    """Return the header of a NIfTI file.

    Raises:
        UserError: The file cannot be read, or the header is damaged or does not say where the voxels lie.
    """
    with _faults_in_one_line(path), _opened(path) as stream:
        return _header(path, stream.read(_LONGEST_HEADER))


def read_stored(path: Path, *, most_voxels: int = MOST_VOXELS) -> Stored:
    """Read the volume of a NIfTI file, to the end of the file.

    The end matters: there the checksum of a compressed file lies. What the header declares is looked at before memory
    is taken, and a file that unpacks to more is left.

    Raises:
        UserError: The file cannot be read, is damaged, is not three-dimensional, does not hold plain numbers, holds
            less or more than its header declares, or has more voxels than the limit.
    """
    with _faults_in_one_line(path), _opened(path) as stream:
        header = _header(path, stream.read(_LONGEST_HEADER))
        shape, kind = _declared(path, header, most_voxels)
        scaling = _scaling(path, header)
        affine = _affine(path, header)
        stream.seek(int(header["vox_offset"]))
        voxels = _voxels(path, stream, math.prod(shape) * kind.itemsize)
    return Stored(voxels.view(kind).reshape(shape, order="F"), scaling, affine)


@contextmanager
def _faults_in_one_line(path: Path) -> Iterator[None]:
    try:
        with np.errstate(all="ignore"):  # numbers that are too large are refused where they are looked at
            yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: the file is cut short or damaged ({error}).") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read, {reason(error)}.") from error
    except MemoryError as error:
        raise UserError(f"{path}: there is not enough memory for it.") from error
    except (HeaderDataError, WrapStructError, ValueError, OverflowError) as error:
        raise UserError(f"{path}: this is no NIfTI image ({error}).") from error


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedIOBase]:
    with open_regular(path) as file:
        if path.suffix.lower() != ".gz":
            yield file
            return
        with gzip.GzipFile(fileobj=file) as stream:
            yield stream


def _header(path: Path, block: bytes) -> Any:
    if Nifti1Header.may_contain_header(block):
        header = Nifti1Header(block[: Nifti1Header.sizeof_hdr], check=False)
    elif Nifti2Header.may_contain_header(block):
        header = Nifti2Header(block[: Nifti2Header.sizeof_hdr], check=False)
    else:
        raise UserError(f"{path}: this is no NIfTI image.")
    offset = float(header["vox_offset"])
    if not header.single_vox_offset <= offset <= _FARTHEST_VOXELS:
        raise UserError(f"{path}: the header is damaged: the voxels cannot begin at byte {offset:g}.")
    edges = header["pixdim"][1:4].copy()  # nibabel makes zeros into ones, and drops the sign
    header.check_fix(logger=_SILENT, error_level=_SEVERE)
    if int(header["sform_code"]) == 0 and not (np.isfinite(edges).all() and edges.min() > 0):
        size = "×".join(f"{edge:g}" for edge in edges)
        raise UserError(f"{path}: voxels of {size} mm (pixdim) cannot be right, and there is no sform instead.")
    return header


def _declared(path: Path, header: Any, most_voxels: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and type that the header declares, if they can be read."""
    shape = tuple(int(size) for size in header.get_data_shape())
    times = "×".join(map(str, shape))
    volume = shape[:3] if shape[3:] == (1,) else shape  # a fourth axis of one time point is no harm
    if len(volume) != 3 or min(volume) < 2:
        raise UserError(f"{path}: a three-dimensional volume is needed; this is {times}.")
    kind = header.get_data_dtype()
    if kind.kind not in "biuf":  # booleans, integers, floats
        raise UserError(f"{path}: plain numbers are needed; the voxels are of type {kind}.")
    count = math.prod(volume)
    if count > most_voxels:
        raise UserError(
            f"{path}: {times} are {count / 1e6:.1f} million voxels; at most {most_voxels / 1e6:g} million are read "
            "(raise it with --largest-scan of predict and preprocess)."
        )
    return volume, kind


def _scaling(path: Path, header: Any) -> tuple[float, float] | None:
    slope, intercept = float(header["scl_slope"]), float(header["scl_inter"])
    if slope == 0 or math.isnan(slope):  # both mean that there is no scaling
        return None
    if not (math.isfinite(slope) and math.isfinite(intercept)):
        raise UserError(f"{path}: the header is damaged: voxels are scaled by {slope:g} and shifted by {intercept:g}.")
    return slope, intercept


def _affine(path: Path, header: Any) -> NDArray[np.float64]:
    try:
        return np.asarray(header.get_best_affine(), dtype=np.float64)
    except (HeaderDataError, ValueError) as error:
        raise UserError(f"{path}: the header's affine is absurd ({error}).") from error


def _voxels(path: Path, stream: io.BufferedIOBase, size: int) -> NDArray[np.uint8]:
    """Return the bytes of the voxels; pages of memory are taken only as the file fills them."""
    voxels = np.empty(size, dtype=np.uint8)
    filled = 0
    while count := stream.readinto(voxels.data[filled : filled + _CHUNK]):
        filled += count
    # Reading on to the end makes gzip compare the checksum and the length.
    rest = len(stream.read(_PADDING + 1))
    if filled < size:
        raise UserError(
            f"{path}: the file is cut short or damaged: the header declares {size} bytes of voxels, {filled} are there."
        )
    if rest > _PADDING:
        raise UserError(f"{path}: the file holds more than the {size} bytes of voxels that the header declares.")
    return voxels


def pack_nifti(
    voxels: NDArray[Any],
    affine: NDArray[Any],
    *,
    like: Any = None,
    slope: float | None = None,
    compression: int = _COMPRESSION,
) -> bytes:
    """Return a compressed NIfTI file in millimetres, the same bytes for the same voxels.

    Args:
        voxels: Three axes, written with their own type.
        affine: From voxel indices to right-anterior-superior millimetres.
        like: A NIfTI header whose qform and sform, codes included, are copied exactly.
        slope: The value of a stored 1; default none, which readers take as 1.
        compression: Level of gzip, 1 to 9.
    """
    image = Nifti1Image(voxels, affine)
    image.header.set_xyzt_units("mm")
    image.header.set_qform(affine, code=1)
    image.header.set_sform(affine, code=1)
    if slope is not None:
        image.header.set_slope_inter(slope, 0)
    if like is not None:
        image = Nifti1Image(voxels, None, image.header)  # without an affine, nibabel leaves the header unchanged
        for name in _PLACE:
            image.header[name] = like[name]
        image.header["pixdim"][:4] = like["pixdim"][:4]
    packed = io.BytesIO()
    # Neither a file name nor a time: gzip would store both.
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, compresslevel=compression, mtime=0) as stream:
        image.to_stream(stream)  # plane by plane
    return packed.getvalue()
