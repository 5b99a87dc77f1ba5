"""Segmentation of the lateral ventricles: an average brain shows where to look, then the scan's own fluid decides.

The average is MNI152 (see `anatomy.template`). First it gets the centre and the spread of the scan's brain mask. Then
it is moved, turned and scaled until its ventricles cover as much fluid, and their surroundings as little, as possible.
In this module, a *point* is a position in the average, and an *index* is one in the scan.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from steelyard.imaging.anatomy.rigid import Rigid
from steelyard.imaging.anatomy.template import Template, load_template
from steelyard.imaging.scans.boxes import Box, Mask
from steelyard.imaging.scans.volumes import Volume, canonical, turned_back

Vector = NDArray[np.float64]

_AROUND_MM = 15.0  # from the average's ventricles: where the levels of fluid and tissue are measured
_SEED_MM = 1.0  # fluid this close to the average's ventricles is theirs, with all fluid connected to it
_REACH_MM = 12.0  # ventricles may be wider than the average's by this much
_WIDENING = 2.0  # fluid less than this many times as far from ventricles as from other fluid: they widen more with age
_BELOW = 4.0  # mm by which each mm below the ventricles brings other fluid closer: cisterns and third ventricle
_OTHER_FLUID = 0.3  # probability of fluid in the average brain
_DARK_TISSUE = 0.1  # quantile of all that is brighter than fluid: grey matter, on T1 also lesions
_SPECK_ML = 0.3  # smaller pieces are dropped
_CREDIBLE_ML = (3.0, 150.0)
_CREDIBLE_FIT = 0.25  # nine real subjects have 0.49 and more, noise about 0

# The search changes nine parameters: shifts in mm, angles in degrees, logarithms of scales; three of each.
_STEPS = np.repeat([2.0, 3.0, 0.04], 3)  # the first steps
_TYPICAL = np.array([3.0, 6.0, 8.0, 8.0, 4.0, 4.0, 0.1, 0.1, 0.1])  # a change by this much costs `_PENALTY`
_PENALTY = 0.05  # of the fit


@dataclass(frozen=True, kw_only=True)
class _Average:
    """The average brain; points count voxels of `distance`, which are 1 mm.

    Args:
        distance: Signed distance to the lateral ventricles in mm, negative inside.
        other: Distance to other fluid in mm, less below the ventricles.
        centre: Of the brain.
        spread: Standard deviation of the brain's points along each axis.
        inner: Points in the ventricles, (n, 3).
        outer: Points in the tissue around, (n, 3).
    """

    distance: NDArray[np.float32]
    other: NDArray[np.float64]
    centre: Vector
    spread: Vector
    inner: NDArray[np.int64]
    outer: NDArray[np.int64]


@dataclass(frozen=True)
class _AffineMap:
    """x ↦ matrix x + offset: from indices of a scan to points of the average, or between points of the average."""

    matrix: Vector
    offset: Vector

    def inverse_of(self, points: Vector) -> Vector:
        """Return what the map takes to these points, (n, 3)."""
        return np.asarray((points - self.offset) @ np.linalg.inv(self.matrix).T)


@dataclass(frozen=True)
class _Levels:
    """The intensities of fluid and of the darker tissue."""

    fluid: float
    tissue: float


def find_ventricles(scan: Volume, brain: Volume) -> Volume | None:
    """Find the lateral ventricles, without their temporal horns, on a scan where fluid is dark: FLAIR or T1.

    The same voxels come out whichever way the axes of the grid run.

    Args:
        scan: Any resolution and orientation; the brain's tissue must be evenly bright, as preprocessing leaves it.
        brain: Its mask on the same grid, as booleans, ventricles included.

    Returns:
        Booleans on the scan's grid; None where nothing credible is found: the average's ventricles cover no more
        fluid than their surroundings, or the result has less than 3 or more than 150 ml.

    Raises:
        ValueError: The mask is not boolean or lies on another grid.
    """
    if brain.voxels.dtype != bool or not scan.same_grid(brain):
        raise ValueError("the brain must be a boolean mask on the grid of the scan.")
    upright, inside = canonical(scan), canonical(brain).voxels
    to_average = _align(upright, inside)
    if to_average is None:
        return None
    levels = _levels(upright.voxels, inside, to_average)
    if levels is None:
        return None
    fluid = inside & (upright.voxels < (levels.fluid + levels.tissue) / 2)
    ventricles = _grow(fluid, to_average, _SPECK_ML / upright.voxel_ml)
    smallest, largest = _CREDIBLE_ML
    if not smallest <= np.count_nonzero(ventricles) * upright.voxel_ml <= largest:
        return None
    return turned_back(ventricles, scan)


def _align(upright: Volume, inside: Mask) -> _AffineMap | None:
    """Return the map from the scan to the average; None if the two do not fit."""
    rough = _align_by_brain(upright.affine[:3, :3], inside)
    if rough is None:
        return None
    levels = _levels(upright.voxels, inside, rough)
    if levels is None:
        return None
    return _align_by_fluid(rough, _fluidness(upright.voxels, inside, levels))


@lru_cache(maxsize=1)
def _average() -> _Average:
    template = load_template()
    field, brain = template.ventricle_distance, template.brain_distance
    distance = field.values[0].numpy()
    other = _distance_to_other_fluid(template)
    points = np.argwhere(brain.values[0].numpy() < 0) * brain.spacing + np.subtract(brain.origin, field.origin)
    return _Average(
        distance=distance,
        other=other - _BELOW * _depth_below(distance < 0),
        centre=points.mean(axis=0),
        spread=points.std(axis=0),
        # Some of the points are enough, and the search reads them hundreds of times.
        inner=np.argwhere(distance < -0.5)[::3],
        outer=np.argwhere((distance > 4) & (distance < 9) & (other > 3))[::12],
    )


def _distance_to_other_fluid(template: Template) -> NDArray[np.float64]:
    distance = template.ventricle_distance.values[0].numpy()
    grey, white = template.tissues_around_ventricles()
    fluid = 1 - grey - white
    return np.asarray(ndimage.distance_transform_edt((fluid <= _OTHER_FLUID) | (distance <= 3)) - 0.5)


def _depth_below(mask: Mask) -> NDArray[np.int64]:
    """Return by how many voxels, less one, each voxel lies below the nearest voxel of a mask; at least 0."""
    # Of the indices of that nearest voxel only the third, the height.
    nearest_height = ndimage.distance_transform_edt(~mask, return_distances=False, return_indices=True)[2]
    return np.asarray(np.maximum(nearest_height - np.arange(mask.shape[2]) - 1, 0))


def _align_by_brain(directions: Vector, inside: Mask) -> _AffineMap | None:
    """Give the average brain the centre and, along the body's axes, the spread of a brain mask."""
    average, indices = _average(), np.argwhere(inside)
    count = len(indices)
    centre = indices.sum(axis=0) / max(count, 1)
    covariance = indices.T @ indices / max(count, 1) - np.outer(centre, centre)  # sums of integers: exact
    variance = np.diag(directions @ covariance @ directions.T)
    if count == 0 or variance.min() <= 1.0:
        return None
    matrix = directions * (average.spread / np.sqrt(variance))[:, None]
    return _AffineMap(matrix, average.centre - matrix @ centre)


def _on_grid(
    values: NDArray[np.floating], to_average: _AffineMap, shape: tuple[int, ...]
) -> tuple[Box, NDArray[np.floating]]:
    """Return the part of a scan's grid around the ventricles, and values of the average there."""
    around = np.argwhere(_average().distance < _AROUND_MM)
    first, last = around.min(axis=0), around.max(axis=0)
    upper = np.array(list(np.ndindex(2, 2, 2)), dtype=bool)  # for each corner of the box: at which end of each axis
    corners = to_average.inverse_of(np.where(upper, last, first))
    start = np.clip(np.floor(corners.min(axis=0)).astype(int), 0, shape)
    stop = np.clip(np.ceil(corners.max(axis=0)).astype(int) + 1, start, shape)
    x, y, z = map(slice, start.tolist(), stop.tolist())
    if (stop == start).any():
        return (x, y, z), np.zeros(stop - start)
    offset = to_average.offset + to_average.matrix @ start
    size = tuple((stop - start).tolist())
    resampled = ndimage.affine_transform(values, to_average.matrix, offset, output_shape=size, order=1, mode="nearest")
    return (x, y, z), np.asarray(resampled)


def _levels(voxels: NDArray[np.floating], inside: Mask, to_average: _AffineMap) -> _Levels | None:
    """Divide the brain around the ventricles halfway between fluid and tissue; None where there is no difference."""
    box, distance = _on_grid(_average().distance, to_average, inside.shape)
    values = voxels[box][inside[box] & (distance < _AROUND_MM)]
    if not len(values):
        return None
    fluid, tissue = float(np.quantile(values, 0.02)), float(np.median(values))
    if not fluid < tissue:
        return None
    for _ in range(6):  # the threshold settles within a few rounds
        dark = values < (fluid + tissue) / 2
        fluid, tissue = float(np.median(values[dark])), float(np.quantile(values[~dark], _DARK_TISSUE))
    return _Levels(fluid, tissue)


def _fluidness(voxels: NDArray[np.floating], inside: Mask, levels: _Levels) -> NDArray[np.float32]:
    """Return 0 where there is tissue, 1 where there is fluid, and between the two a share."""
    share = levels.tissue - voxels
    share /= levels.tissue - levels.fluid
    np.clip(share, 0, 1, out=share)
    share[~inside] = 0
    return share.astype(np.float32, copy=False)


def _align_by_fluid(to_average: _AffineMap, fluidness: NDArray[np.float32]) -> _AffineMap | None:
    """Move the average until its ventricles cover the scan's fluid; None if they never do."""
    average = _average()
    middle = average.inner.mean(axis=0)

    def mean(points: NDArray[np.int64], movement: _AffineMap) -> float:
        indices = to_average.inverse_of(points @ movement.matrix.T + movement.offset)
        return float(ndimage.map_coordinates(fluidness, indices.T, order=1).mean())

    def fit(parameters: Vector) -> float:
        movement = _movement(parameters, middle)
        return mean(average.inner, movement) - mean(average.outer, movement)

    def score(parameters: Vector) -> float:
        return fit(parameters) - _PENALTY * float(np.square(parameters / _TYPICAL).sum())

    best = _climb(score)
    if fit(best) < _CREDIBLE_FIT:
        return None
    # The movement took points of the average to where they lie in the scan: its inverse takes the scan to them.
    movement = _movement(best, middle)
    inverse = np.linalg.inv(movement.matrix)
    return _AffineMap(inverse @ to_average.matrix, inverse @ (to_average.offset - movement.offset))


def _movement(parameters: Vector, middle: Vector) -> _AffineMap:
    """Return three shifts in mm, three angles in degrees and three logarithms of scales as a map of points."""
    shift, (x, y, z), scales = parameters.reshape(3, 3).tolist()
    rotation = Rigid(angles=(x, y, z), translation=(0.0, 0.0, 0.0)).matrix()[:3, :3]
    matrix = rotation * np.exp(scales)
    return _AffineMap(matrix, middle + shift - matrix @ middle)


def _climb(score: Callable[[Vector], float]) -> Vector:
    """Change one parameter at a time as long as the score rises, then by half the step: 2 mm down to ⅛ mm."""
    parameters, steps = np.zeros(len(_STEPS)), _STEPS
    for _ in range(5):
        for _ in range(6):
            improved = _try_each(score, parameters, steps)
            if np.array_equal(improved, parameters):
                break
            parameters = improved
        steps = steps / 2
    return parameters


def _try_each(score: Callable[[Vector], float], parameters: Vector, steps: Vector) -> Vector:
    """Change each parameter in turn by its step, up or else down, where that raises the score."""
    best = score(parameters)
    for step in np.diag(steps):  # a row changes one parameter
        for changed in (parameters + step, parameters - step):
            changed_score = score(changed)
            if changed_score > best:
                parameters, best = changed, changed_score
                break
    return parameters


def _grow(fluid: Mask, to_average: _AffineMap, smallest: float) -> Mask:
    """Return the fluid that is connected, by faces, with fluid in the average's ventricles."""
    average = _average()
    box, distance = _on_grid(average.distance, to_average, fluid.shape)
    _, other = _on_grid(average.other, to_average, fluid.shape)
    labels, _ = ndimage.label(fluid[box] & (distance < _REACH_MM) & (distance < _WIDENING * other))
    sizes = np.bincount(labels.ravel(), minlength=1)
    seeded = np.bincount(labels[distance < _SEED_MM], minlength=len(sizes)) > 0
    keep = seeded & (sizes >= smallest)
    keep[0] = False  # label 0 is everything else
    ventricles = np.zeros(fluid.shape, dtype=bool)
    ventricles[box] = keep[labels]
    return ventricles
