"""The part of a grid that matters: most of a fine scan is air, and need not be computed on."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Box = tuple[slice, slice, slice]
Mask = NDArray[np.bool_]

ORDINARY = 256**3
"""Voxels up to which every step sees the whole grid; on finer grids some see the surroundings of the brain only."""


def box_around(mask: Mask, *, margin: Sequence[int] = (0, 0, 0)) -> Box:
    """Return the smallest box that holds a mask and a margin of voxels around it; an empty box for an empty mask.

    >>> box_around(np.pad(np.ones((1, 2, 3), dtype=bool), 4), margin=(0, 1, 9))
    (slice(4, 5, None), slice(3, 7, None), slice(0, 11, None))
    """
    x, y, z = (_span(mask, axis, margin[axis]) for axis in range(3))
    return x, y, z


def is_fine(voxels: NDArray[np.generic]) -> bool:
    """Whether a grid has more voxels than an ordinary scan."""
    return voxels.size > ORDINARY


def working_box(mask: Mask, *, margin: int) -> Box:
    """Return the whole of an ordinary grid, the box around the mask of a finer one.

    Sums that run along a line of voxels depend in their last bits on where the line begins. What is computed on
    ordinary scans does not change with the box.
    """
    if is_fine(mask):
        return box_around(mask, margin=(margin, margin, margin))
    x, y, z = (slice(0, size) for size in mask.shape)
    return x, y, z


def _span(mask: Mask, axis: int, margin: int) -> slice:
    other = tuple({0, 1, 2} - {axis})
    hit = np.flatnonzero(mask.any(axis=other))
    if not len(hit):
        return slice(0, 0)
    return slice(max(0, int(hit[0]) - margin), min(mask.shape[axis], int(hit[-1]) + 1 + margin))
