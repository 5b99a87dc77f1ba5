"""White matter hyperintensities: where they form, and how they grow to a given volume."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from steelyard.imaging.anatomy.field import Field, FloatArray, Vector, field_of
from steelyard.imaging.anatomy.template import Template
from steelyard.imaging.phantom.anatomy import Anatomy

_SOFTNESS = 0.6  # of the threshold: what a border rises over, one or two millimetres
_DAMAGE_SPREAD = 0.2  # s.d. of the part of a lesion's tissue that is lost, between lesions of one subject
_LINING = 1.8  # mm: how far the bright line reaches from the template's ventricles, whose own rim is blurred
# mm, MNI: tips of the frontal and the occipital horns of the ventricles, left and right
_HORNS: tuple[Vector, ...] = ((-17.0, 31.0, 8.0), (17.0, 31.0, 8.0), (-27.0, -58.0, 13.0), (27.0, -58.0, 13.0))
_LEAST_EXTENT = 4  # mm: a lesion that holds no ball of this width is a speck that no rater would outline
_LEAST_THRESHOLD = 0.01  # the potential of tissue that no lesion would reach; 40 ml take 0.05 and more
_LATTICE = 2.0  # mm between the points at which the volume of the lesions is counted


@dataclass(frozen=True, kw_only=True)
class SimulatedLesions:
    """Where the tissue of a subject has become hyperintense.

    Args:
        ground: Three channels on the template: the potential, lesions are where it exceeds the threshold; noise
            of unit variance, by which one lesion loses more tissue than another; the distance to the ventricles
            in mm.
        threshold: Such that the lesions have the volume drawn for the subject.
    """

    ground: Field
    threshold: float

    def severity_at(self, points: torch.Tensor) -> torch.Tensor:
        """Return which part of the white matter there is lesion, 0 to 1; one half at a lesion's border."""
        return self.at(points, damage=0.0)[0]

    def at(self, points: torch.Tensor, *, damage: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the severity, the part of the lesion's tissue that is lost, and closeness to the ventricles.

        Each is 0 to 1, (n,). The tissue lost varies from lesion to lesion and averages to `damage`.
        """
        potential, unevenness, distance = self.ground.at(points)
        severity = ((potential / self.threshold - 1) / _SOFTNESS + 0.5).clamp(0, 1)
        lost = (damage + _DAMAGE_SPREAD * unevenness).clamp(0, 1)
        closeness = (-((distance / _LINING).clamp_min(0) ** 2)).exp()
        return severity, lost, closeness


def grow_lesions(anatomy: Anatomy, load: float, generator: np.random.Generator) -> SimulatedLesions:
    """Draw where lesions form, then let them grow until they fill `load` ml of the white matter."""
    ground = _draw_ground(anatomy.template, generator)
    points = anatomy.to_template(_lattice(ground, anatomy.physique.size))
    depth = anatomy.template.brain_distance.at(points)[0]
    inside = depth < 0
    points = anatomy.before_ageing(points[inside], depth[inside])
    white = anatomy.brain_tissues(points, depth[inside])[0] > 0.5
    # The points of the lattice with the highest potential become lesion, as many as fill the volume.
    potential = ground.at(points[white])[0].sort(descending=True).values
    count = round(load * 1000 / _LATTICE**3)  # 1 ml is 1000 mm³
    threshold = float(potential[min(count, len(potential) - 1)])
    return SimulatedLesions(ground=ground, threshold=max(_LEAST_THRESHOLD, threshold))


def _lattice(grid: Field, size: Vector) -> torch.Tensor:
    """Return points every `_LATTICE` mm over a box of the head that holds the grid, deformed or not."""
    margin = 8.0
    axes = []
    for axis, scale in enumerate(size):
        start = grid.origin[axis]
        stop = start + grid.values.shape[axis + 1] * grid.spacing  # axis 0 of the values is the channels
        axes.append(torch.arange((start - margin) * scale, (stop + margin) * scale, _LATTICE))
    return torch.cartesian_prod(*axes)


def _draw_ground(template: Template, generator: np.random.Generator) -> Field:
    """Take what favours lesions most: closeness to the ventricles, caps on their horns, deep foci; roughen it."""
    grid = template.ventricle_distance
    distance = grid.values[0].numpy().clip(0)
    patchy = 1 + 0.45 * _noise(grid, 7.0, generator)
    rim = generator.uniform(0.6, 1.0) * np.exp(-distance / generator.uniform(1.5, 3.5)) * patchy
    _, white = template.tissues_around_ventricles()
    deep = ndimage.gaussian_filter(white, 2.5)
    allowed = np.maximum(deep**2, np.exp(-distance / 3.0)) * _away_from_midline(grid)
    potential = np.maximum(np.maximum(rim, _caps(grid, generator)), _foci(deep * (distance > 5), generator))
    rough = 0.04 * _noise(grid, 1.6, generator) + 0.05 * _noise(grid, 4.0, generator)
    potential = allowed * (potential + rough * (potential / 0.3).clip(0, 1))
    potential = ndimage.grey_opening(potential, footprint=_ball(_LEAST_EXTENT))
    # No lesion touches the border of the grid: beyond it, a field continues its edge.
    for axis in range(3):
        np.moveaxis(potential, axis, 0)[[0, -1]] = -1.0
    unevenness = _noise(grid, 6.0, generator)
    return field_of(potential, unevenness, grid.values[0].numpy(), origin=grid.origin, spacing=grid.spacing)


def _ball(width: int) -> NDArray[np.bool_]:
    """Return the voxels of a cube whose centres are within the ball that it holds."""
    offset = np.arange(width) - (width - 1) / 2
    x, y, z = np.ix_(offset, offset, offset)
    return np.asarray(x**2 + y**2 + z**2 <= (width / 2) ** 2)


def _away_from_midline(grid: Field) -> FloatArray:
    """Return 0 within 5 mm of the midline (the corpus callosum is spared), 1 beyond 12 mm."""
    x, _, _ = grid.positions()
    return np.asarray(np.clip((np.abs(x) - 5) / 7, 0, 1), dtype=np.float32)


def _caps(grid: Field, generator: np.random.Generator) -> FloatArray:
    """Return caps on the frontal and occipital horns, alike but not equal on the two sides."""
    caps = np.zeros(grid.values.shape[1:], dtype=np.float32)
    x, y, z = grid.positions()
    for horn in _HORNS:
        cx, cy, cz = np.asarray(horn) + generator.normal(0, 1.5, size=3)
        rx, ry, rz = generator.uniform((3.5, 5, 4), (6, 10, 9))
        squared = ((x - cx) / rx) ** 2 + ((y - cy) / ry) ** 2 + ((z - cz) / rz) ** 2
        caps += generator.uniform(0.4, 1.0) * np.exp(-squared / 2)
    return caps


def _foci(prior: FloatArray, generator: np.random.Generator) -> FloatArray:
    """Return foci in the deep white matter, punctate to large; they flow together where they overlap."""
    count = int(generator.integers(30, 90))
    # Voxels are drawn with a probability in proportion to the square of the prior.
    cumulative = np.where(prior > 0.5, prior**2, 0).ravel().cumsum()
    chosen = np.searchsorted(cumulative, generator.uniform(0, cumulative[-1], size=count))
    centres = np.stack(np.unravel_index(chosen, prior.shape), axis=1)
    foci = np.zeros(prior.shape, dtype=np.float32)
    for centre in centres:
        radii = np.exp(generator.normal(np.log(3.4), 0.3)) * generator.uniform(0.75, 1.35, size=3)
        _add_focus(foci, centre, radii, height=generator.uniform(0.4, 1.3))
    return foci


def _add_focus(foci: FloatArray, centre: np.ndarray, radii: np.ndarray, *, height: float) -> None:
    """Raise the array around `centre` to an ellipsoid (radii in voxels) with a flat top and steep flanks.

    A threshold below its height cuts it at nearly its own size: a focus is either there or not.
    """
    reach = np.ceil(1.5 * radii).astype(int)
    start, stop = np.maximum(centre - reach, 0), np.minimum(centre + reach + 1, foci.shape)
    box = tuple(map(slice, start, stop))
    x, y, z = np.ogrid[box]
    squared = ((x - centre[0]) / radii[0]) ** 2 + ((y - centre[1]) / radii[1]) ** 2 + ((z - centre[2]) / radii[2]) ** 2
    np.maximum(foci[box], height * np.exp(-(squared**3)), out=foci[box])


def _noise(grid: Field, scale: float, generator: np.random.Generator) -> FloatArray:
    """Return Gaussian noise of unit variance on a grid, smooth over `scale` voxels."""
    x, y, z = grid.values.shape[1:]
    factor = max(1, int(scale / 2))  # smooth noise is drawn on a coarser grid and enlarged
    coarse = [math.ceil(count / factor) + 1 for count in (x, y, z)]
    noise = ndimage.gaussian_filter(generator.standard_normal(coarse, dtype=np.float32), scale / factor)
    noise /= noise.std()
    if factor > 1:
        noise = ndimage.zoom(noise, factor, order=1)
    return np.asarray(noise[:x, :y, :z], dtype=np.float32)
