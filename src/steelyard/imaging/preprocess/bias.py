"""N4 bias field correction."""

from dataclasses import dataclass

import numpy as np
import SimpleITK as sitk
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline

from steelyard.imaging.scans.boxes import is_fine
from steelyard.imaging.scans.grids import from_image, to_image
from steelyard.imaging.scans.volumes import Volume

_WORKING_MM = 4.0  # the field is smooth: it is fitted on voxels about this large
_ITERATIONS = (50, 50, 50)
_CONVERGENCE = 1e-3
_PIECES = 2 ** (len(_ITERATIONS) - 1)  # of the spline along each axis
_SAMPLES = 4 * _PIECES + 1  # of the field along each axis of a fine grid
_DARKEST = 0.4  # voxels below this share of the median (liquor, air) carry no information about the field


@dataclass(frozen=True)
class Correction:
    """A scan without its bias field.

    Args:
        scan: The corrected scan.
        field: The bias field, on the same grid; its geometric mean over the brain is 1.
    """

    scan: Volume
    field: NDArray[np.float32]


def correct_bias(scan: Volume, *, brain: Volume) -> Correction:
    """Estimate the bias field within the brain by N4 and divide it out of the whole scan.

    Args:
        scan: Intensities of any scale; voxels that are not positive do not take part in the fit.
        brain: Brain mask on the scan's grid.

    Reference: Tustison et al., N4ITK: improved N3 bias correction, 2010.
    """
    inside = brain.voxels
    values = scan.voxels[inside]
    median = float(np.median(values))
    highest = float(np.percentile(values, 99.5))
    bright = inside & (scan.voxels > _DARKEST * median)
    if median <= 0 or not bright.any():
        return Correction(scan, np.ones(scan.voxels.shape, dtype=np.float32))
    clipped = np.clip(scan.voxels, 0.1 * median, highest)
    # The logarithm becomes the field in place: a fine scan takes gigabytes.
    field = _log_field(scan.with_voxels(clipped), scan.with_voxels(bright))
    field -= field[inside].mean()
    np.exp(field, out=field)
    corrected = (scan.voxels / field).astype(np.float32, copy=False)
    return Correction(scan.with_voxels(corrected), field)


def _log_field(scan: Volume, region: Volume) -> NDArray[np.float32]:
    """Fit N4 on coarse voxels of a region and return the logarithm of its field on the scan's grid."""
    shrink = [max(1, round(_WORKING_MM / edge)) for edge in scan.spacing]
    image = to_image(scan)
    n4 = sitk.N4BiasFieldCorrectionImageFilter()
    n4.SetMaximumNumberOfIterations(list(_ITERATIONS))
    n4.SetConvergenceThreshold(_CONVERGENCE)
    n4.Execute(sitk.Shrink(image, shrink), sitk.Shrink(to_image(region), shrink))
    if is_fine(scan.voxels):
        return _interpolated(n4, scan)
    voxels: NDArray[np.float32] = from_image(n4.GetLogBiasFieldAsImage(image), scan).voxels
    return voxels


def _interpolated(n4: sitk.N4BiasFieldCorrectionImageFilter, scan: Volume) -> NDArray[np.float32]:
    """Return the logarithm of the field on a fine grid, where N4 would take minutes to evaluate it.

    N4's field is a cubic spline of four pieces along each axis (one piece, twice as many at each further level).
    It spans the reference image from the first voxel to the last, whatever the size of its voxels. So a few samples
    that include the ends of the pieces determine it, and interpolation by cubic splines restores it.
    """
    coarse = sitk.Image([_SAMPLES] * 3, sitk.sitkFloat32)
    samples = from_image(n4.GetLogBiasFieldAsImage(coarse), scan).voxels
    along_x, along_y, along_z = map(_interpolation, scan.voxels.shape)
    # Indices: a, b, c of samples; y of voxels. First y, then z, then x plane by plane, which bounds the memory.
    columns = np.einsum("abc,yb->ayc", samples, along_y) @ along_z.T
    voxels = np.empty(scan.voxels.shape, dtype=np.float32)
    for index, weights in enumerate(along_x):
        voxels[index] = np.tensordot(weights, columns, axes=1)
    return voxels


def _interpolation(size: int) -> NDArray[np.float64]:
    """Return the matrix from evenly spaced samples to `size` voxels; the first and the last positions coincide."""
    spline = CubicSpline(np.linspace(0.0, 1.0, _SAMPLES), np.eye(_SAMPLES))
    return np.asarray(spline(np.linspace(0.0, 1.0, size)))
