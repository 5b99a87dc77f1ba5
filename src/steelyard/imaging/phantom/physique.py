"""What distinguishes one head from another: age, size, and how far ageing has gone."""

from dataclasses import dataclass

import numpy as np

from steelyard.imaging.anatomy.field import Vector


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
    """Draw a physique typical of an age: ventricles and sulci widen, differently in each person."""
    ageing = (age - 45) / 40
    overall = generator.normal(0.925, 0.022)
    x, y, z = overall * generator.normal(1, 0.015, size=3)
    return Physique(
        age=age,
        size=(float(x), float(y), float(z)),
        ventricle_growth=float(np.clip(0.4 + 3.4 * ageing + generator.normal(0, 0.7), 0, 6)),
        sulcal_widening=float(np.clip(0.8 + 1.1 * ageing + generator.normal(0, 0.25), 0.6, 3)),
        fluid_gap=float(1.0 + 1.2 * ageing + generator.uniform(0, 0.8)),
        skull=(
            float(generator.uniform(1.4, 2)),
            float(generator.uniform(1.8, 4)),
            float(generator.uniform(1.3, 1.9)),
        ),
        fat=float(generator.uniform(1.5, 4)),
    )
