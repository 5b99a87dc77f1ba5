"""Between voxel arrays and SimpleITK: images, rigid transforms, resampling.

Arrays follow NIfTI (right-anterior-superior, first index fastest); SimpleITK is left-posterior-superior with the
last index fastest. Nothing outside this module has to know.
"""

import numpy as np
import SimpleITK as sitk
from numpy.typing import NDArray

from steelyard.imaging.scans.volumes import Volume

_FLIP = np.diag([-1.0, -1.0, 1.0, 1.0])  # right-anterior-superior to left-posterior-superior and back


def to_image(volume: Volume) -> sitk.Image:
    """Return a SimpleITK image of the same voxels in the same place; booleans become bytes."""
    kind = np.uint8 if volume.voxels.dtype == bool else np.float32
    voxels = volume.voxels.astype(kind, copy=False)
    image = sitk.GetImageFromArray(np.ascontiguousarray(voxels.T))
    affine = _FLIP @ volume.affine
    spacing = np.linalg.norm(affine[:3, :3], axis=0)
    image.SetSpacing(spacing.tolist())
    image.SetDirection((affine[:3, :3] / spacing).ravel().tolist())
    image.SetOrigin(affine[:3, 3].tolist())
    return image


def from_image(image: sitk.Image, like: Volume) -> Volume:
    """Return a SimpleITK image that lies on the grid of `like` as a volume."""
    return like.with_voxels(np.ascontiguousarray(sitk.GetArrayFromImage(image).T))


def to_transform(matrix: NDArray[np.float64]) -> sitk.AffineTransform:
    """Return a 4×4 matrix between right-anterior-superior millimetres as a SimpleITK transform."""
    flipped = _FLIP @ matrix @ _FLIP
    transform = sitk.AffineTransform(3)
    transform.SetMatrix(flipped[:3, :3].ravel().tolist())
    transform.SetTranslation(flipped[:3, 3].tolist())
    return transform


def to_matrix(transform: sitk.Transform) -> NDArray[np.float64]:
    """Return a linear SimpleITK transform as a 4×4 matrix between right-anterior-superior millimetres."""
    origin = np.array(transform.TransformPoint((0.0, 0.0, 0.0)))
    columns = [np.array(transform.TransformPoint(tuple(axis))) - origin for axis in np.eye(3)]
    matrix = np.eye(4)
    matrix[:3, :3] = np.stack(columns, axis=1)
    matrix[:3, 3] = origin
    return np.asarray(_FLIP @ matrix @ _FLIP)


def itk_text(matrix: NDArray[np.float64]) -> str:
    """Return a 4×4 matrix between right-anterior-superior millimetres as the text of an ITK transform file.

    ITK transforms map points of the *fixed* image to points of the *moving* one, in left-posterior-superior mm.
    So the file that takes a T1w image to FLAIR's grid (`from-T1w_to-FLAIR`) holds the map from FLAIR points
    to T1w points, and `SimpleITK.Resample(t1w, flair, transform)` uses it as it is.
    """
    flipped = _FLIP @ matrix @ _FLIP
    parameters = (*flipped[:3, :3].ravel().tolist(), *flipped[:3, 3].tolist())
    numbers = " ".join(map(repr, parameters))  # repr keeps every bit of a number
    return (
        "#Insight Transform File V1.0\n#Transform 0\nTransform: MatrixOffsetTransformBase_double_3_3\n"
        f"Parameters: {numbers}\nFixedParameters: 0 0 0\n"
    )


def resample_mask(mask: Volume, like: Volume, matrix: NDArray[np.float64]) -> Volume:
    """Bring a mask onto another volume's grid, by nearest neighbour.

    Args:
        mask: Of booleans.
        like: The grid to fill; false where the mask does not reach.
        matrix: From points of `like` to points of `mask`, in right-anterior-superior millimetres.
    """
    image = sitk.Resample(to_image(mask), to_image(like), to_transform(matrix), sitk.sitkNearestNeighbor, 0.0)
    return like.with_voxels(from_image(image, like).voxels != 0)


def resample_scan(scan: Volume, like: Volume, matrix: NDArray[np.float64]) -> Volume:
    """Bring a scan onto another volume's grid, by cubic B-splines.

    Args:
        scan: Of any intensities.
        like: The grid to fill; the scan's minimum where the scan does not reach.
        matrix: From points of `like` to points of `scan`, in right-anterior-superior millimetres.
    """
    lowest, highest = float(scan.voxels.min()), float(scan.voxels.max())
    image = sitk.Resample(to_image(scan), to_image(like), to_transform(matrix), sitk.sitkBSpline, lowest)
    # A B-spline overshoots at edges.
    return like.with_voxels(np.clip(from_image(image, like).voxels, lowest, highest))


def mean_displacement(first: NDArray[np.float64], second: NDArray[np.float64], region: Volume) -> float:
    """Return the mean distance in mm between where two matrices send the voxels of a mask."""
    indices = np.argwhere(region.voxels)
    indices = indices[:: max(1, len(indices) // 20_000)]  # that many are enough for a mean
    points = np.c_[indices, np.ones(len(indices))] @ region.affine.T  # in mm, with a fourth coordinate of 1
    shifts = points @ (first - second).T
    return float(np.linalg.norm(shifts[:, :3], axis=1).mean())
