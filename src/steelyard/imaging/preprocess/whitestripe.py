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

_MARGIN = 2  # voxels: the slope filter (1) and the mean filter (1) look no further
_FEWEST_VOXELS = 1000  # a histogram of fewer has no reliable peak
_FINE_AXIS = 1.5  # an axis is resolved well if its spacing is at most this times the smallest spacing


@dataclass(frozen=True)
class Stripe:
    """Normal-appearing white matter as an interval of intensities.

    Args:
        peak: The white matter's most frequent intensity.
        lowest: Lower end of the stripe.
        highest: Upper end of the stripe.
        mean: Mean of the brain's voxels within the stripe.
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

    The stripe holds the brain's voxels whose rank lies within `width` of the rank of white matter's peak. The peak is
    the mode of the voxels at least `depth_mm` from the brain's surface. White matter is the largest tissue there on
    either contrast, so one rule serves both.

    Only the third of these voxels counts where intensity changes least. The other two thirds hold voxels in which
    tissues mix; they would draw the peak towards grey matter. The stripe is scaled and shifted with the input.

    Raises:
        UserError: Too few voxels lie deep inside the brain, or all of the stripe has one intensity.

    Reference: Shinohara et al., Statistical normalization techniques for magnetic resonance imaging, 2014.
    """
    brain_values = scan.voxels[brain.voxels].astype(np.float64)
    deep_values = _even_values(scan, brain, deep_inside(brain, depth_mm))
    if len(deep_values) < _FEWEST_VOXELS:
        raise UserError(
            f"only {len(deep_values)} even voxels lie {depth_mm:g} mm inside the brain; "
            f"WhiteStripe needs {_FEWEST_VOXELS}"
        )
    peak = largest_mode(deep_values)
    inside = stripe_values(brain_values, peak, width=width)
    deviation = float(inside.std())
    if not deviation > 0:
        raise UserError("the white stripe has no spread; the intensities are too coarse to normalise")
    return Stripe(peak, float(inside.min()), float(inside.max()), float(inside.mean()), deviation)


def _even_values(scan: Volume, brain: Volume, region: Mask) -> NDArray[np.float64]:
    """Return the intensities in the third of a region where they change least."""
    box = working_box(brain.voxels, margin=_MARGIN)
    voxels = scan.voxels[box].astype(np.float64)
    return np.asarray(voxels[_even_third(voxels, region[box], scan.spacing)])


def _even_third(voxels: NDArray[np.float64], region: Mask, spacing: tuple[float, float, float]) -> Mask:
    """Return the third of a region where intensity changes least, along the axes that the scan resolves well."""
    if not region.any():
        return region
    filter_size = [1, 1, 1]
    slope = np.zeros(voxels.shape)
    for axis in range(3):
        if spacing[axis] <= _FINE_AXIS * min(spacing):
            filter_size[axis] = 3
            change = ndimage.correlate1d(voxels, [-1.0, 0.0, 1.0], axis=axis)
            slope += np.square(change, out=change)  # in place: a fine scan takes gigabytes
    np.sqrt(slope, out=slope)
    ndimage.uniform_filter(slope, filter_size, output=slope)
    return region & (slope <= np.quantile(slope[region], 1 / 3))
