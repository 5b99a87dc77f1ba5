"""Scans and masks as checked volumes: every fault of their files is reported here."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from numpy.typing import NDArray

from steelyard.errors import UserError
from steelyard.imaging.scans.nifti import MOST_VOXELS, read_stored

_VOXEL_MM = (0.1, 30.0)  # smallest and largest believable edge of a voxel
_EXTENT_MM = (20.0, 1000.0)  # smallest and largest believable field of view
_SHEAR = 0.05  # largest believable cosine between two axes of a grid
_SAME_GRID_MM = 1e-2  # headers round; two grids whose corners lie this close are one


@dataclass(frozen=True)
class Volume:
    """Voxels and where they lie.

    Args:
        voxels: Three axes.
        affine: 4×4, from voxel indices to right-anterior-superior millimetres.
    """

    voxels: NDArray[Any]
    affine: NDArray[np.float64]

    @cached_property
    def spacing(self) -> tuple[float, float, float]:
        """The edges of a voxel in mm."""
        edges = np.linalg.norm(self.affine[:3, :3], axis=0)
        return float(edges[0]), float(edges[1]), float(edges[2])

    @cached_property
    def voxel_ml(self) -> float:
        """The volume of a voxel in ml."""
        return float(abs(np.linalg.det(self.affine[:3, :3]))) / 1000.0

    def same_grid(self, other: "Volume") -> bool:
        """Whether two volumes share one grid, up to the rounding of headers."""
        if self.voxels.shape != other.voxels.shape:
            return False
        # The eight corners of the grid, with a fourth coordinate of 1 for the affine.
        corners = np.array(list(np.ndindex(2, 2, 2))) * self.voxels.shape
        corners = np.c_[corners, np.ones(8)]
        shifts = corners @ (self.affine - other.affine).T
        return bool(np.linalg.norm(shifts, axis=1).max() < _SAME_GRID_MM)

    def with_voxels(self, voxels: NDArray[Any]) -> "Volume":
        """Return other voxels on the same grid."""
        return Volume(voxels, self.affine)


def read_scan(path: Path, *, most_voxels: int = MOST_VOXELS) -> Volume:
    """Read a scan as 32-bit floats.

    Args:
        path: The NIfTI file.
        most_voxels: A larger scan is refused before memory is taken for it.

    Raises:
        UserError: The file is unreadable, not three-dimensional, without contrast or without a believable place.
    """
    stored = read_stored(path, most_voxels=most_voxels)
    _check_affine(path, stored.affine, stored.voxels.shape)
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large for 32 bits is counted below
        voxels = stored.floats()
    bad = voxels.size - int(np.count_nonzero(np.isfinite(voxels)))
    if bad:
        raise UserError(f"{path}: {bad} of {voxels.size} voxels are NaN or infinite.")
    if voxels.min() == voxels.max():
        raise UserError(f"{path}: every voxel is {voxels.flat[0]:g}; there is no image.")
    return Volume(voxels, stored.affine)


def read_mask(path: Path, *, may_be_empty: bool = False, most_voxels: int = MOST_VOXELS) -> Volume:
    """Read a mask of zeros and one other value as booleans.

    Args:
        path: The NIfTI file.
        may_be_empty: Whether zeros alone are accepted.
        most_voxels: A larger mask is refused before memory is taken for it.

    Raises:
        UserError: The file is unreadable, not three-dimensional, holds further values, or is empty and must not be.
    """
    stored = read_stored(path, most_voxels=most_voxels)
    _check_affine(path, stored.affine, stored.voxels.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        voxels = stored.values()
    inside = voxels != 0
    others = voxels[inside]
    if others.size and not (np.isfinite(others[0]) and (others == others[0]).all()):
        values = np.unique(voxels)
        examples = ", ".join(f"{value:g}" for value in values[:5])
        more = ", …" if len(values) > 5 else ""
        raise UserError(f"{path}: a mask holds 0 and one other value; this holds {examples}{more}.")
    if not may_be_empty and not others.size:
        raise UserError(f"{path}: the mask is empty.")
    return Volume(inside, stored.affine)


@np.errstate(over="ignore", invalid="ignore")  # lengths that are too large for a number are refused as infinite
def _check_affine(path: Path, affine: NDArray[np.float64], shape: tuple[int, ...]) -> None:
    if not np.isfinite(affine).all() or abs(np.linalg.det(affine[:3, :3])) < 1e-9:
        raise UserError(f"{path}: the header's affine is zero, singular or not finite.")
    edges = np.linalg.norm(affine[:3, :3], axis=0)
    extent = edges * shape
    if edges.min() < _VOXEL_MM[0] or edges.max() > _VOXEL_MM[1]:
        raise UserError(f"{path}: voxels of {_millimetres(edges)} mm cannot be right; the affine is absurd.")
    if extent.min() < _EXTENT_MM[0] or extent.max() > _EXTENT_MM[1]:
        raise UserError(f"{path}: a field of view of {_millimetres(extent)} mm cannot be right.")
    directions = affine[:3, :3] / edges
    cosines = np.abs(directions.T @ directions - np.eye(3))
    if cosines.max() > _SHEAR:
        raise UserError(f"{path}: the axes of the grid are not at right angles; the affine is absurd.")
    if np.abs(affine[:3, 3]).max() > 2 * _EXTENT_MM[1]:
        raise UserError(f"{path}: the grid lies metres from the scanner's centre; the affine is absurd.")


def _millimetres(values: NDArray[np.float64]) -> str:
    return "×".join(f"{value:.3g}" for value in values)


def canonical(volume: Volume) -> Volume:
    """Return the volume with its axes flipped and swapped so that they run right, anterior, superior."""
    orientation = nibabel.orientations.io_orientation(volume.affine)
    to_original = nibabel.orientations.inv_ornt_aff(orientation, volume.voxels.shape)
    voxels = nibabel.orientations.apply_orientation(volume.voxels, orientation)
    return Volume(np.ascontiguousarray(voxels), volume.affine @ to_original)


def turned_back(voxels: NDArray[Any], like: Volume) -> Volume:
    """Undo `canonical`: return voxels on the grid of `canonical(like)` on the grid of `like` itself."""
    canonical_axes = nibabel.orientations.axcodes2ornt("RAS")
    axes = nibabel.orientations.io_orientation(like.affine)
    transform = nibabel.orientations.ornt_transform(canonical_axes, axes)
    return like.with_voxels(np.ascontiguousarray(nibabel.orientations.apply_orientation(voxels, transform)))
