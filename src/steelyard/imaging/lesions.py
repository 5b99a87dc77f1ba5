"""The lesions of a mask, one by one: how large, and whether they lie by the ventricles or deep in the white matter."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from steelyard.imaging.volumes import Volume

PERIVENTRICULAR_MM = 10.0
"""Within this distance of the lateral ventricles a voxel is periventricular (DeCarli 2005; Griffanti 2018)."""

_TOUCHING = np.ones((3, 3, 3), dtype=bool)  # voxels that share a face, an edge or a corner: 26 neighbours


@dataclass(frozen=True, kw_only=True)
class Lesion:
    """One lesion.

    Args:
        volume_ml: Its volume.
        periventricular_ml: The part within 10 mm of the lateral ventricles; NaN if these are unknown.
    """

    volume_ml: float
    periventricular_ml: float

    @property
    def deep_ml(self) -> float:
        """The part farther from the ventricles; NaN if these are unknown."""
        return self.volume_ml - self.periventricular_ml

    @property
    def place(self) -> str:
        """`periventricular` if at least half of it is, else `deep`; `unknown` without ventricles."""
        if math.isnan(self.periventricular_ml):
            return "unknown"
        return "periventricular" if self.periventricular_ml >= self.deep_ml else "deep"


@dataclass(frozen=True, kw_only=True)
class Lesions:
    """The lesions of a scan.

    Args:
        mask: Their voxels, without what was too small.
        table: The lesions, largest first.
    """

    mask: Volume
    table: tuple[Lesion, ...]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.table)

    @property
    def volumes(self) -> tuple[float, ...]:
        """Their volumes in ml, largest first."""
        return tuple(lesion.volume_ml for lesion in self.table)

    @property
    def total_ml(self) -> float:
        """The volume of all."""
        return sum(self.volumes)

    @property
    def periventricular_ml(self) -> float:
        """The volume within 10 mm of the lateral ventricles, voxel by voxel; NaN if these are unknown."""
        return sum(lesion.periventricular_ml for lesion in self.table)

    @property
    def deep_ml(self) -> float:
        """The rest of the volume; NaN if the ventricles are unknown."""
        return sum(lesion.deep_ml for lesion in self.table)


def find_lesions(mask: Volume, *, ventricles: Volume | None = None, smallest_ml: float = 0.0) -> Lesions:
    """Take a mask apart into lesions: what hangs together by faces, edges or corners (26 neighbours).

    Args:
        mask: Of the hyperintensities.
        ventricles: Mask of the lateral ventricles on the same grid, if known.
        smallest_ml: Smaller lesions are dropped.

    Raises:
        ValueError: The grids differ, the ventricles are empty, or the smallest volume is negative.

    >>> voxels = np.zeros((9, 9, 9), dtype=bool)
    >>> voxels[1:3, 1:3, 1:3] = voxels[6, 6, 6] = True
    >>> found = find_lesions(Volume(voxels, np.diag([5.0, 5.0, 5.0, 1.0])))
    >>> found.count, round(found.total_ml, 3)
    (2, 1.125)
    """
    if not smallest_ml >= 0:
        raise ValueError(f"smallest_ml must not be negative; got {smallest_ml}.")
    voxels = mask.voxels.astype(bool)
    labels, count = ndimage.label(voxels, structure=_TOUCHING)
    sizes = np.bincount(labels.ravel(), minlength=count + 1)
    kept = sizes * mask.voxel_ml >= smallest_ml * (1 - 1e-9)  # a lesion of just that size stays, rounding or not
    kept[0] = False
    near = np.full(count + 1, math.nan)
    if ventricles is not None:
        near = np.bincount(labels[_periventricular(mask, voxels, ventricles)], minlength=count + 1).astype(np.float64)
    order = [label for label in np.argsort(-sizes, kind="stable") if kept[label]]
    table = (
        Lesion(volume_ml=float(sizes[k]) * mask.voxel_ml, periventricular_ml=float(near[k]) * mask.voxel_ml)
        for k in order
    )
    return Lesions(mask=mask.with_voxels(kept[labels]), table=tuple(table))


def _periventricular(mask: Volume, voxels: NDArray[np.bool_], ventricles: Volume) -> NDArray[np.bool_]:
    """Return the lesions' voxels within reach of the ventricles, from centre to centre."""
    if not mask.same_grid(ventricles):
        raise ValueError("mask and ventricles must share one grid.")
    fluid = ventricles.voxels.astype(bool)
    if not fluid.any():
        raise ValueError("the mask of the ventricles is empty; pass None if they are unknown.")
    box = ndimage.find_objects((voxels | fluid).astype(np.uint8))[0]
    near = np.zeros(voxels.shape, dtype=bool)
    near[box] = ndimage.distance_transform_edt(~fluid[box], sampling=mask.spacing) <= PERIVENTRICULAR_MM
    return near & voxels
