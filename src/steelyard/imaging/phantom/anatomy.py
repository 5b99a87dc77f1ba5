"""One subject's anatomy: the template, deformed and aged, and the tissue it holds at any point of the head."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy import ndimage

from steelyard.imaging.phantom.field import Field, Vector, field_of
from steelyard.imaging.phantom.head import HEAD_CHANNELS, load_head
from steelyard.imaging.phantom.template import Template, load_template

_SHARPNESS = 2.2  # exponent that undoes the blur which averaging 152 brains left in the probabilities
_FOLDING = 1.1  # how much the cortex's folding varies between subjects (of a log-probability)


@dataclass(frozen=True, kw_only=True)
class Physique:
    """What distinguishes one head from another, besides its deformation.

    Args:
        age: In years.
        size: Size along x, y and z relative to the template.
        ventricle_growth: How far the walls of the ventricles have moved outwards, in mm of the template.
        sulcal_widening: By how much fluid is favoured over grey matter (of a log-probability).
        fluid_gap: Fluid between brain and skull, in mm.
        skull: Thickness of the inner table, the diploe and the outer table, in mm.
        fat: Thickness of the fat beneath the skin, in mm.
    """

    age: float
    size: Vector
    ventricle_growth: float
    sulcal_widening: float
    fluid_gap: float
    skull: Vector
    fat: float

    def __post_init__(self) -> None:
        if min(*self.size, *self.skull, self.fluid_gap, self.fat) <= 0:
            raise ValueError(f"sizes and thicknesses must be positive; got {self}.")


def draw_age(generator: np.random.Generator) -> float:
    """Draw an age from the range in which white matter hyperintensities are studied, 45 to 88 years."""
    return float(np.clip(generator.normal(67, 9), 45, 88))


def draw_physique(age: float, generator: np.random.Generator) -> Physique:
    """Draw a physique typical of an age: ventricles and sulci widen with the years, differently in each person."""
    ageing = (age - 45) / 40
    overall = generator.normal(0.925, 0.022)
    x, y, z = overall * generator.normal(1, 0.015, size=3)
    return Physique(
        age=age,
        size=(float(x), float(y), float(z)),
        ventricle_growth=float(np.clip(0.4 + 3.4 * ageing + generator.normal(0, 0.7), 0, 6)),
        sulcal_widening=float(np.clip(1.2 + 1.1 * ageing + generator.normal(0, 0.25), 0.6, 3)),
        fluid_gap=float(1.2 + 1.5 * ageing + generator.uniform(0, 0.8)),
        skull=(float(generator.uniform(1.4, 2)), float(generator.uniform(1.8, 4)), float(generator.uniform(1.3, 1.9))),
        fat=float(generator.uniform(1.5, 4)),
    )


@dataclass(frozen=True, kw_only=True)
class Anatomy:
    """A subject's head in its own millimetres (origin, axes and posture of MNI space).

    Args:
        physique: Age, size and thicknesses.
        displacement: From a point of the head, scaled to the template's size, to where the template shows it (mm).
        texture: Three channels of noise with unit variance: two fold the cortex, one mottles the tissue.
    """

    physique: Physique
    displacement: Field
    texture: Field
    template: Template

    def to_template(self, points: torch.Tensor) -> torch.Tensor:
        """Return where in the template the points (n, 3) of this head come from."""
        scaled = points / torch.tensor(self.physique.size)
        moved = scaled + self.displacement.at(scaled).T
        return moved - self.physique.ventricle_growth * self.template.ventricle_push.at(moved).T

    def brain_tissues(self, places: torch.Tensor, depth: torch.Tensor, texture: torch.Tensor) -> torch.Tensor:
        """Return the shares of white matter, grey matter and fluid at places of the template, shape (3, n).

        Args:
            places: Points of the template, (n, 3).
            depth: Their signed distance to the brain's surface in mm, negative inside.
            texture: The first two channels of `texture` there.
        """
        grey, white = self.template.tissues.at(places)
        cortical = ((depth + 40) / 15).clamp(0, 1) * _FOLDING
        fluid = (1 - grey - white).clamp(0, 1)
        logits = _SHARPNESS * torch.stack([white, grey, fluid]).clamp_min(0.004).log()
        logits[0] += cortical * texture[0]
        logits[2] += self.physique.sulcal_widening + cortical * texture[1]
        return logits.softmax(dim=0)

    def head_tissues(
        self, places: torch.Tensor, depth: torch.Tensor, texture: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the shares of the tissues outside the brain; what is missing to 1 is air.

        Args:
            places: Points of the template, (n, 3).
            depth: Their signed distance to the brain's surface in mm, negative inside.
            texture: One channel of noise there, which breaks up muscle and porous bone.
        """
        head = dict(zip(HEAD_CHANNELS, load_head().at(places), strict=True))
        inner, diploe, outer = self.physique.skull
        depth = depth - self.physique.fluid_gap + 0.4 * texture.clamp(-1.5, 1.5)
        marrow = _within(depth, inner, inner + diploe)
        soft = _step(depth - inner - diploe - outer)
        skull = 1 - soft - marrow
        below_skin = -head["surface"]
        skin = 1 - _step(below_skin - 1.6)
        padding = (1 - skin) * (1 - _step(below_skin - 1.6 - self.physique.fat - 0.5 * texture))
        deep = (1 - skin - padding) * soft
        cells = _step(2.0 * texture + 0.5)
        muscle = 1 - sum((head[name] for name in HEAD_CHANNELS[1:]), torch.zeros_like(depth))
        streaks = 0.7 * _step(2 * texture - 2.6)
        within = _step(below_skin)
        shares = {
            "white": deep * head["cord"],
            "csf": deep * head["fluid"],
            "fat": deep * (head["fat"] + muscle * streaks) + soft * (padding + 0.4 * skin),
            "marrow": deep * head["marrow"] + marrow,
            "muscle": deep * muscle * (1 - streaks) + soft * 0.5 * skin,
            "bone": deep * (head["bone"] + head["porous"] * (1 - cells)) + skull,
        }
        return {name: share * within for name, share in shares.items()}


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
        texture=_draw_texture(grid, generator),
        template=template,
    )


def _draw_displacement(grid: Field, generator: np.random.Generator) -> Field:
    """Draw a smooth displacement: 2.5 mm over 30 mm or more, which shapes the head, and 1.4 mm over 12 mm."""
    spacing = 2 * grid.spacing
    shape = tuple((count + 1) // 2 for count in grid.values.shape[1:])
    channels = [
        2.5 * _smooth_noise(shape, 30 / spacing, generator) + 1.4 * _smooth_noise(shape, 12 / spacing, generator)
        for _ in range(3)
    ]
    return field_of(*channels, origin=grid.origin, spacing=spacing)


def _draw_texture(grid: Field, generator: np.random.Generator) -> Field:
    shape = tuple(grid.values.shape[1:])
    channels = [_smooth_noise(shape, scale / grid.spacing, generator) for scale in (3.5, 3.5, 2.2)]
    return field_of(*channels, origin=grid.origin, spacing=grid.spacing)


def _smooth_noise(shape: tuple[int, ...], scale: float, generator: np.random.Generator) -> np.ndarray:
    """Return Gaussian noise of unit variance, smooth over `scale` voxels."""
    noise = ndimage.gaussian_filter(generator.standard_normal(shape, dtype=np.float32), scale, mode="wrap")
    return np.asarray(noise / noise.std(), dtype=np.float32)
