"""Measurements of a lesion mask: how many lesions there are, how large, and how much lies beside the ventricles."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from steelyard.imaging.scans.boxes import box_around
from steelyard.imaging.scans.distances import near
from steelyard.imaging.scans.volumes import Volume

PERIVENTRICULAR_MM = 10.0
"""Lesion voxels this close to the lateral ventricles are periventricular.

References: DeCarli et al., Stroke 2005; Griffanti et al., NeuroImage 2018.
"""

_TOUCHING = np.ones((3, 3, 3), dtype=bool)  # voxels that share a face, an edge or a corner: 26 neighbours
_ROUNDING = 1e-6  # of a voxel: a lesion of exactly the smallest volume stays, however the affine rounds


@dataclass(frozen=True, kw_only=True)
class LesionSummary:
    """The lesions of one mask.

    Args:
        mask: The lesions without those that were dropped as too small, on the grid of the input.
        volumes_ml: One for each lesion, the largest first.
        periventricular_ml: Volume within 10 mm of the lateral ventricles; NaN where these are unknown.
        deep_ml: Volume farther away; NaN where the ventricles are unknown.
    """

    mask: Volume
    volumes_ml: tuple[float, ...]
    periventricular_ml: float
    deep_ml: float

    @property
    def count(self) -> int:
        """How many lesions there are."""
        return len(self.volumes_ml)

    @property
    def total_ml(self) -> float:
        """Volume of all lesions."""
        return int(np.count_nonzero(self.mask.voxels)) * self.mask.voxel_ml


def label_lesions(mask: NDArray[np.bool_]) -> tuple[NDArray[np.int32], int]:
    """Number the lesions of a mask from 1, and count them; voxels connect by faces, edges or corners.

    >>> label_lesions(np.eye(3, dtype=bool)[None])[1]
    1
    """
    labels, count = ndimage.label(mask, structure=_TOUCHING)
    return labels, int(count)


def measure_lesions(mask: Volume, *, ventricles: Volume | None, smallest_ml: float = 0.0) -> LesionSummary:
    """Measure the lesions of a mask.

    A voxel is periventricular if its centre lies at most 10 mm from the centre of a voxel of the lateral ventricles;
    a lesion that reaches farther counts in part as periventricular and in part as deep.

    Args:
        mask: Booleans.
        ventricles: The lateral ventricles on the same grid, as booleans; None where they are unknown.
        smallest_ml: Lesions of less volume are dropped.

    Raises:
        ValueError: A mask is not boolean, the two lie on different grids, there is no voxel of ventricle, or the
            smallest volume is negative.
    """
    _check(mask, ventricles, smallest_ml)
    box = box_around(mask.voxels)
    labels, count = label_lesions(mask.voxels[box])
    sizes = np.bincount(labels.ravel(), minlength=count + 1)
    keep = sizes >= smallest_ml / mask.voxel_ml - _ROUNDING
    keep[0] = False  # label 0 is everything else
    cleaned = mask.with_voxels(np.zeros_like(mask.voxels))
    cleaned.voxels[box] = keep[labels]
    volumes = np.sort(sizes[keep])[::-1] * mask.voxel_ml
    periventricular_ml, deep_ml = _split(cleaned, ventricles)
    return LesionSummary(
        mask=cleaned,
        volumes_ml=tuple(volumes.tolist()),
        periventricular_ml=periventricular_ml,
        deep_ml=deep_ml,
    )


def _check(mask: Volume, ventricles: Volume | None, smallest_ml: float) -> None:
    if mask.voxels.dtype != bool or (ventricles is not None and ventricles.voxels.dtype != bool):
        raise ValueError("masks must be boolean.")
    if not 0 <= smallest_ml < math.inf:
        raise ValueError(f"smallest_ml must be at least 0; got {smallest_ml}.")
    if ventricles is None:
        return
    if not mask.same_grid(ventricles):
        raise ValueError("the ventricles must lie on the grid of the lesions.")
    if not ventricles.voxels.any():
        raise ValueError("there is no voxel of ventricle; pass None where the ventricles are unknown.")


def _split(mask: Volume, ventricles: Volume | None) -> tuple[float, float]:
    """Return the volumes within and beyond 10 mm of the ventricles."""
    if ventricles is None:
        return math.nan, math.nan
    total = int(np.count_nonzero(mask.voxels))
    periventricular = int(np.count_nonzero(mask.voxels & near(ventricles, PERIVENTRICULAR_MM)))
    return periventricular * mask.voxel_ml, (total - periventricular) * mask.voxel_ml
