"""What of a scan is background: one rule for each state in which a scan may arrive.

The rules differ on purpose, because the background does:

- A scan that some other tool stripped has one value around the brain. It may be any value: 0, or far below 0 once the
  scan was normalised. `is_stripped` and `stripped_brain` look for that value on the outer faces of the grid.
- A whole head has noise around it, unless the scanner cut it off. `head_foreground` separates the head from it.
- A scan that steelyard preprocessed has exact zeros around the brain. `has_zero_background` tells.
"""

import numpy as np
import SimpleITK as sitk
from scipy import ndimage

from steelyard.errors import UserError
from steelyard.imaging.scans.boxes import box_around
from steelyard.imaging.scans.grids import from_image, to_image
from steelyard.imaging.scans.volumes import Volume

# Shares of the voxels that have the value of the background. Stripping cuts away more than the air around a head.
_STRIPPED_SHARE = 0.4
_CUT_OFF_AIR_SHARE = 0.2
_ZERO_SHARE = 0.2

# A head whose air was set to zero must not pass for a brain: deepbet copes with a brain, the network not with a head.
_BRAIN_ML = (300.0, 2000.0)


def is_stripped(scan: Volume) -> bool:
    """Whether the skull is gone: over 40 % of the voxels are of one value, and the rest has the volume of a brain."""
    rest = int(np.count_nonzero(scan.voxels != _border_value(scan)))
    smallest, largest = _BRAIN_ML
    is_brain_sized = smallest <= rest * scan.voxel_ml <= largest
    return is_brain_sized and rest < (1 - _STRIPPED_SHARE) * scan.voxels.size


def stripped_brain(scan: Volume) -> Volume:
    """Return the brain of a stripped scan: everything that has not the value of the surroundings, holes filled.

    Raises:
        UserError: Every voxel has that value.
    """
    inside = scan.voxels != _border_value(scan)
    if not inside.any():
        raise UserError("nothing stands out of its background; there is no brain in it")
    box = box_around(inside)
    inside[box] = ndimage.binary_fill_holes(inside[box])
    return scan.with_voxels(inside)


def head_foreground(scan: Volume) -> Volume:
    """Return the head: above the lowest value where many voxels have it, otherwise above Otsu's threshold."""
    lowest = scan.voxels.min()
    if np.mean(scan.voxels == lowest) > _CUT_OFF_AIR_SHARE:
        return scan.with_voxels(scan.voxels > lowest)
    above_threshold = sitk.OtsuThreshold(to_image(scan), 0, 1)  # 0 below the threshold, 1 above
    return scan.with_voxels(from_image(above_threshold, scan).voxels != 0)


def has_zero_background(scan: Volume) -> bool:
    """Whether at least a fifth of the voxels are 0, as in every scan that steelyard preprocessed."""
    return bool(np.mean(scan.voxels == 0) >= _ZERO_SHARE)


def _border_value(scan: Volume) -> float:
    """Return the most frequent value on the outer faces; where all are equally rare, the lowest."""
    faces = []
    for axis in range(3):
        for end in (0, -1):
            faces.append(scan.voxels.take(end, axis=axis).ravel())
    values, counts = np.unique(np.concatenate(faces), return_counts=True)
    return float(values[counts.argmax()])
