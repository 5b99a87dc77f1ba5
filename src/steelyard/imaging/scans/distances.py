"""Distances of voxels from a mask, centre to centre, computed in little memory."""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from steelyard.imaging.scans.boxes import Mask, box_around
from steelyard.imaging.scans.volumes import Volume

_PLANES_AT_A_TIME = 16  # of float64 distances


def near(mask: Volume, reach_mm: float) -> Mask:
    """Return the voxels that have a voxel of the mask within `reach_mm`."""
    # Beyond this box every voxel is farther away.
    margin = [math.ceil(reach_mm / edge) + 1 for edge in mask.spacing]
    box = box_around(mask.voxels, margin=margin)
    inside = np.zeros(mask.voxels.shape, dtype=bool)
    part = inside[box]  # a view: what is written here is written into `inside`
    for planes, distances in _distances(~mask.voxels[box], mask.spacing):
        part[planes] = distances <= reach_mm
    return inside


def deep_inside(mask: Volume, depth_mm: float) -> Mask:
    """Return the voxels of the mask at least `depth_mm` from all that is outside it; beyond the grid is outside."""
    box = box_around(mask.voxels)
    # One voxel of rim is enough: whatever lies outside the mask, a voxel of the rim lies nearer.
    padded = np.pad(mask.voxels[box], 1)
    deep = np.zeros_like(padded)
    for planes, distances in _distances(padded, mask.spacing):
        deep[planes] = distances >= depth_mm
    inside = np.zeros(mask.voxels.shape, dtype=bool)
    inside[box] = deep[1:-1, 1:-1, 1:-1]
    inside &= mask.voxels
    return inside


def _distances(region: Mask, spacing: tuple[float, float, float]) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yield, some planes at a time, the distance in mm of each voxel of a region from the nearest outside it.

    The same numbers as from `scipy.ndimage.distance_transform_edt`. That takes 48 bytes for each voxel; this takes 12.
    """
    if not region.size:
        return
    # For each voxel the indices of the nearest one outside: 3 × x × y × z, as 32-bit integers.
    nearest = ndimage.distance_transform_edt(region, sampling=spacing, return_distances=False, return_indices=True)
    x, y, z = np.ogrid[: region.shape[0], : region.shape[1], : region.shape[2]]
    for start in range(0, len(region), _PLANES_AT_A_TIME):
        planes = slice(start, min(start + _PLANES_AT_A_TIME, len(region)))
        squares = np.zeros(region[planes].shape)
        for axis, own in enumerate((x[planes], y, z)):
            steps = (nearest[axis, planes] - own) * spacing[axis]
            squares += steps * steps
        yield planes, np.sqrt(squares)
