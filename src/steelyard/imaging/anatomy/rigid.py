"""Rigid motion."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Rigid:
    """A rotation about a centre, then a translation: x ↦ R (x − c) + c + t, right-anterior-superior mm.

    Args:
        angles: Rotations about x, y and z in degrees, applied in that order.
        translation: In mm.
        centre: The point that the rotation leaves unchanged, in mm.
    """

    angles: tuple[float, float, float]
    translation: tuple[float, float, float]
    centre: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def matrix(self) -> Matrix:
        """Return the 4 × 4 matrix.

        >>> Rigid(angles=(0, 0, 90), translation=(0, 0, 1)).matrix().round() @ [1, 0, 0, 1]
        array([0., 1., 1., 1.])
        """
        rotation = np.eye(3)
        for axis, angle in enumerate(np.radians(self.angles)):
            i, j = (axis + 1) % 3, (axis + 2) % 3  # the plane that turns about this axis
            about_axis = np.eye(3)
            about_axis[i, i] = about_axis[j, j] = np.cos(angle)
            about_axis[i, j], about_axis[j, i] = -np.sin(angle), np.sin(angle)
            rotation = about_axis @ rotation
        centre = np.asarray(self.centre)
        matrix = np.eye(4)
        matrix[:3, :3] = rotation
        matrix[:3, 3] = centre + self.translation - rotation @ centre
        return matrix


def draw_rigid(generator: np.random.Generator, *, degrees: tuple[float, float, float], millimetres: float) -> Rigid:
    """Draw a motion whose angles about x, y, z and whose shifts have these s.d., clipped at 2.5 s.d."""
    angles = np.clip(generator.standard_normal(3), -2.5, 2.5) * degrees
    shifts = np.clip(generator.standard_normal(3), -2.5, 2.5) * millimetres
    return Rigid(angles=tuple(angles.tolist()), translation=tuple(shifts.tolist()))
