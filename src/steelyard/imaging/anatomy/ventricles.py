"""Where the lateral ventricles are: an average brain says where to look, the scan's own fluid says what is there.

The average is MNI152 (see `phantom.template`). It is brought to the scan by centre and spread of the brain masks, then
moved, turned and scaled until its ventricles cover as much fluid, and their surroundings as little, as they can.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from steelyard.imaging.anatomy.rigid import Rigid
from steelyard.imaging.anatomy.template import Template, load_template
from steelyard.imaging.scans.volumes import Volume, canonical, turned_back

Mask = NDArray[np.bool_]
Vector = NDArray[np.float64]
Box = tuple[slice, slice, slice]

_AROUND_MM = 15.0  # of the average's ventricles: where the levels of fluid and tissue are read
_SEED_MM = 1.0  # fluid this close to the average's ventricles is theirs, with what hangs together with it
_REACH_MM = 12.0  # by so much ventricles may be wider than the average's
_WIDENING = 2.0  # between ventricles and other fluid, the ventricles take this much more: they widen more with age
_BELOW = 4.0  # mm by which each mm below the ventricles brings other fluid closer: cisterns and third ventricle
_OTHER_FLUID = 0.3  # probability of fluid in the average brain
_DARK_TISSUE = 0.1  # quantile of what is brighter than fluid: grey matter, on T1 also lesions
_SPECK_ML = 0.3
_CREDIBLE_ML = (3.0, 150.0)
_CREDIBLE_FIT = 0.25  # the nine real subjects have 0.49 and more, noise about 0
_STEPS = np.repeat([2.0, 3.0, 0.04], 3)  # the first of the search: mm, degrees, logarithm of the scale
_BELIEF = np.array([3.0, 6.0, 8.0, 8.0, 4.0, 4.0, 0.1, 0.1, 0.1])  # such a movement costs `_DOUBT` of the fit
_DOUBT = 0.05


@dataclass(frozen=True, kw_only=True)
class _Average:
    """The average brain; places are voxels of `distance`, which are 1 mm.

    Args:
        distance: Signed distance to the lateral ventricles in mm, negative inside.
        other: Distance to other fluid in mm, less below the ventricles.
        centre: Of the brain.
        spread: Standard deviation of the brain's places along each axis.
        inner: Places in the ventricles, (n, 3).
        outer: Places in the tissue around, (n, 3).
    """

    distance: NDArray[np.float32]
    other: NDArray[np.float64]
    centre: Vector
    spread: Vector
    inner: NDArray[np.int64]
    outer: NDArray[np.int64]


@dataclass(frozen=True)
class _Placing:
    """From voxel indices of a scan to places of the average: x ↦ matrix x + offset."""

    matrix: Vector
    offset: Vector

    def back(self, places: Vector) -> Vector:
        """Return the indices (n, 3) of places (n, 3)."""
        return np.asarray((places - self.offset) @ np.linalg.inv(self.matrix).T)


@dataclass(frozen=True)
class _Levels:
    """What fluid and the darker tissue measure."""

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
        fluid than their surroundings, or what is found has less than 3 or more than 150 ml.

    Raises:
        ValueError: The mask is not boolean or lies on another grid.
    """
    if brain.voxels.dtype != bool or not scan.same_grid(brain):
        raise ValueError("the brain must be a boolean mask on the grid of the scan.")
    upright, inside = canonical(scan), canonical(brain).voxels
    placed = _place(upright, inside)
    if placed is None:
        return None
    placing, levels = placed
    fluid = inside & (upright.voxels < (levels.fluid + levels.tissue) / 2)
    found = _grow(fluid, placing, _SPECK_ML / upright.voxel_ml)
    low, high = _CREDIBLE_ML
    return turned_back(found, scan) if low <= np.count_nonzero(found) * upright.voxel_ml <= high else None


def _place(upright: Volume, inside: Mask) -> tuple[_Placing, _Levels] | None:
    """Bring the average to the scan, and read the levels there; None if the two do not fit."""
    rough = _place_by_brain(upright.affine[:3, :3], inside)
    seen = _levels(upright.voxels, inside, rough) if rough else None
    if rough is None or seen is None:
        return None
    placing = _place_by_fluid(rough, _fluidness(upright.voxels, inside, seen))
    levels = _levels(upright.voxels, inside, placing) if placing else None
    return (placing, levels) if placing and levels else None


@lru_cache(maxsize=1)
def _average() -> _Average:
    template = load_template()
    field, brain = template.ventricle_distance, template.brain_distance
    distance = field.values[0].numpy()
    other = _distance_to_other_fluid(template)
    places = np.argwhere(brain.values[0].numpy() < 0) * brain.spacing + np.subtract(brain.origin, field.origin)
    return _Average(
        distance=distance,
        other=other - _BELOW * _depth_below(distance < 0),
        centre=places.mean(axis=0),
        spread=places.std(axis=0),
        inner=np.argwhere(distance < -0.5)[::3],
        outer=np.argwhere((distance > 4) & (distance < 9) & (other > 3))[::12],
    )


def _distance_to_other_fluid(template: Template) -> NDArray[np.float64]:
    field, tissues = template.ventricle_distance, template.tissues
    first = np.rint(np.subtract(field.origin, tissues.origin)).astype(int)
    distance = field.values[0].numpy()
    box = tuple(slice(start, start + count) for start, count in zip(first, distance.shape, strict=True))
    fluid = 1 - tissues.values[0].numpy()[box] - tissues.values[1].numpy()[box]
    return np.asarray(ndimage.distance_transform_edt((fluid <= _OTHER_FLUID) | (distance <= 3)) - 0.5)


def _depth_below(mask: Mask) -> NDArray[np.int64]:
    """Return by how much more than one voxel each voxel lies below the nearest of a mask."""
    nearest = ndimage.distance_transform_edt(~mask, return_distances=False, return_indices=True)[2]
    return np.asarray(np.maximum(nearest - np.arange(mask.shape[2]) - 1, 0))


def _place_by_brain(directions: Vector, inside: Mask) -> _Placing | None:
    """Give the average brain the centre and, along the body's axes, the spread of a brain mask."""
    average, indices = _average(), np.argwhere(inside)
    count = len(indices)
    centre = indices.sum(axis=0) / max(count, 1)
    covariance = indices.T @ indices / max(count, 1) - np.outer(centre, centre)  # sums of integers: exact
    variance = np.diag(directions @ covariance @ directions.T)
    if count == 0 or variance.min() <= 1.0:
        return None
    matrix = directions * (average.spread / np.sqrt(variance))[:, None]
    return _Placing(matrix, average.centre - matrix @ centre)


def _on_grid(
    values: NDArray[np.floating], placing: _Placing, shape: tuple[int, ...]
) -> tuple[Box, NDArray[np.floating]]:
    """Return the part of a scan's grid around the ventricles, and values of the average there."""
    near = np.argwhere(_average().distance < _AROUND_MM)
    ends = near.min(axis=0), near.max(axis=0)
    corners = placing.back(np.array([[ends[pick][axis] for axis, pick in enumerate(p)] for p in np.ndindex(2, 2, 2)]))
    start = np.clip(np.floor(corners.min(axis=0)).astype(int), 0, shape)
    stop = np.clip(np.ceil(corners.max(axis=0)).astype(int) + 1, start, shape)
    x, y, z = (slice(int(a), int(b)) for a, b in zip(start, stop, strict=True))
    if (stop == start).any():
        return (x, y, z), np.zeros(stop - start)
    offset = placing.offset + placing.matrix @ start
    size = tuple((stop - start).tolist())
    read = ndimage.affine_transform(values, placing.matrix, offset, output_shape=size, order=1, mode="nearest")
    return (x, y, z), np.asarray(read)


def _levels(voxels: NDArray[np.floating], inside: Mask, placing: _Placing) -> _Levels | None:
    """Part the brain around the ventricles in fluid and tissue, halfway between what the two measure."""
    box, distance = _on_grid(_average().distance, placing, inside.shape)
    values = voxels[box][inside[box] & (distance < _AROUND_MM)]
    if not len(values):
        return None
    fluid, tissue = float(np.quantile(values, 0.02)), float(np.median(values))
    if not fluid < tissue:
        return None
    for _ in range(6):
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


def _place_by_fluid(placing: _Placing, fluidness: NDArray[np.float32]) -> _Placing | None:
    """Move the average until its ventricles hold the scan's fluid; None if they do not come to hold it."""
    average = _average()
    middle = average.inner.mean(axis=0)

    def mean(places: NDArray[np.int64], movement: _Placing) -> float:
        indices = placing.back(places @ movement.matrix.T + movement.offset)
        return float(ndimage.map_coordinates(fluidness, indices.T, order=1).mean())

    def fit(parameters: Vector) -> float:
        movement = _movement(parameters, middle)
        return mean(average.inner, movement) - mean(average.outer, movement)

    best = _climb(lambda parameters: fit(parameters) - _DOUBT * float(np.square(parameters / _BELIEF).sum()))
    if fit(best) < _CREDIBLE_FIT:
        return None
    movement = _movement(best, middle)
    undo = np.linalg.inv(movement.matrix)
    return _Placing(undo @ placing.matrix, undo @ (placing.offset - movement.offset))


def _movement(parameters: Vector, middle: Vector) -> _Placing:
    """Return three shifts in mm, three angles in degrees and three logarithms of scales as a map of places."""
    shift, angles, scales = (tuple(part.tolist()) for part in np.split(parameters, 3))
    matrix = Rigid(angles=angles, translation=(0.0, 0.0, 0.0)).matrix()[:3, :3] * np.exp(scales)
    return _Placing(matrix, middle + shift - matrix @ middle)


def _climb(score: Callable[[Vector], float]) -> Vector:
    """Change one parameter at a time as long as it helps, then by half the step: 2 mm down to ⅛ mm."""
    at, steps = np.zeros(len(_STEPS)), _STEPS
    best = score(at)
    for _ in range(5):
        for _ in range(6):
            before = best
            for step in np.diag(steps):
                for candidate in (at + step, at - step):
                    if (reached := score(candidate)) > best:
                        at, best = candidate, reached
                        break
            if best == before:
                break
        steps = steps / 2
    return at


def _grow(fluid: Mask, placing: _Placing, smallest: float) -> Mask:
    """Return the fluid that hangs together, by faces, with fluid in the average's ventricles."""
    average = _average()
    box, distance = _on_grid(average.distance, placing, fluid.shape)
    _, other = _on_grid(average.other, placing, fluid.shape)
    labels, _ = ndimage.label(fluid[box] & (distance < _REACH_MM) & (distance < _WIDENING * other))
    sizes = np.bincount(labels.ravel(), minlength=1)
    seeded = np.bincount(labels[distance < _SEED_MM], minlength=len(sizes)) > 0
    keep = seeded & (sizes >= smallest)
    keep[0] = False
    found = np.zeros(fluid.shape, dtype=bool)
    found[box] = keep[labels]
    return found
