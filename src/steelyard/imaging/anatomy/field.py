"""Quantities on regular grids in millimetres, read at any point."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import grid_sample

FloatArray = NDArray[np.float32]
Vector = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Field:
    """Channels on a regular, axis-aligned grid in millimetres (x to the right, y forward, z up).

    Args:
        values: The channels, shape (channels, x, y, z).
        origin: Where voxel (0, 0, 0) lies, in mm.
        spacing: Distance between voxels, in mm.

    >>> ramp = torch.arange(4.0).reshape(1, 4, 1, 1).expand(1, 4, 2, 2)
    >>> Field(values=ramp, origin=(0.0, 0.0, 0.0), spacing=2.0).at(torch.tensor([[3.0, 1.0, 1.0]]))
    tensor([[1.5000]])
    """

    values: torch.Tensor
    origin: Vector
    spacing: float

    def at(self, points: torch.Tensor) -> torch.Tensor:
        """Interpolate linearly at points (n, 3); beyond the grid its edge continues. Returns (channels, n)."""
        # grid_sample counts from -1 at the first voxel to 1 at the last, and takes x as the last axis.
        half_extent = (torch.tensor(self.values.shape[1:]) - 1) * self.spacing / 2
        relative = torch.addcmul(-torch.tensor(self.origin) / half_extent - 1, points, 1 / half_extent)
        volume = self.values[None].permute(0, 1, 4, 3, 2)
        values = grid_sample(volume, relative[None, :, None, None], padding_mode="border", align_corners=True)
        return values.reshape(len(self.values), -1)

    def positions(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the x, y and z of the voxels in mm, as arrays that broadcast to the grid."""
        x, y, z = (self._positions_along(axis) for axis in range(3))
        return x[:, None, None], y[None, :, None], z[None, None, :]

    def _positions_along(self, axis: int) -> FloatArray:
        indices = np.arange(self.values.shape[axis + 1], dtype=np.float32)  # axis 0 of the values is the channels
        return self.origin[axis] + self.spacing * indices


def field_of(*channels: NDArray[np.floating], origin: Vector, spacing: float) -> Field:
    """Stack arrays of one shape into a `Field` of float32 channels."""
    stacked = np.stack([np.asarray(channel, dtype=np.float32) for channel in channels])
    return Field(values=torch.from_numpy(stacked), origin=origin, spacing=spacing)
