"""The part of a grid that matters: most of a fine scan is air, and need not be computed on."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Box = tuple[slice, slice, slice]
Mask = NDArray[np.bool_]

ORDINARY = 256**3
"""Voxels up to which every step sees the whole grid; on finer grids some steps see only the box around the brain."""


def box_around(mask: Mask, *, margin: Sequence[int] = (0, 0, 0)) -> Box:
    """Return the smallest box that holds a mask and a margin of voxels around it; an empty box for an empty mask.

    >>> box_around(np.pad(np.ones((1, 2, 3), dtype=bool), 4), margin=(0, 1, 9))
    (slice(4, 5, None), slice(3, 7, None), slice(0, 11, None))
    """
    return _span(mask, 0, margin[0]), _span(mask, 1, margin[1]), _span(mask, 2, margin[2])


def is_fine(voxels: NDArray[np.generic]) -> bool:
    """Whether a grid has more voxels than an ordinary scan."""
    return voxels.size > ORDINARY


def working_box(mask: Mask, *, margin: int) -> Box:
    """Return the whole of an ordinary grid, the box around the mask of a finer one.

    Sums along a line of voxels depend in their last bits on where the line begins. So ordinary grids are never cut:
    results on them do not depend on the box.
    """
    if is_fine(mask):
        return box_around(mask, margin=(margin, margin, margin))
    x, y, z = mask.shape
    return slice(0, x), slice(0, y), slice(0, z)


def _span(mask: Mask, axis: int, margin: int) -> slice:
    extent = extent_along(mask, axis)
    if extent.start == extent.stop:  # a margin around nothing is nothing
        return extent
    return slice(max(0, extent.start - margin), min(mask.shape[axis], extent.stop + margin))


def extent_along(mask: Mask, axis: int) -> slice:
    """Return the indices along an axis from the first to the last that a mask reaches; none for an empty mask."""
    other_axes = tuple({0, 1, 2} - {axis})
    occupied = np.flatnonzero(mask.any(axis=other_axes))
    if not len(occupied):
        return slice(0, 0)
    return slice(int(occupied[0]), int(occupied[-1]) + 1)
