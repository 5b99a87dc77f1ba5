"""The brain of a scan that may be stripped already."""

import numpy as np
from scipy import ndimage

from steelyard.errors import UserError
from steelyard.imaging.predict.options import FindBrain
from steelyard.imaging.preprocess.brain import extract_brain
from steelyard.imaging.scans.boxes import box_around
from steelyard.imaging.scans.volumes import Volume

_PLATEAU = 0.4  # of the voxels: air has noise, what was cut away has one value
# A head whose air was set to zero must not pass for a brain: deepbet copes with a brain, the network not with a head.
_BRAIN_ML = (300.0, 2000.0)


def find_brain(scan: Volume, how: FindBrain) -> tuple[Volume, str]:
    """Return the brain, and `deepbet` or `stripped` by how it was found.

    Raises:
        UserError: There is no brain.
    """
    if how == "skip" or (how == "auto" and is_stripped(scan)):
        return not_background(scan), "stripped"
    return extract_brain(scan), "deepbet"


def is_stripped(scan: Volume) -> bool:
    """Whether the skull is gone: over 40 % of the voxels are of one value, and the rest has the volume of a brain."""
    rest = int(np.count_nonzero(scan.voxels != _background(scan)))
    believable = _BRAIN_ML[0] <= rest * scan.voxel_ml <= _BRAIN_ML[1]
    return believable and rest < (1 - _PLATEAU) * scan.voxels.size


def not_background(scan: Volume) -> Volume:
    """Return everything that does not have the value of the surroundings, holes filled.

    Raises:
        UserError: There is nothing else.
    """
    inside = scan.voxels != _background(scan)
    if not inside.any():
        raise UserError("nothing stands out of its background; there is no brain in it")
    box = box_around(inside)
    inside[box] = ndimage.binary_fill_holes(inside[box])
    return scan.with_voxels(inside)


def _background(scan: Volume) -> float:
    """The most frequent value on the outer faces; where all are equally rare, the lowest."""
    faces = [scan.voxels.take(end, axis=axis).ravel() for axis in range(3) for end in (0, -1)]
    values, counts = np.unique(np.concatenate(faces), return_counts=True)
    return float(values[counts.argmax()])
