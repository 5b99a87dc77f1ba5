"""Rigid alignment of T1 to FLAIR by mutual information, and whether both are of one head."""

from dataclasses import dataclass

import numpy as np
import SimpleITK as sitk
from numpy.typing import NDArray

from steelyard.errors import UserError
from steelyard.imaging.preprocess.settings import Settings
from steelyard.imaging.scans.grids import mean_displacement, to_image, to_matrix
from steelyard.imaging.scans.volumes import Volume

_MARGIN_MM = 5.0  # the rim around the brain, where the skull's dark line and the cortex give the contrast
_FAR_MM = 20.0  # brains further apart than this do not overlap enough to start from the headers
_BINS = 64  # of the histogram from which mutual information is computed

# Once aligned, twelve real pairs and the phantoms share 0.45 nats and more and their brains overlap by 0.969 and more;
# T1 and FLAIR of different people shared 0.10 to 0.17 (real) or 0.33 (phantom) and overlapped by 0.82 to 0.95.
_LEAST_INFORMATION = 0.2
_LEAST_OVERLAP = 0.85
_LITTLE_INFORMATION, _LITTLE_OVERLAP = 0.4, 0.96  # a pair of one head may be below either, but not below both
_SAME_IMAGE = 0.995  # correlation within the brain; T1 and FLAIR of one head are far below


class DifferentHeadsError(UserError):
    """T1 and FLAIR cannot be of the same head."""


@dataclass(frozen=True)
class _Level:
    """One resolution of the registration.

    Args:
        spacing: Edge of the cubic voxels, in mm.
        sigma: Of the Gaussian smoothing, in mm.
        share: Of the voxels that are sampled.
        step: The optimizer's first step, in mm.
        whole_head: Whether the metric sees the whole head, or the brain and its rim.
    """

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
        information: Mutual information at the end, in nats; higher is better. None if nothing was registered.
        unchanged: Whether T1 was aligned already, on FLAIR's grid, so that its voxels were left unchanged.
    """

    matrix: NDArray[np.float64]
    moved_mm: float
    information: float | None
    unchanged: bool


def find_alignment(
    flair: Volume, t1: Volume, *, brain: Volume, t1_brain: Volume | None, settings: Settings
) -> Alignment:
    """Return how T1 is brought to FLAIR: by registration, or by the headers with `align="skip"`.

    The other arguments are those of `align`.
    """
    one_grid = flair.same_grid(t1)
    if settings.align == "skip":
        return Alignment(np.eye(4), 0.0, None, unchanged=one_grid)
    alignment = align(flair, t1, brain=brain, t1_brain=t1_brain)
    if settings.align == "auto":
        alignment = identity_if_aligned(alignment, one_grid=one_grid, tolerance_mm=settings.aligned_mm)
    return alignment


def align(flair: Volume, t1: Volume, *, brain: Volume, t1_brain: Volume | None = None) -> Alignment:
    """Find the rigid motion that brings T1 onto FLAIR.

    The whole head at 4 mm gives the first guess; the brain and a rim of 5 mm around it decide at 2 mm and 1.5 mm.
    The search starts from the headers' geometry, or with brain on brain where the headers leave them far apart.

    Args:
        flair: The scan that stays.
        t1: The scan that moves.
        brain: Brain mask on FLAIR's grid.
        t1_brain: Brain mask on T1's own grid, if there is one.

    Raises:
        DifferentHeadsError: The scans do not overlap.

    Reference: Mattes et al., PET-CT image registration in the chest using free-form deformations, 2003.
    """
    fixed, moving = _clipped(flair), _clipped(t1)
    region = _with_rim(brain)
    transform = sitk.Euler3DTransform()
    transform.SetCenter(_centre_of_mass(brain).tolist())
    if t1_brain is not None:
        offset = _centre_of_mass(t1_brain) - _centre_of_mass(brain)
        if np.linalg.norm(offset) > _FAR_MM:
            transform.SetTranslation(offset.tolist())
    information = 0.0
    for level in _LEVELS:
        try:
            # SimpleITK minimises, so its metric is the negative mutual information.
            information = -_refine(transform, fixed, moving, level, region=region)
        except RuntimeError as error:
            raise DifferentHeadsError("they do not overlap") from error
    matrix = to_matrix(transform)
    return Alignment(matrix, mean_displacement(matrix, np.eye(4), brain), information, unchanged=False)


def identity_if_aligned(alignment: Alignment, *, one_grid: bool, tolerance_mm: float) -> Alignment:
    """Return the identity if T1 lies on FLAIR's grid and is off by no more than the tolerance."""
    if one_grid and alignment.moved_mm <= tolerance_mm:
        return Alignment(np.eye(4), alignment.moved_mm, alignment.information, unchanged=True)
    return alignment


def is_same_image(flair: Volume, t1: Volume, brain: Volume) -> bool:
    """Whether two scans on one grid show the same image, up to brightness and contrast."""
    inside = brain.voxels
    with np.errstate(invalid="ignore"):  # the correlation with a constant scan is NaN
        correlation = np.corrcoef(flair.voxels[inside], t1.voxels[inside])[0, 1]
    return bool(correlation > _SAME_IMAGE)


def refuse_different_heads(information: float | None, overlap: float | None) -> None:
    """Refuse an aligned pair that cannot be of one head.

    Args:
        information: Mutual information in nats; None if the pair was not registered.
        overlap: Dice of the two brains; None if only one was found.

    Raises:
        DifferentHeadsError: With the measure that is too low.

    >>> refuse_different_heads(0.7, 0.97)
    >>> refuse_different_heads(0.1, None)
    Traceback (most recent call last):
    steelyard.imaging.preprocess.register.DifferentHeadsError: once aligned, they share 0.10 nats of information only
    """
    if information is not None and information < _LEAST_INFORMATION:
        raise DifferentHeadsError(f"once aligned, they share {information:.2f} nats of information only")
    if overlap is None:
        return
    has_little_information = information is not None and information < _LITTLE_INFORMATION
    if overlap < _LEAST_OVERLAP or (has_little_information and overlap < _LITTLE_OVERLAP):
        raise DifferentHeadsError(f"once aligned, their brains overlap by a Dice of {overlap:.2f} only")


def dice(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> float:
    """Return the Dice overlap of two masks; it is 1 if both are empty.

    >>> dice(np.array([True, True, False]), np.array([True, False, False]))
    0.6666666666666666
    """
    total = int(first.sum()) + int(second.sum())
    if not total:
        return 1.0
    return 2.0 * int((first & second).sum()) / total


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
    # A fixed seed: the same scans give the same alignment.
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


def _with_rim(brain: Volume) -> sitk.Image:
    """Return the brain and the rim around it."""
    radius = [max(1, round(_MARGIN_MM / edge)) for edge in brain.spacing]
    return sitk.BinaryDilate(to_image(brain), radius)


def _centre_of_mass(mask: Volume) -> NDArray[np.float64]:
    """Return the centre of mass of a mask, in ITK's left-posterior-superior millimetres."""
    index = np.append(np.argwhere(mask.voxels).mean(axis=0), 1.0)
    point = (mask.affine @ index)[:3]  # right-anterior-superior
    return np.asarray(point * (-1.0, -1.0, 1.0))


def _cropped(image: sitk.Image, region: sitk.Image) -> sitk.Image:
    """Return the image within the box around the region."""
    shape = sitk.LabelShapeStatisticsImageFilter()
    shape.Execute(region)
    box = shape.GetBoundingBox(1)  # of label 1: three indices of the first voxel, then three sizes
    return sitk.RegionOfInterest(image, box[3:], box[:3])


def _isotropic(image: sitk.Image, spacing: float, *, sigma: float) -> sitk.Image:
    """Smooth, then resample to cubic voxels; a mask stays a mask."""
    if sigma:
        image = sitk.SmoothingRecursiveGaussian(image, [sigma] * 3)
    edges = np.array(image.GetSpacing())
    size = np.maximum(1, np.round(np.array(image.GetSize()) * edges / spacing)).astype(int)
    direction = np.array(image.GetDirection()).reshape(3, 3)
    # The origin is the centre of the first voxel: the corner stays, so the centre moves by half the difference.
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
