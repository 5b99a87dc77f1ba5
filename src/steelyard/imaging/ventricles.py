"""Where the lateral ventricles are: dark on FLAIR and on T1 alike, and near where the average brain has them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from steelyard.imaging.phantom.template import load_template
from steelyard.imaging.volumes import Volume

Floats = NDArray[np.float64]
Pose = tuple[float, ...]  # shift right, forward, up in mm; pitch, roll, yaw in degrees; logarithms of three scales

_CENTRE = np.array([0.0, -15.0, 15.0])  # mm, MNI: the middle of the ventricles
_BRAIN_LOW, _BRAIN_HIGH = np.array([-72.0, -106.0, -72.0]), np.array([72.0, 72.0, 82.0])  # mm, MNI
_TYPICAL: Pose = (12, 12, 12, 20, 15, 15, 0.25, 0.25, 0.25)  # what a pose may well differ by from the brain's box
_FIRST_STEP: Pose = (2, 2, 2, 4, 4, 4, 0.06, 0.06, 0.06)
_REACH = 10.0  # mm (MNI): how far beyond the average ventricle one's own may reach
_MIDLINE = 6.0  # mm (MNI): this close to the midline, what is dark beyond the average ventricle is third or cistern
_FLUID_UNTIL = 0.4  # of the way from fluid to tissue; less than half, for lesions darken the wall on T1
_LEAST_MATCH = 0.25  # of the darkness inside over that around; heads tried had 0.4 and more
_CREDIBLE_ML = (3.0, 250.0)


@dataclass(frozen=True, kw_only=True)
class _Crop:
    """The scan within the brain's box, and the way from its voxels to millimetres."""

    image: NDArray[np.float32]
    brain: NDArray[np.bool_]
    axes: Floats
    offset: Floats


@dataclass(frozen=True, kw_only=True)
class _Average:
    """The average ventricles: signed distance (MNI, 1 mm), some points within and around, seen from the centre."""

    distance: NDArray[np.float32]
    origin: Floats
    within: Floats
    around: Floats


def find_ventricles(scan: Volume, brain: Volume) -> Volume | None:
    """Return a mask of the lateral ventricles (without temporal horns), or None if nothing credible is found.

    The average ventricles (MNI152) are brought to the brain by its box, moved, turned and scaled to where the scan is
    darkest within against around, and give way to the scan's own dark voxels near them.

    Args:
        scan: FLAIR or T1, stripped and normalised, in any orientation.
        brain: Mask on the same grid.

    Raises:
        ValueError: The grids differ.
    """
    if not scan.same_grid(brain):
        raise ValueError("scan and brain must share one grid.")
    if not brain.voxels.any():
        return None
    box = ndimage.find_objects(brain.voxels.astype(np.uint8))[0]
    low, middle = np.quantile(scan.voxels[brain.voxels], [0.04, 0.5])
    if not low < middle:
        return None
    crop = _cropped(scan, brain, box, float(middle))
    darkness = np.clip((middle - crop.image) / (middle - low), 0, 1)
    match, turn, shift = _placed(crop, darkness)
    found = _dark_nearby(crop, (low + middle) / 2, turn, shift)
    smallest, largest = _CREDIBLE_ML
    if match < _LEAST_MATCH or not smallest <= np.count_nonzero(found) * scan.voxel_ml <= largest:
        return None
    mask = np.zeros(scan.voxels.shape, dtype=bool)
    mask[box] = found
    return scan.with_voxels(mask)


@lru_cache(maxsize=1)
def _average() -> _Average:
    field = load_template().ventricle_distance
    distance, origin = field.values[0].numpy(), np.array(field.origin)
    third, fourth = (np.zeros(distance.shape, dtype=bool) for _ in range(2))
    third[::3, ::3, ::3] = fourth[::4, ::4, ::4] = True
    around = (distance > 4) & (distance < 8) & fourth
    return _Average(
        distance=distance,
        origin=origin,
        within=np.argwhere((distance < 0) & third) + origin - _CENTRE,
        around=np.argwhere(around) + origin - _CENTRE,
    )


def _cropped(scan: Volume, brain: Volume, box: tuple[slice, ...], outside: float) -> _Crop:
    axes = scan.affine[:3, :3]
    mask = brain.voxels[box]
    image = np.where(mask, scan.voxels[box], outside).astype(np.float32)
    sigma = [0.6 / edge if edge < 3 else 0.0 for edge in scan.spacing]  # noise, without blurring thick slices
    return _Crop(
        image=ndimage.gaussian_filter(image, sigma),
        brain=mask,
        axes=axes,
        offset=scan.affine[:3, 3] + _times(axes, np.array([[part.start for part in box]]))[0],
    )


def _times(matrix: Floats, points: NDArray[np.floating] | NDArray[np.integer]) -> Floats:
    """Return matrix · point for points (n, 3), in an order of sums that no number of threads changes."""
    columns = [sum(points[:, k] * matrix[row, k] for k in range(3)) for row in range(3)]
    return np.stack(columns, axis=1).astype(np.float64)


def _placed(crop: _Crop, darkness: NDArray[np.floating]) -> tuple[float, Floats, Floats]:
    """Return how well the average ventricles match where they match best, and the matrix and shift to there."""
    places = _times(crop.axes, np.argwhere(crop.brain)[::3]) + crop.offset
    low, high = np.quantile(places, [0.001, 0.999], axis=0)
    scale = (high - low) / (_BRAIN_HIGH - _BRAIN_LOW)
    scale[2] = (scale[0] + scale[1]) / 2  # the lower end of a brain depends on where the scan was cut
    start = (low + high) / 2 + (_CENTRE - (_BRAIN_LOW + _BRAIN_HIGH) / 2) * scale
    start[2] = high[2] - (_BRAIN_HIGH[2] - _CENTRE[2]) * scale[2]
    average = _average()
    back: Floats = np.asarray(np.linalg.inv(crop.axes), dtype=np.float64)
    points, count = np.concatenate([average.within, average.around]) * scale, len(average.within)

    def match(pose: Pose) -> float:
        where = _times(_matrix(pose), points) + start + np.array(pose[:3]) - crop.offset
        dark = ndimage.map_coordinates(darkness, _times(back, where).T, order=1, mode="nearest")
        unusual = sum((value / typical) ** 2 for value, typical in zip(pose, _TYPICAL, strict=True))
        return float(dark[:count].mean() - dark[count:].mean() - 0.05 * unusual)

    pose = _best_pose(match)
    return match(pose), _matrix(pose) * scale, start + np.array(pose[:3])


def _best_pose(match: Callable[[Pose], float]) -> Pose:
    """Search coarsely over shifts and pitch, then along one parameter at a time with steps that halve."""
    grid = product((-4.0, 0.0, 4.0), np.arange(-12.0, 13, 4), np.arange(-16.0, 17, 4), np.arange(-20.0, 21, 10))
    best = max(((*map(float, four), 0.0, 0.0, 0.0, 0.0, 0.0) for four in grid), key=match)
    height = match(best)
    for halving in range(4):
        for _ in range(6):
            before = best
            for k, sign in product(range(len(best)), (1, -1)):
                step = sign * _FIRST_STEP[k] / 2**halving
                tried = (*best[:k], best[k] + step, *best[k + 1 :])
                if (reached := match(tried)) > height:
                    best, height = tried, reached
            if best == before:
                break
    return best


def _matrix(pose: Pose) -> Floats:
    (a, b, c), scales = map(math.radians, pose[3:6]), [math.exp(value) for value in pose[6:]]
    pitch = np.array([[1, 0, 0], [0, math.cos(a), -math.sin(a)], [0, math.sin(a), math.cos(a)]])
    roll = np.array([[math.cos(b), 0, math.sin(b)], [0, 1, 0], [-math.sin(b), 0, math.cos(b)]])
    yaw = np.array([[math.cos(c), -math.sin(c), 0], [math.sin(c), math.cos(c), 0], [0, 0, 1]])
    return np.asarray(pitch @ roll @ yaw * scales, dtype=np.float64)


def _dark_nearby(crop: _Crop, dark: float, turn: Floats, shift: Floats) -> NDArray[np.bool_]:
    """Return the dark voxels near the placed average ventricles that hang together with dark ones within."""
    average, back = _average(), np.linalg.inv(turn)
    to_average = back @ crop.axes
    offset = back @ (crop.offset - shift) + _CENTRE - average.origin
    grid = np.ogrid[tuple(slice(0, size) for size in crop.brain.shape)]
    places = [
        sum(np.float32(to_average[row, k]) * grid[k].astype(np.float32) for k in range(3)) + np.float32(offset[row])
        for row in range(3)
    ]
    distance = ndimage.map_coordinates(average.distance, places, order=1, mode="constant", cval=99.0)
    core = crop.brain & (distance < 0) & (crop.image < dark)
    tissue = crop.brain & (distance > 8) & (distance < 25)
    if not core.any() or not tissue.any():
        return np.zeros(crop.brain.shape, dtype=bool)
    fluid = np.median(crop.image[core])
    limit = fluid + _FLUID_UNTIL * (np.median(crop.image[tissue]) - fluid)
    elsewhere = (np.abs(places[0] + average.origin[0]) < _MIDLINE) & (distance > 2)
    labels, _ = ndimage.label(crop.brain & (crop.image < limit) & (distance < _REACH) & ~elsewhere)
    own = np.unique(labels[(distance < 0) & (labels > 0)])
    return np.asarray(np.isin(labels, own), dtype=bool)
