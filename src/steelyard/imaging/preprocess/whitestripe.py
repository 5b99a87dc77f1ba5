"""WhiteStripe intensity normalisation."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from steelyard.errors import UserError
from steelyard.imaging.anatomy.white_stripe import largest_mode, stripe_values
from steelyard.imaging.scans.boxes import Mask, working_box
from steelyard.imaging.scans.distances import deep_inside
from steelyard.imaging.scans.volumes import Volume

_REACH = 2  # voxels: how far away an intensity may lie and still change whether a voxel is even
_FEWEST = 1000  # voxels a histogram must hold to have a peak worth the name


@dataclass(frozen=True)
class Stripe:
    """Normal-appearing white matter as an interval of intensities.

    Args:
        peak: The white matter's most frequent intensity.
        lowest: Where the stripe begins.
        highest: Where it ends.
        mean: Mean of the brain's voxels within.
        deviation: Their standard deviation.
    """

    peak: float
    lowest: float
    highest: float
    mean: float
    deviation: float

    def apply(self, scan: Volume) -> Volume:
        """Return the scan in units of the stripe: white matter at 0, the stripe's deviation 1."""
        voxels = scan.voxels - self.mean
        voxels /= self.deviation
        return scan.with_voxels(voxels.astype(np.float32, copy=False))


def find_stripe(scan: Volume, *, brain: Volume, width: float = 0.05, depth_mm: float = 10.0) -> Stripe:
    """Find the white stripe of a T1 or FLAIR scan.

    The stripe holds the brain's voxels whose rank lies within `width` of the rank of white matter's peak. Deep
    inside the brain white matter is the largest tissue on either contrast, so its peak is the mode of the voxels
    at least `depth_mm` from the brain's surface: one rule for both, with no guess about the order of the tissues.
    Only the third of them where intensity changes least counts; the others hold the voxels in which tissues mix,
    which would draw the peak towards grey matter. Scaling or shifting the input scales and shifts the stripe with it.

    Reference: Shinohara et al., Statistical normalization techniques for magnetic resonance imaging, 2014.
    """
    values = scan.voxels[brain.voxels].astype(np.float64)
    deep = _even_values(scan, brain, deep_inside(brain, depth_mm))
    if len(deep) < _FEWEST:
        raise UserError(
            f"only {len(deep)} even voxels lie {depth_mm:g} mm inside the brain; WhiteStripe needs {_FEWEST}"
        )
    peak = largest_mode(deep)
    inside = stripe_values(values, peak, width=width)
    deviation = float(inside.std())
    if not deviation > 0:
        raise UserError("the white stripe has no spread; the intensities are too coarse to normalise")
    return Stripe(peak, float(inside.min()), float(inside.max()), float(inside.mean()), deviation)


def _even_values(scan: Volume, brain: Volume, region: Mask) -> NDArray[np.float64]:
    """The intensities in the third of a region where they change least."""
    box = working_box(brain.voxels, margin=_REACH)
    voxels = scan.voxels[box].astype(np.float64)
    return np.asarray(voxels[_even_third(voxels, region[box], scan.spacing)])


def _even_third(voxels: NDArray[np.float64], region: Mask, spacing: tuple[float, float, float]) -> Mask:
    """The third of a region where intensity changes least, along the axes that the scan resolves well."""
    if not region.any():
        return region
    fine = [axis for axis in range(3) if spacing[axis] <= 1.5 * min(spacing)]
    slope = np.zeros(voxels.shape)
    for axis in fine:
        change = ndimage.correlate1d(voxels, [-1.0, 0.0, 1.0], axis=axis)
        slope += np.square(change, out=change)
    np.sqrt(slope, out=slope)
    ndimage.uniform_filter(slope, [3 if axis in fine else 1 for axis in range(3)], output=slope)
    return region & (slope <= np.quantile(slope[region], 1 / 3))
