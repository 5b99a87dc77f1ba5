"""Image acquisition: sampling on the scanner's grid, slices of a thickness, shading and Rician noise."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.polynomial.legendre import legval
from numpy.typing import NDArray

from steelyard.imaging.anatomy.field import FloatArray
from steelyard.imaging.anatomy.rigid import Matrix

_BLOCK = 3.0  # mm: air is recognised on a grid of about this spacing
_CHUNK = 1 << 16  # points read at a time: few enough to stay in cache
_COIL_RADIUS = 140.0  # mm: the bias field is a polynomial on a cube of twice this side


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The voxels of a scan.

    Args:
        shape: Number of voxels along the three array axes; the third is the slices.
        affine: From voxel indices to millimetres (right, anterior, superior).
        parts: How many samples a voxel averages along the slice direction: the slice has a thickness.
    """

    shape: tuple[int, int, int]
    affine: Matrix
    parts: int = 1

    def points(self, indices: torch.Tensor) -> torch.Tensor:
        """Return where voxel indices (n, 3), whole or not, lie in mm."""
        affine = torch.from_numpy(self.affine).to(torch.float32)
        return indices.to(torch.float32) @ affine[:3, :3].T + affine[:3, 3]

    @property
    def voxel_ml(self) -> float:
        """Volume of a voxel in ml."""
        return float(abs(np.linalg.det(self.affine[:3, :3]))) / 1000


def flair_grid() -> Grid:
    """Return the paper's FLAIR grid: 212 × 256 × 48 axial voxels of 1 × 1 × 3 mm."""
    affine = np.diag([1.0, 1.0, 3.0, 1.0])
    affine[:3, 3] = (-105.5, -127.5, -70.5)
    return Grid(shape=(212, 256, 48), affine=affine, parts=3)


def t1w_grid() -> Grid:
    """Return the T1w grid: 240 × 224 × 160 sagittal voxels of 1 × 1 × 1.2 mm (anterior, superior, right)."""
    affine = np.zeros((4, 4))
    affine[1, 0], affine[2, 1], affine[0, 2], affine[3, 3] = 1.0, 1.0, 1.2, 1.0
    affine[:3, 3] = (-95.4, -119.5, -128.5)
    return Grid(shape=(240, 224, 160), affine=affine)


def sample(
    grid: Grid,
    inside: Callable[[torch.Tensor], torch.Tensor],
    read: Callable[[torch.Tensor], torch.Tensor],
    *,
    channels: int,
) -> FloatArray:
    """Evaluate a function of position on a grid, averaging over the thickness of each slice.

    Args:
        grid: The voxels.
        inside: Points (n, 3) to booleans (n,): where the function may differ from 0. Asked every 3 mm.
        read: Points (n, 3) to values (channels, n).
        channels: How many values `read` returns for a point.

    Returns:
        Values of shape (channels, *grid.shape).
    """
    voxels = _voxels_inside(grid, inside)
    # Along the third index, at the middles of equal parts of the slice.
    shifts = [torch.tensor([0, 0, (part + 0.5) / grid.parts - 0.5]) for part in range(grid.parts)]
    image = np.zeros((channels, *grid.shape), dtype=np.float32)
    flat = image.reshape(channels, -1)
    for start in range(0, len(voxels), _CHUNK):
        chunk = voxels[start : start + _CHUNK]
        indices = torch.from_numpy(np.stack(np.unravel_index(chunk, grid.shape), axis=1).astype(np.float32))
        parts = [read(grid.points(indices + shift)).numpy() for shift in shifts]
        flat[:, chunk] = sum(parts) / grid.parts
    return image


def _voxels_inside(grid: Grid, inside: Callable[[torch.Tensor], torch.Tensor]) -> NDArray[np.int64]:
    """Return the flat indices of all voxels in blocks that touch the inside."""
    spacing = np.linalg.norm(grid.affine[:3, :3], axis=0)
    size = np.maximum(np.rint(_BLOCK / spacing), 1).astype(int)  # of a block, in voxels
    blocks = np.ceil(grid.shape / size).astype(int)  # how many along each axis
    middles = np.indices(blocks).reshape(3, -1).T * size + (size - 1) / 2
    touched = inside(grid.points(torch.from_numpy(middles))).numpy().reshape(blocks)
    for axis, step in enumerate(size):
        touched = touched.repeat(step, axis=axis)
    x, y, z = grid.shape
    return np.flatnonzero(touched[:x, :y, :z])  # the last blocks may reach beyond the grid


@dataclass(frozen=True, kw_only=True)
class Shading:
    """A bias field: exp of a cubic polynomial in scanner coordinates.

    Args:
        coefficients: Of the products of Legendre polynomials, 4 × 4 × 4: the orders along right, anterior, superior.
    """

    coefficients: NDArray[np.float64]

    def on(self, grid: Grid) -> FloatArray:
        """Return the factor by which the field multiplies each voxel of a grid along the scanner's axes."""
        subscripts = ["ijk"]  # of the coefficients: the orders along right, anterior, superior
        factors = []
        for direction, order in enumerate("ijk"):
            axis = int(np.abs(grid.affine[direction, :3]).argmax())  # the array axis along this direction
            step, start = grid.affine[direction, axis], grid.affine[direction, 3]
            positions = (start + step * np.arange(grid.shape[axis])) / _COIL_RADIUS
            factors.append(_legendre(positions).astype(np.float32))
            subscripts.append(order + "xyz"[axis])
        equation = ",".join(subscripts) + "->xyz"
        field = np.einsum(equation, self.coefficients.astype(np.float32), *factors, optimize="optimal")
        return np.asarray(np.exp(field, out=field), dtype=np.float32)


def draw_shading(strength: float, generator: np.random.Generator) -> Shading:
    """Draw a bias field whose logarithm has the s.d. `strength` within the head; low orders dominate."""
    order = np.indices((4, 4, 4)).sum(axis=0)
    allowed = (order > 0) & (order <= 3)
    coefficients = np.where(allowed, generator.standard_normal((4, 4, 4)) / np.maximum(order, 1), 0)
    basis = _legendre(np.linspace(-0.55, 0.55, 8))  # the head's share of the cube
    field = np.einsum("ijk,ix,jy,kz->xyz", coefficients, basis, basis, basis)
    coefficients *= strength / field.std()
    coefficients[0, 0, 0] = -strength * field.mean() / field.std()  # so that the logarithm averages to 0
    return Shading(coefficients=coefficients)


def _legendre(positions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Legendre polynomials of the orders 0 to 3 at positions within −1 to 1: (4, n)."""
    return np.stack([legval(positions, unit) for unit in np.eye(4)])


def rician(signal: FloatArray, noise: float, generator: np.random.Generator) -> FloatArray:
    """Return the magnitude of a signal with noise of s.d. `noise` in its real and its imaginary part."""
    real = generator.standard_normal(signal.shape, dtype=np.float32)
    real *= noise
    real += signal
    imaginary = generator.standard_normal(signal.shape, dtype=np.float32)
    imaginary *= noise
    np.square(real, out=real)
    real += np.square(imaginary, out=imaginary)
    return np.sqrt(real, out=real)
