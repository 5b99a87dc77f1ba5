"""White matter hyperintensities: how much of them, and where they form."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy import ndimage

from steelyard.imaging.phantom.anatomy import Anatomy
from steelyard.imaging.phantom.field import Field, FloatArray, Vector, field_of
from steelyard.imaging.phantom.template import Template

LOAD_RANGE = (1.0, 40.0)  # ml
_MEDIAN_LOAD, _LOAD_SPREAD = 8.0, 0.95  # ml; s.d. of the logarithm
_SOFTNESS = 0.07  # of the potential: the lesions fade over one or two millimetres
_HORNS: tuple[Vector, ...] = (
    (-17.0, 31.0, 8.0),
    (17.0, 31.0, 8.0),
    (-27.0, -58.0, 13.0),
    (27.0, -58.0, 13.0),
)  # mm, MNI
_LATTICE = 2.0  # mm between the points at which the volume of the lesions is counted


def draw_load(age: float, generator: np.random.Generator) -> float:
    """Draw a volume: lognormal, its median 8 ml at 67 years and doubling in 20, within 1 to 40 ml."""
    median = _MEDIAN_LOAD * 2 ** ((age - 67) / 20)
    low, high = LOAD_RANGE
    while True:
        load = float(median * np.exp(_LOAD_SPREAD * generator.standard_normal()))
        if low <= load <= high:
            return load


@dataclass(frozen=True, kw_only=True)
class Lesions:
    """Where the tissue of a subject has become hyperintense.

    Args:
        potential: How prone a place of the template is; lesions are where it exceeds the threshold.
        threshold: Such that the lesions have the volume drawn for the subject.
    """

    potential: Field
    threshold: float

    def severity_at(self, places: torch.Tensor) -> torch.Tensor:
        """Return which part of the white matter there is lesion, 0 to 1; one half at a lesion's border."""
        return ((self.potential.at(places)[0] - self.threshold) / _SOFTNESS).sigmoid()


def grow_lesions(anatomy: Anatomy, load: float, generator: np.random.Generator) -> Lesions:
    """Draw where lesions form, then let them grow until they fill `load` ml of the white matter."""
    potential = _draw_potential(anatomy.template, generator)
    points = _lattice(potential, anatomy.physique.size)
    places = anatomy.to_template(points)
    depth = anatomy.template.brain_distance.at(places)[0]
    inside = depth < 0
    places = anatomy.before_ageing(places[inside], depth[inside])
    white = anatomy.brain_tissues(places, depth[inside])[0] > 0.5
    height = potential.at(places[white])[0].sort(descending=True).values
    count = round(load * 1000 / _LATTICE**3)
    return Lesions(potential=potential, threshold=float(height[min(count, len(height) - 1)]))


def _lattice(grid: Field, size: Vector) -> torch.Tensor:
    """Return points every `_LATTICE` mm over a box of the head that holds the grid, deformed or not."""
    margin = 8.0
    axes = [
        torch.arange((start - margin) * scale, (start + count * grid.spacing + margin) * scale, _LATTICE)
        for start, count, scale in zip(grid.origin, grid.values.shape[1:], size, strict=True)
    ]
    return torch.cartesian_prod(*axes)


def _draw_potential(template: Template, generator: np.random.Generator) -> Field:
    """Sum what favours lesions: closeness to the ventricles, caps on their horns, deep foci; roughen it."""
    grid = template.ventricle_distance
    distance = grid.values[0].numpy().clip(0)
    patchy = 1 + 0.45 * _noise(grid, 7.0, generator)
    rim = generator.uniform(0.7, 1.1) * np.exp(-distance / generator.uniform(2.0, 4.5)) * patchy
    white = _white_matter(template)
    deep = ndimage.gaussian_filter(white, 2.5)
    allowed = np.maximum(deep**2, np.exp(-distance / 3.0)) * _away_from_midline(grid)
    potential = (rim + _caps(grid, generator)) + _foci(deep * (distance > 6), generator)
    potential = allowed * (potential + 0.06 * _noise(grid, 1.6, generator) + 0.07 * _noise(grid, 4.0, generator))
    for axis in range(3):
        np.moveaxis(potential, axis, 0)[[0, -1]] = -1.0
    return field_of(potential, origin=grid.origin, spacing=grid.spacing)


def _white_matter(template: Template) -> FloatArray:
    """Return the template's white matter on the grid of the distance to the ventricles."""
    grid, whole = template.ventricle_distance, template.tissues
    first = [round((a - b) / whole.spacing) for a, b in zip(grid.origin, whole.origin, strict=True)]
    box = tuple(slice(start, start + count) for start, count in zip(first, grid.values.shape[1:], strict=True))
    return np.asarray(whole.values[1][box].numpy())


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
    """Return foci in the deep white matter, punctate to large; close ones flow together."""
    count = int(generator.integers(25, 110))
    flat = np.where(prior > 0.6, prior**3, 0).ravel().cumsum()
    chosen = np.searchsorted(flat, generator.uniform(0, flat[-1], size=count))
    centres = np.stack(np.unravel_index(chosen, prior.shape), axis=1)
    foci = np.zeros(prior.shape, dtype=np.float32)
    for centre in centres:
        radii = np.exp(generator.normal(np.log(1.5), 0.45)) * generator.uniform(0.75, 1.35, size=3)
        _add_focus(foci, centre, radii, height=generator.uniform(0.35, 1.15))
    return foci


def _add_focus(foci: FloatArray, centre: np.ndarray, radii: np.ndarray, *, height: float) -> None:
    """Add a Gaussian of given radii (s.d. in voxels) to the array around `centre`."""
    start = np.maximum(centre - np.ceil(3 * radii).astype(int), 0)
    stop = np.minimum(centre + np.ceil(3 * radii).astype(int) + 1, foci.shape)
    profiles = [
        np.exp(-(((np.arange(a, b) - c) / r) ** 2) / 2).astype(np.float32)
        for a, b, c, r in zip(start, stop, centre, radii, strict=True)
    ]
    box = tuple(slice(a, b) for a, b in zip(start, stop, strict=True))
    foci[box] += height * profiles[0][:, None, None] * profiles[1][None, :, None] * profiles[2][None, None, :]


def _noise(grid: Field, scale: float, generator: np.random.Generator) -> FloatArray:
    shape = tuple(grid.values.shape[1:])
    coarse = max(1, int(scale / 2))
    small = tuple(-(-count // coarse) + 1 for count in shape)
    noise = ndimage.gaussian_filter(generator.standard_normal(small, dtype=np.float32), scale / coarse)
    noise /= noise.std()
    if coarse > 1:
        noise = ndimage.zoom(noise, coarse, order=1)
    return np.asarray(noise[: shape[0], : shape[1], : shape[2]], dtype=np.float32)
