"""The head around the brain: scalp, face, orbits, air spaces, spine and neck, as simple solids."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import ndimage

from steelyard.imaging.anatomy.field import Field, FloatArray, Vector, field_of
from steelyard.imaging.anatomy.template import load_template

HEAD_TISSUES = ("fat", "marrow", "bone", "fluid", "cord", "porous", "air")
"""The tissues between the skull and the skin besides muscle.

`porous` is bone riddled with air (mastoid cells, turbinates); `fluid` fills eyes and spinal canal.
"""


@dataclass(frozen=True, kw_only=True)
class Head:
    """The head around the brain, in MNI millimetres.

    Args:
        skin_distance: Signed distance to the skin in mm, negative inside.
        shares: Shares of `HEAD_TISSUES`; the rest is muscle. They hold outside the skull alone.
    """

    skin_distance: Field
    shares: Field


@dataclass(frozen=True, kw_only=True)
class _Ellipsoid:
    tissue: str
    centre: Vector
    radii: Vector

    def mirrored(self) -> "_Ellipsoid":
        x, y, z = self.centre
        return _Ellipsoid(tissue=self.tissue, centre=(-x, y, z), radii=self.radii)


def _pair(tissue: str, centre: Vector, radii: Vector) -> tuple[_Ellipsoid, _Ellipsoid]:
    right = _Ellipsoid(tissue=tissue, centre=centre, radii=radii)
    return right, right.mirrored()


_SURFACE = (
    _Ellipsoid(tissue="skin", centre=(0, 42, -72), radii=(64, 64, 66)),  # face
    _Ellipsoid(tissue="skin", centre=(0, 100, -68), radii=(14, 16, 20)),  # nose
    _Ellipsoid(tissue="skin", centre=(0, 62, -118), radii=(46, 42, 36)),  # jaw
    _Ellipsoid(tissue="skin", centre=(0, -28, -150), radii=(60, 62, 95)),  # neck
    *_pair("skin", (62, 8, -38), (20, 46, 46)),  # cheek and temple
    *_pair("skin", (80, -28, -48), (9, 16, 26)),  # ear
)

_INTERIOR = (  # later solids lie over earlier ones
    *_pair("fat", (40, 52, -78), (18, 22, 26)),
    _Ellipsoid(tissue="bone", centre=(0, 58, -95), radii=(34, 38, 12)),  # upper jaw
    _Ellipsoid(tissue="bone", centre=(0, 62, -130), radii=(40, 38, 11)),  # lower jaw
    _Ellipsoid(tissue="marrow", centre=(0, 62, -130), radii=(36, 34, 7)),
    _Ellipsoid(tissue="muscle", centre=(0, 50, -112), radii=(26, 36, 18)),  # tongue
    _Ellipsoid(tissue="marrow", centre=(0, -2, -52), radii=(15, 22, 13)),  # clivus
    _Ellipsoid(tissue="porous", centre=(0, 58, -66), radii=(15, 34, 22)),  # nasal cavity
    _Ellipsoid(tissue="porous", centre=(0, 52, -42), radii=(13, 24, 11)),  # ethmoid cells
    _Ellipsoid(tissue="air", centre=(0, 24, -42), radii=(11, 10, 9)),  # sphenoid sinus
    *_pair("air", (29, 52, -72), (11, 17, 15)),  # maxillary sinus
    *_pair("air", (10, 84, -20), (8, 5, 9)),  # frontal sinus
    *_pair("porous", (54, -32, -50), (16, 18, 20)),  # mastoid cells
    *_pair("air", (66, -22, -48), (14, 3, 3)),  # ear canal
    *_pair("fat", (31, 52, -38), (17, 30, 16)),  # orbit
    *_pair("muscle", (27, 38, -36), (4, 20, 4)),  # optic nerve
    *_pair("fluid", (32, 68, -38), (12, 12, 12)),  # eye
    _Ellipsoid(tissue="air", centre=(0, 14, -92), radii=(9, 8, 30)),  # pharynx
    _Ellipsoid(tissue="bone", centre=(0, -40, -150), radii=(22, 26, 78)),  # spine
    _Ellipsoid(tissue="marrow", centre=(0, -26, -150), radii=(14, 12, 70)),
    _Ellipsoid(tissue="fluid", centre=(0, -46, -130), radii=(11, 10, 68)),  # spinal canal
    _Ellipsoid(tissue="cord", centre=(0, -46, -130), radii=(6, 5, 68)),
)


@lru_cache(maxsize=1)
def load_head() -> Head:
    """Build the head around the template's brain; once per process."""
    grid = load_template().brain_distance
    shares = dict.fromkeys(HEAD_TISSUES, np.zeros(grid.values.shape[1:], dtype=np.float32))
    for solid in _INTERIOR:
        inside = _softly_inside(solid, grid)
        shares = {name: share * (1 - inside) for name, share in shares.items()}
        if solid.tissue in shares:
            shares[solid.tissue] = shares[solid.tissue] + inside
    return Head(
        skin_distance=field_of(_skin_distance(grid), origin=grid.origin, spacing=grid.spacing),
        shares=field_of(*shares.values(), origin=grid.origin, spacing=grid.spacing),
    )


def _radius(solid: _Ellipsoid, grid: Field) -> FloatArray:
    """Return approximate signed distances (mm) to an ellipsoid, negative inside."""
    x, y, z = grid.positions()
    x = (x - solid.centre[0]) / solid.radii[0]
    y = (y - solid.centre[1]) / solid.radii[1]
    z = (z - solid.centre[2]) / solid.radii[2]
    return np.asarray((np.sqrt(x * x + y * y + z * z) - 1) * min(solid.radii), dtype=np.float32)


def _softly_inside(solid: _Ellipsoid, grid: Field) -> FloatArray:
    """Return 1 inside, 0 outside, and the share in between over one voxel at the surface."""
    return np.asarray(np.clip(0.5 - _radius(solid, grid) / grid.spacing, 0, 1), dtype=np.float32)


def _skin_distance(brain_distance: Field) -> FloatArray:
    """Distance to the skin: 14 mm off the brain, more over the temples, joined with face and neck."""
    x, y, z = brain_distance.positions()
    temple = np.exp(-(((np.abs(x) - 66) / 22) ** 2) - ((y - 12) / 30) ** 2 - ((z + 18) / 28) ** 2)
    distance = brain_distance.values[0].numpy() - 14 - 7 * temple
    for solid in _SURFACE:
        distance = np.minimum(distance, _radius(solid, brain_distance))
    return np.asarray(ndimage.gaussian_filter(distance, 1.5), dtype=np.float32)
