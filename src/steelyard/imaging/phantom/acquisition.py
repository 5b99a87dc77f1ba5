"""What the scanner makes of a head: sampling on its grid, slices of a thickness, shading and Rician noise."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.polynomial.legendre import legval
from numpy.typing import NDArray

from steelyard.imaging.phantom.field import FloatArray
from steelyard.imaging.phantom.rigid import Matrix

_BLOCK = 4  # voxels: air is recognised on a grid this much coarser
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
    """Return the T1w grid: 240 × 256 × 160 sagittal voxels of 1 × 1 × 1.2 mm, axes to anterior, superior, right."""
    affine = np.zeros((4, 4))
    affine[1, 0], affine[2, 1], affine[0, 2], affine[3, 3] = 1.0, 1.0, 1.2, 1.0
    affine[:3, 3] = (-95.4, -119.5, -147.5)
    return Grid(shape=(240, 256, 160), affine=affine)


def sample(
    grid: Grid, inside: Callable[[torch.Tensor], torch.Tensor], read: Callable[[torch.Tensor], torch.Tensor]
) -> FloatArray:
    """Evaluate a function of position on a grid, averaging over the thickness of each slice.

    Args:
        grid: The voxels.
        inside: Points (n, 3) to booleans (n,): where the function may differ from 0. Asked on a coarse grid only.
        read: Points (n, 3) to values (channels, n).

    Returns:
        Values of shape (channels, *grid.shape).
    """
    indices = torch.from_numpy(_voxels_inside(grid, inside))
    total = torch.zeros(0)
    for part in range(grid.parts):
        shift = (part + 0.5) / grid.parts - 0.5
        values = torch.cat(
            [read(grid.points(chunk + torch.tensor([0, 0, shift]))) for chunk in indices.split(1 << 18)], dim=1
        )
        total = values / grid.parts if part == 0 else total + values / grid.parts
    image = torch.zeros(len(total), *grid.shape)
    image[:, indices[:, 0], indices[:, 1], indices[:, 2]] = total
    return np.asarray(image.numpy())


def _voxels_inside(grid: Grid, inside: Callable[[torch.Tensor], torch.Tensor]) -> NDArray[np.int64]:
    """Return the indices (n, 3) of all voxels in blocks that touch the inside."""
    blocks = [-(-count // _BLOCK) for count in grid.shape]
    corners = np.indices(blocks).reshape(3, -1).T * _BLOCK + (_BLOCK - 1) / 2
    touched = inside(grid.points(torch.from_numpy(corners))).numpy().reshape(blocks)
    for axis, count in enumerate(grid.shape):
        touched = touched.repeat(_BLOCK, axis=axis).take(range(count), axis=axis)
    return np.argwhere(touched)


@dataclass(frozen=True, kw_only=True)
class Shading:
    """A bias field: the exponential of a cubic polynomial in scanner coordinates (coefficients of Legendre products)."""

    coefficients: NDArray[np.float64]

    def on(self, grid: Grid) -> FloatArray:
        """Return the factor by which the field multiplies each voxel of a grid whose axes are the scanner's."""
        factors = []
        for direction in range(3):
            axis = int(np.abs(grid.affine[direction, :3]).argmax())
            step, start = grid.affine[direction, axis], grid.affine[direction, 3]
            positions = (start + step * np.arange(grid.shape[axis])) / _COIL_RADIUS
            factors.append((axis, np.stack([legval(positions, unit) for unit in np.eye(4)])))
        names = "".join("xyz"[axis] for axis, _ in factors)
        (_, a), (_, b), (_, c) = factors
        field = np.einsum(
            f"ijk,i{names[0]},j{names[1]},k{names[2]}->xyz", self.coefficients, a, b, c, optimize="optimal"
        )
        return np.exp(field).astype(np.float32)


def draw_shading(strength: float, generator: np.random.Generator) -> Shading:
    """Draw a bias field whose logarithm has about the s.d. `strength` within the head; low orders dominate."""
    order = np.indices((4, 4, 4)).sum(axis=0)
    allowed = (order > 0) & (order <= 3)
    coefficients = np.where(allowed, generator.standard_normal((4, 4, 4)) / np.maximum(order, 1), 0)
    head = np.linspace(-0.55, 0.55, 8)
    basis = np.stack([legval(head, unit) for unit in np.eye(4)])
    field = np.einsum("ijk,ix,jy,kz->xyz", coefficients, basis, basis, basis)
    coefficients *= strength / field.std()
    coefficients[0, 0, 0] = -strength * field.mean() / field.std()
    return Shading(coefficients=coefficients)


def rician(signal: FloatArray, noise: float, generator: np.random.Generator) -> FloatArray:
    """Return the magnitude of a signal with Gaussian noise of s.d. `noise` in its real and imaginary parts."""
    real = generator.standard_normal(signal.shape, dtype=np.float32)
    real *= noise
    real += signal
    imaginary = generator.standard_normal(signal.shape, dtype=np.float32)
    imaginary *= noise
    return np.hypot(real, imaginary)
