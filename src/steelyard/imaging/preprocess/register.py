"""Rigid alignment of T1 to FLAIR by mutual information."""

from dataclasses import dataclass

import numpy as np
import SimpleITK as sitk
from numpy.typing import NDArray

from steelyard.imaging.scans.grids import mean_displacement, to_image, to_matrix
from steelyard.imaging.scans.volumes import Volume

_MARGIN_MM = 5.0  # the rim of the brain, where the skull's dark line and the cortex give the contrast
_FAR_MM = 20.0  # brains further apart than this do not overlap enough to start from the headers
_BINS = 64


@dataclass(frozen=True)
class _Level:
    """One resolution: isotropic spacing and smoothing in mm, share of voxels sampled, first step in mm."""

    spacing: float
    sigma: float
    share: float
    step: float
    whole_head: bool


_LEVELS = (
    _Level(spacing=4.0, sigma=4.0, share=0.5, step=1.0, whole_head=True),
    _Level(spacing=2.0, sigma=1.0, share=0.3, step=0.5, whole_head=False),
    _Level(spacing=1.5, sigma=0.0, share=0.3, step=0.25, whole_head=False),
)


@dataclass(frozen=True)
class Alignment:
    """How T1 was brought to FLAIR.

    Args:
        matrix: 4×4, from FLAIR's points to T1's, in right-anterior-superior millimetres.
        moved_mm: Mean distance over the brain between this and the headers' own geometry.
        information: Mutual information at the end, in nats; higher is better.
        kept: Whether T1 was found to lie right already, so that its voxels were left untouched.
    """

    matrix: NDArray[np.float64]
    moved_mm: float
    information: float | None
    kept: bool


def align(flair: Volume, t1: Volume, *, brain: Volume, t1_brain: Volume | None = None) -> Alignment:
    """Find the rigid motion that brings T1 onto FLAIR.

    The whole head at 4 mm gives the first guess; the brain and a rim of 5 mm around it decide at 2 mm and 1.5 mm.
    The search starts from the headers' geometry, or with brain on brain where the headers leave them far apart.

    Args:
        flair: The scan that stays.
        t1: The scan that moves.
        brain: Brain mask on FLAIR's grid.
        t1_brain: Brain mask on T1's own grid, if known.

    Reference: Mattes et al., PET-CT image registration in the chest using free-form deformations, 2003.
    """
    fixed, moving = _clipped(flair), _clipped(t1)
    region = _rim(brain)
    transform = sitk.Euler3DTransform()
    transform.SetCenter(_middle(brain).tolist())
    apart = np.zeros(3) if t1_brain is None else _middle(t1_brain) - _middle(brain)
    if np.linalg.norm(apart) > _FAR_MM:
        transform.SetTranslation(apart.tolist())
    information = 0.0
    for level in _LEVELS:
        information = -_refine(transform, fixed, moving, level, region=region)
    matrix = to_matrix(transform)
    return Alignment(matrix, mean_displacement(matrix, np.eye(4), brain), information, kept=False)


def keep_if_aligned(found: Alignment, *, one_grid: bool, tolerance_mm: float) -> Alignment:
    """Return the identity if T1 lay on FLAIR's grid and was off by no more than the tolerance."""
    if one_grid and found.moved_mm <= tolerance_mm:
        return Alignment(np.eye(4), found.moved_mm, found.information, kept=True)
    return found


def _refine(
    transform: sitk.Euler3DTransform,
    fixed: sitk.Image,
    moving: sitk.Image,
    level: _Level,
    *,
    region: sitk.Image,
) -> float:
    """Improve the transform in place at one resolution and return the metric."""
    if not level.whole_head:
        fixed, region = _cropped(fixed, region), _cropped(region, region)
    method = sitk.ImageRegistrationMethod()
    method.SetMetricAsMattesMutualInformation(_BINS)
    method.SetMetricSamplingStrategy(method.RANDOM)
    method.SetMetricSamplingPercentage(level.share, seed=7)
    method.SetInterpolator(sitk.sitkLinear)
    method.SetOptimizerAsRegularStepGradientDescent(
        level.step, 1e-3, 100, relaxationFactor=0.7, gradientMagnitudeTolerance=1e-8
    )
    method.SetOptimizerScalesFromPhysicalShift()
    if not level.whole_head:
        method.SetMetricFixedMask(_isotropic(region, level.spacing, sigma=0.0))
    method.SetInitialTransform(transform, inPlace=True)
    method.Execute(
        _isotropic(fixed, level.spacing, sigma=level.sigma),
        _isotropic(moving, level.spacing, sigma=level.sigma),
    )
    return float(method.GetMetricValue())


def _clipped(volume: Volume) -> sitk.Image:
    """Keep a few bright voxels from taking most of the histogram's bins."""
    voxels = volume.voxels
    lowest = float(np.percentile(voxels, 1))
    highest = float(np.percentile(voxels[voxels > voxels.mean()], 99))
    return sitk.Clamp(to_image(volume), sitk.sitkFloat32, lowest, highest)


def _rim(brain: Volume) -> sitk.Image:
    radius = [max(1, round(_MARGIN_MM / edge)) for edge in brain.spacing]
    return sitk.BinaryDilate(to_image(brain), radius)


def _middle(mask: Volume) -> NDArray[np.float64]:
    """Return the centre of mass of a mask, in ITK's left-posterior-superior millimetres."""
    index = np.append(np.argwhere(mask.voxels).mean(axis=0), 1.0)
    return np.asarray((mask.affine @ index)[:3] * (-1.0, -1.0, 1.0))


def _cropped(image: sitk.Image, region: sitk.Image) -> sitk.Image:
    """Return the image within the box around the region."""
    shape = sitk.LabelShapeStatisticsImageFilter()
    shape.Execute(region)
    box = shape.GetBoundingBox(1)
    return sitk.RegionOfInterest(image, box[3:], box[:3])


def _isotropic(image: sitk.Image, spacing: float, *, sigma: float) -> sitk.Image:
    """Smooth, then resample to cubes; a mask stays a mask."""
    if sigma:
        image = sitk.SmoothingRecursiveGaussian(image, [sigma] * 3)
    edges = np.array(image.GetSpacing())
    size = np.maximum(1, np.round(np.array(image.GetSize()) * edges / spacing)).astype(int)
    direction = np.array(image.GetDirection()).reshape(3, 3)
    origin = np.array(image.GetOrigin()) + direction @ ((spacing - edges) / 2)
    is_mask = image.GetPixelID() == sitk.sitkUInt8
    return sitk.Resample(
        image,
        size.tolist(),
        sitk.Transform(3, sitk.sitkIdentity),
        sitk.sitkNearestNeighbor if is_mask else sitk.sitkBSpline,
        origin.tolist(),
        [spacing] * 3,
        image.GetDirection(),
    )
