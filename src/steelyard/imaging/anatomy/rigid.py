"""Rigid motion, and the text file in which ITK keeps it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])


@dataclass(frozen=True, kw_only=True)
class Rigid:
    """A rotation about a centre, then a translation: x ↦ R (x − c) + c + t, right-anterior-superior mm.

    Args:
        angles: Rotations about x, y and z in degrees, applied in that order.
        translation: In mm.
        centre: What the rotation leaves in place, in mm.
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
            turn = np.eye(3)
            i, j = (axis + 1) % 3, (axis + 2) % 3
            turn[i, i] = turn[j, j] = np.cos(angle)
            turn[i, j], turn[j, i] = -np.sin(angle), np.sin(angle)
            rotation = turn @ rotation
        centre = np.asarray(self.centre)
        matrix = np.eye(4)
        matrix[:3, :3] = rotation
        matrix[:3, 3] = centre + self.translation - rotation @ centre
        return matrix


def draw_rigid(generator: np.random.Generator, *, degrees: tuple[float, float, float], millimetres: float) -> Rigid:
    """Draw a motion with the given s.d. of the angles about x, y, z and of the shifts, cut at 2.5 s.d."""
    x, y, z = np.clip(generator.standard_normal(3), -2.5, 2.5) * degrees
    i, j, k = np.clip(generator.standard_normal(3), -2.5, 2.5) * millimetres
    return Rigid(angles=(float(x), float(y), float(z)), translation=(float(i), float(j), float(k)))


def itk_text(matrix: Matrix) -> str:
    """Write a 4 × 4 matrix in right-anterior-superior millimetres as an ITK transform file.

    ITK transforms map points of the *fixed* image to points of the *moving* one, left-posterior-superior mm.
    So the file that takes a T1w image to FLAIR's grid (`from-T1w_to-FLAIR`) holds the map from FLAIR points
    to T1w points, and `SimpleITK.Resample(t1w, flair, transform)` uses it as it is.
    """
    turned = _LPS @ matrix @ _LPS
    numbers = " ".join(repr(float(value)) for value in (*turned[:3, :3].ravel(), *turned[:3, 3]))
    return (
        "#Insight Transform File V1.0\n#Transform 0\nTransform: MatrixOffsetTransformBase_double_3_3\n"
        f"Parameters: {numbers}\nFixedParameters: 0 0 0\n"
    )
