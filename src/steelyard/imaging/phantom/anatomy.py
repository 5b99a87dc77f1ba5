"""One subject's anatomy: the template, deformed and aged, and the tissue it holds at any point."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy import ndimage

from steelyard.imaging.anatomy.field import Field, field_of
from steelyard.imaging.anatomy.template import Template, load_template
from steelyard.imaging.phantom.head import load_head
from steelyard.imaging.phantom.traits import Physique

_SHARPNESS = 2.2  # exponent that undoes the blur which averaging 152 brains left in the probabilities
_SKIN = 1.6  # mm
_FOLDING = 1.4  # how much the cortex's folding varies between subjects (of a log-probability)


@dataclass(frozen=True, kw_only=True)
class Anatomy:
    """A subject's head in its own millimetres (origin, axes and posture of MNI space).

    Args:
        physique: Age, size and thicknesses.
        displacement: From a point of the head, scaled to the template's size, to the point of the template (mm).
        folding: Two channels of noise with unit variance, which fold the cortex.
        layers: Signed distances to the brain's surface and to the skin in mm, negative inside, and noise with
            unit variance that makes tissue uneven.
    """

    physique: Physique
    displacement: Field
    folding: Field
    layers: Field
    template: Template

    def to_template(self, points: torch.Tensor) -> torch.Tensor:
        """Return where in the template of a young head the points (n, 3) of this one come from."""
        scaled = points / torch.tensor(self.physique.size)
        return scaled + self.displacement.at(scaled).T

    def before_ageing(self, points: torch.Tensor, depth: torch.Tensor) -> torch.Tensor:
        """Return where points (n, 3) of the template were before the ventricles grew; the brain's surface stays."""
        growth = (depth / -10).clamp(0, 1) * self.physique.ventricle_growth  # in full from 10 mm below the surface
        return points - (growth * self.template.ventricle_push.at(points)).T

    def brain_tissues(self, points: torch.Tensor, depth: torch.Tensor) -> torch.Tensor:
        """Return the shares of white matter, grey matter and fluid, shape (3, n).

        Args:
            points: Points of the template before ageing, (n, 3).
            depth: Their signed distance to the brain's surface in mm, negative inside.
        """
        grey, white = self.template.tissues.at(points)
        texture = self.folding.at(points)
        cortical = ((depth + 40) / 15).clamp(0, 1) * _FOLDING  # none below 40 mm, in full above 25 mm
        fluid = (1 - grey - white).clamp(0, 1)
        logits = _SHARPNESS * torch.stack([white, grey, fluid]).clamp_min(0.004).log()
        logits[0] += cortical * texture[0]
        logits[2] += self.physique.sulcal_widening + cortical * texture[1]
        return logits.softmax(dim=0)

    def head_tissues(self, points: torch.Tensor, layers: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the shares of the tissues outside the brain; the rest up to 1 is air.

        Args:
            points: Points of the template, (n, 3).
            layers: The values of the field `layers` there, (3, n).
        """
        depth, skin_distance, texture = layers
        inner, diploe, outer = self.physique.skull
        depth = depth - self.physique.fluid_gap + 0.4 * texture.clamp(-1.5, 1.5)
        below_skin = -skin_distance
        soft = _step(depth - inner - diploe - outer) * _step(below_skin)
        marrow = _within(depth, inner, inner + diploe) * (0.25 + 0.06 * texture).clamp(0.05, 0.5)
        skin = 1 - _step(below_skin - _SKIN)
        fat = (1 - skin) * (1 - _step(below_skin - _SKIN - self.physique.fat - 0.5 * texture))
        shares = {
            "white": torch.zeros_like(depth),
            "csf": torch.zeros_like(depth),
            "fat": soft * (0.7 * fat + 0.25 * skin),
            "marrow": marrow,
            "muscle": soft * (0.2 * fat + 0.5 * skin),
        }
        deep = soft * (1 - skin - fat)
        within = (deep > 0).nonzero()[:, 0]  # indices of the points between fat and skull
        for name, share in _deep_tissues(points[within], texture[within]).items():
            shares[name].index_add_(0, within, share * deep[within])
        return shares


def _deep_tissues(points: torch.Tensor, texture: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the shares of tissue between fat and skull; bone and air give no signal and are left out."""
    shares = load_head().shares.at(points)
    muscle = (1 - shares.sum(dim=0)).clamp_min(0)
    streaks = 0.35 * (texture - 0.5).clamp(0, 1)  # of fat in the muscle
    fat, marrow, _bone, fluid, cord, porous, _air = shares  # the order of HEAD_TISSUES
    lining = 0.5 * porous * (1 - _step(2 * texture + 0.5))
    return {
        "white": cord,
        "csf": fluid,
        "fat": fat + muscle * streaks,
        "marrow": 0.5 * marrow,
        "muscle": muscle * (1 - streaks) + lining,
    }


def _step(distance: torch.Tensor) -> torch.Tensor:
    """Return the share of a voxel beyond a surface at 0 mm: partial volume over about one millimetre."""
    return (distance + 0.5).clamp(0, 1)


def _within(distance: torch.Tensor, start: float, stop: float) -> torch.Tensor:
    return _step(distance - start) - _step(distance - stop)


def grow_anatomy(physique: Physique, generator: np.random.Generator) -> Anatomy:
    """Draw the deformation and the texture of a subject."""
    template = load_template()
    grid = template.brain_distance
    return Anatomy(
        physique=physique,
        displacement=_draw_displacement(grid, generator),
        folding=_draw_folding(generator),
        layers=_draw_layers(grid, generator),
        template=template,
    )


def _draw_displacement(grid: Field, generator: np.random.Generator) -> Field:
    """Draw a smooth displacement: 1.7 mm over 32 mm or more, which shapes the head, and 0.9 mm over 12 mm."""
    spacing = 2 * grid.spacing
    shape = tuple((count + 1) // 2 for count in grid.values.shape[1:])
    channels = []
    for _ in range(3):
        coarse = _smooth_noise(shape, 32 / spacing, generator)
        fine = _smooth_noise(shape, 12 / spacing, generator)
        channels.append(1.7 * coarse + 0.9 * fine)
    return field_of(*channels, origin=grid.origin, spacing=spacing)


def _draw_folding(generator: np.random.Generator) -> Field:
    """Draw noise of the size of a fold, in a box around the brain."""
    spacing, shape = 2.0, (81, 101, 87)
    channels = [_smooth_noise(shape, 3.0 / spacing, generator) for _ in range(2)]
    return field_of(*channels, origin=(-80.0, -116.0, -80.0), spacing=spacing)


def _draw_layers(grid: Field, generator: np.random.Generator) -> Field:
    """Join the distances with a subject's noise: interpolating one field is faster than three."""
    mottle = _smooth_noise(tuple(grid.values.shape[1:]), 2.2 / grid.spacing, generator)
    channels = (grid.values[0].numpy(), load_head().skin_distance.values[0].numpy(), mottle)
    return field_of(*channels, origin=grid.origin, spacing=grid.spacing)


def _smooth_noise(shape: tuple[int, ...], scale: float, generator: np.random.Generator) -> np.ndarray:
    """Return Gaussian noise of unit variance, smooth over `scale` voxels."""
    noise = ndimage.gaussian_filter(generator.standard_normal(shape, dtype=np.float32), scale, mode="wrap")
    return np.asarray(noise / noise.std(), dtype=np.float32)
