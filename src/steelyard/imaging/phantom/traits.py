"""What is drawn for a subject before anything is simulated: age, size, how far ageing has gone, lesions, motion."""

from dataclasses import dataclass

import numpy as np

from steelyard.imaging.anatomy.field import Vector
from steelyard.imaging.anatomy.rigid import Matrix, Rigid, draw_rigid

LOAD_RANGE = (1.0, 40.0)
"""Smallest and largest volume of the white matter hyperintensities, in ml."""

_MEDIAN_LOAD, _LOAD_SPREAD = 8.0, 0.95  # ml at 67 years; s.d. of the logarithm
_BRAIN_CENTRE = (0.0, -17.0, 8.0)  # mm, MNI: what the operator brings to the middle of the FLAIR slices


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


@dataclass(frozen=True, kw_only=True)
class Traits:
    """A subject in numbers.

    Args:
        physique: Age, size and ageing of the head.
        load_ml: Volume of the white matter hyperintensities.
        pose: How the head lies in the scanner during FLAIR.
        motion: From where a point was during FLAIR to where it was during T1w.
        lesion_contrast: How far the lesions' T2 is from white matter's; 1 is typical.
        damage: Which part of the lesions' tissue is lost, on average: it darkens them on T1w.
        lining: How bright the line along the ventricles is, 0 (none) to 1.
        gains: The scanner's arbitrary units per signal of white matter, T1w and FLAIR.
    """

    physique: Physique
    load_ml: float
    pose: Rigid
    motion: Rigid
    lesion_contrast: float
    damage: float
    lining: float
    gains: tuple[float, float]

    def flair_to_head(self) -> Matrix:
        """Return the map from points of the FLAIR scan to points of the head."""
        matrix: Matrix = np.linalg.inv(self.pose.matrix()).astype(np.float64)
        matrix[:3, 3] += np.asarray(_BRAIN_CENTRE) * self.physique.size
        return matrix


def draw_traits(generator: np.random.Generator) -> Traits:
    """Draw age, physique, lesion load, posture, motion between the scans, and the scanner's gains."""
    age = draw_age(generator)
    return Traits(
        physique=draw_physique(age, generator),
        load_ml=draw_load(age, generator),
        pose=draw_rigid(generator, degrees=(4.0, 1.5, 2.0), millimetres=2.0),
        motion=draw_rigid(generator, degrees=(2.0, 1.5, 2.0), millimetres=3.0),
        lesion_contrast=float(np.clip(generator.normal(1.0, 0.15), 0.7, 1.3)),
        gains=(float(generator.uniform(250, 700)), float(generator.uniform(200, 500))),
        damage=float(generator.uniform(0.05, 0.5)),
        lining=float(generator.uniform(0.1, 0.6)),
    )


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


def draw_load(age: float, generator: np.random.Generator) -> float:
    """Draw a volume: lognormal, its median 8 ml at 67 years and doubling in 20, within 1 to 40 ml."""
    median = _MEDIAN_LOAD * 2 ** ((age - 67) / 20)
    low, high = LOAD_RANGE
    while True:
        load = float(median * np.exp(_LOAD_SPREAD * generator.standard_normal()))
        if low <= load <= high:
            return load
