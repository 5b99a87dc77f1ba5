"""What is drawn for a subject before anything is simulated."""

from dataclasses import dataclass

import numpy as np

from steelyard.imaging.anatomy.rigid import Matrix, Rigid, draw_rigid
from steelyard.imaging.phantom.lesions import draw_load
from steelyard.imaging.phantom.physique import Physique, draw_age, draw_physique

_BRAIN_CENTRE = (0.0, -17.0, 8.0)  # mm, MNI: what the operator brings to the middle of the FLAIR slices


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
