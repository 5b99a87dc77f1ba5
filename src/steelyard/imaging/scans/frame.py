"""Between a scan's own axial planes and the planes that a network sees.

A mask of a subject reaches another grid by one of these rules. Whoever changes one raises its revision, so that results
of the old rule are not used again. Paths are those under `imaging/`.

| grids | rule | function | revision |
| --- | --- | --- | --- |
| T1 to FLAIR | nearest neighbour | preprocess/pipeline `_t1_mask_on_flair_grid` | preprocess/settings `REVISION` |
| scan to network | at least half a pixel | scans/frame `Placement.cut_mask` | train/slices `_CUT_REVISION` |
| network to scan | probabilities, interpolated | scans/frame `Placement.back` | predict/options `REVISION` |
| then on the scan | above the threshold | networks/inference `lesion_mask` | predict/options `REVISION` |

Both ways between a scan and a network use `_interpolation`: a change to it raises both of their revisions. Augmentation
also moves masks (nearest neighbour, `runs/slice_settings.py`), at every step and without a file that could be outdated.
"""

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from steelyard.errors import UserError
from steelyard.files.checks import brief, check_number
from steelyard.imaging.scans.masks import extent_along
from steelyard.imaging.scans.volumes import Volume

Matrix = NDArray[np.float32]

LARGEST = 1024
"""Most rows or columns of a frame; more would be a mistake, and memory."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The size and resolution of a network's planes.

    Args:
        shape: Rows and columns, centred on the brain; default those of the scan.
        pixel_mm: Edge of a pixel; default the scan's own.
    """

    shape: tuple[int, int] | None = None
    pixel_mm: float | None = None

    def __post_init__(self) -> None:
        if self.shape is not None and not _is_shape(self.shape):
            raise UserError(f"shape must be two whole numbers within 1 to {LARGEST}; got {brief(self.shape)}.")
        if self.pixel_mm is not None:
            check_number("pixel_mm", self.pixel_mm, 0.1, 20)

    def place(self, brain: Volume, *, shift: tuple[float, float] = (0.0, 0.0)) -> "Placement":
        """Lay the frame on a brain, whose axes run right, anterior, superior.

        Args:
            brain: Its mask.
            shift: How far off the middle, in pixels along rows and columns.
        """
        # A plane's rows run along the scan's axis 1 (anterior), its columns along axis 0 (right).
        return Placement(*self._along(brain, axis=1, shift=shift[0]), *self._along(brain, axis=0, shift=shift[1]))

    def covering(self, brain: Volume, *, multiple: int = 16) -> "Frame":
        """Return the frame, enlarged where the brain would not fit, in steps that a network can halve.

        A frame without a shape gets the smallest that the brain fits.
        """
        rows, columns = self.shape or (multiple, multiple)
        needed_rows, needed_columns = self._needed(brain, axis=1), self._needed(brain, axis=0)
        if needed_rows > rows:
            rows = multiple * math.ceil(needed_rows / multiple)
        if needed_columns > columns:
            columns = multiple * math.ceil(needed_columns / multiple)
        return replace(self, shape=(rows, columns))

    def _needed(self, brain: Volume, *, axis: int) -> int:
        """Return how many pixels a frame that is centred on the brain needs along an axis to cover it."""
        extent = extent_along(brain.voxels, axis)
        middle = _middle(brain, axis=axis)
        half: float = max(middle - extent.start, extent.stop - 1 - middle)
        step = (self.pixel_mm or brain.spacing[axis]) / brain.spacing[axis]
        return math.ceil((2 * half + 1) / step)

    def _along(self, brain: Volume, *, axis: int, shift: float) -> tuple[Matrix, Matrix]:
        """Return the matrices into the frame and back along an axis; rows count from the front of the head."""
        size = brain.voxels.shape[axis]
        step = 1.0  # voxels of the scan for each pixel of the frame
        if self.pixel_mm is not None:
            step = self.pixel_mm / round(brain.spacing[axis], 4)
        if self.shape is None:
            count = math.ceil(size / step)
            middle = (size - 1) / 2
        else:
            count = self.shape[1 - axis]
            middle = _middle(brain, axis=axis)
            if axis == 1:
                middle = size - 1 - middle  # counted from the front
        start = middle - (count - 1) / 2 * step + shift * step
        if self.pixel_mm is None:
            start = float(math.floor(start))  # whole voxels: nothing is interpolated
        into = _interpolation(start, step, into=count, out_of=size)
        return into, _interpolation(-start / step, 1 / step, into=size, out_of=count)


@dataclass(frozen=True)
class Placement:
    """A frame laid on one scan: linear interpolation, averaging where the frame is coarser.

    Args:
        rows: From the scan's rows, front first, to the frame's.
        rows_back: From the frame's rows to the scan's.
        columns: From the scan's columns to the frame's.
        columns_back: From the frame's columns to the scan's.
    """

    rows: Matrix
    rows_back: Matrix
    columns: Matrix
    columns_back: Matrix

    def cut(self, voxels: NDArray[np.generic], indices: range) -> Matrix:
        """Return axial planes as slices × rows × columns, anterior up; zeros where the frame leaves the scan."""
        planes = np.transpose(voxels[:, :, indices.start : indices.stop], (2, 1, 0))[:, ::-1].astype(np.float32)
        with _one_thread().limit(limits=1, user_api="blas"):
            return np.ascontiguousarray(self.rows @ planes @ self.columns.T)

    def cut_mask(self, voxels: NDArray[np.bool_], indices: range) -> NDArray[np.bool_]:
        """Return a mask resampled to the frame's planes: where at least half of a pixel is inside.

        The table at the top of this file lists the rules for masks, and the revision to raise if this one changes.
        """
        return self.cut(voxels, indices) >= 0.5

    def back(self, planes: Matrix) -> Matrix:
        """Return planes as voxels on the scan's own grid, as deep as there are planes."""
        with _one_thread().limit(limits=1, user_api="blas"):
            back = self.rows_back @ planes.astype(np.float32, copy=False) @ self.columns_back.T
        return np.transpose(back[:, ::-1], (2, 1, 0))


@cache
def _one_thread() -> ThreadpoolController:
    """Limits the threads of matrix products, because their last bits depend on the number of threads.

    The same scan must give the same planes in every process: a run knows its subjects by a digest of them.
    """
    return ThreadpoolController()


def _is_shape(shape: object) -> bool:
    return isinstance(shape, tuple) and len(shape) == 2 and all(map(_is_size, shape))


def _is_size(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= LARGEST


def _middle(brain: Volume, *, axis: int) -> float:
    """Return the brain's centre of mass along an axis; unlike its extent, it hardly moves when a border voxel does."""
    counts = brain.voxels.sum(axis=tuple({0, 1, 2} - {axis}), dtype=np.float64)
    return float(counts @ np.arange(len(counts)) / counts.sum())


def _interpolation(start: float, step: float, *, into: int, out_of: int) -> Matrix:
    """Return the matrix that takes samples at 0, 1, … to samples at start, start + step, …; zero lies outside.

    The kernel is a triangle as wide as the coarser of the two grids, so that nothing is skipped.

    >>> _interpolation(0.5, 1.0, into=2, out_of=3)
    array([[0.5, 0.5, 0. ],
           [0. , 0.5, 0.5]], dtype=float32)
    """
    width = max(1.0, step)
    targets = start + step * np.arange(into)
    # Samples beyond the grid take part in the normalisation, then are dropped: they count as zeros.
    margin = math.ceil(max(0.0, -targets[0], targets[-1] - out_of)) + math.ceil(width) + 1
    samples = np.arange(-margin, out_of + margin)
    weights = np.clip(1 - np.abs(targets[:, None] - samples[None]) / width, 0, None)
    weights /= weights.sum(axis=1, keepdims=True)
    inside: Matrix = weights[:, margin:-margin].astype(np.float32)
    return inside
