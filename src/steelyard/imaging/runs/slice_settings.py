"""Which slices a network learns from, and how they are changed at random."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from steelyard.errors import UserError
from steelyard.files.checks import brief, check_kind, check_number, check_whole
from steelyard.imaging.scans.frame import Frame

_MOST = 100_000  # slices of a scan
_SMALLEST = 0.01  # magnification; a hundredth of a slice is a pixel or two


@dataclass(frozen=True, kw_only=True)
class SliceChoice:
    """Which axial slices of a subject to take, and how large.

    Args:
        count: How many consecutive slices; default: the paper's 5. `None` takes every slice with brain in it.
        first: Index of the lowest slice, from below, the same for every subject as in the paper. `None` centres the
            slices at `height`.
        height: The position of the middle slice, as a share of the brain's extent from its lowest slice to its
            highest. Most white matter hyperintensities lie at 0.65, the upper half of the lateral ventricles.
        frame: Size and resolution of each slice; default: those of the scan.
    """

    count: int | None = 5
    first: int | None = None
    height: float = 0.65
    frame: Frame = field(default_factory=Frame)

    def __post_init__(self) -> None:
        if self.count is not None:
            check_whole("count", self.count, 1, _MOST)
        if self.first is not None:
            check_whole("first", self.first, 0, _MOST)
        check_number("height", self.height, 0, 1)
        check_kind("frame", self.frame, Frame)

    def pick(self, brain: NDArray[np.bool_]) -> range:
        """Return the indices of the slices, lowest first.

        >>> SliceChoice(height=0.5).pick(np.ones((4, 4, 11), dtype=bool))
        range(3, 8)
        """
        levels = np.flatnonzero(brain.any(axis=(0, 1)))  # indices of the axial planes with brain
        depth = brain.shape[2]
        if self.count is None:
            return range(int(levels[0]), int(levels[-1]) + 1)
        if self.first is None:
            middle = levels[0] + self.height * (levels[-1] - levels[0])
            first = round(float(middle) - (self.count - 1) / 2)
            first = min(max(first, 0), depth - self.count)
        else:
            first = self.first
        if first < 0 or first + self.count > depth:
            raise UserError(f"slices {first} to {first + self.count - 1} are wanted; there are {depth}")
        return range(first, first + self.count)


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """How each slice is changed before the network sees it; the defaults are the paper's.

    Args:
        rotation: Largest angle in either direction, in degrees.
        scale: Smallest and largest magnification.
        shear: Largest angle in either direction, in degrees.
        flip: Whether left and right are exchanged in half of the slices.
        gain: Largest relative change of the contrast, up or down.
        offset: Largest shift of the intensities, up or down, in s.d. of the white stripe; the background stays zero.
    """

    rotation: float = 180.0
    scale: tuple[float, float] = (0.8, 1.2)
    shear: float = 30.0
    flip: bool = False
    gain: float = 0.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        check_number("rotation", self.rotation, 0, 180)
        check_number("shear", self.shear, 0, 80)
        check_number("gain", self.gain, 0, 0.999)
        check_number("offset", self.offset, 0)
        check_kind("flip", self.flip, bool)
        if not isinstance(self.scale, tuple) or len(self.scale) != 2:
            raise UserError(f"scale must be two positive numbers, the smaller first; got {brief(self.scale)}.")
        smallest, largest = (check_number("scale", factor, _SMALLEST, 1 / _SMALLEST) for factor in self.scale)
        if smallest > largest:
            raise UserError(f"scale must be two positive numbers, the smaller first; got {self.scale}.")

    def __call__(self, images: Tensor, masks: Tensor, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return a randomly changed copy of images and masks, samples × 1 × rows × columns; samples differ.

        Voxels are taken from their nearest neighbour, so that a mask stays a mask and an image keeps its noise.
        """
        both = torch.cat([images, masks], dim=1)  # as two channels, so that both move alike
        grid = affine_grid(self._matrices(both, generator).to(both), list(both.shape), align_corners=False)
        moved = grid_sample(both, grid, mode="nearest", align_corners=False)
        changed, moved_masks = torch.split(moved, [images.shape[1], masks.shape[1]], dim=1)
        return self._intensities(changed, generator), (moved_masks > 0.5).to(masks.dtype)

    def _matrices(self, both: Tensor, generator: torch.Generator) -> Tensor:
        """Return 2×3 matrices from the new image's coordinates (−1 to 1) to the old image's, as torch wants them."""
        count, _, rows, columns = both.shape
        # Four numbers per sample are drawn whether they are used or not, so that a setting does not change the others.
        rotation, size, slant, side = torch.rand(4, count, generator=generator)  # each within 0 to 1
        angle = torch.deg2rad((2 * rotation - 1) * self.rotation)
        smallest, largest = self.scale
        zoom = smallest + size * (largest - smallest)
        shear = torch.tan(torch.deg2rad((2 * slant - 1) * self.shear))
        mirror = torch.ones(count)
        if self.flip:
            mirror = torch.where(side < 0.5, -1.0, 1.0)
        cosine, sine = angle.cos() / zoom, angle.sin() / zoom
        stretch = rows / columns  # coordinates run from −1 to 1 along both sides, however long
        matrices = torch.zeros(count, 2, 3)
        matrices[:, 0, 0] = cosine * mirror
        matrices[:, 0, 1] = (cosine * shear - sine) * stretch
        matrices[:, 1, 0] = sine * mirror / stretch
        matrices[:, 1, 1] = sine * shear + cosine
        return matrices

    def _intensities(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Change contrast and brightness of each sample; the background stays zero."""
        if not self.gain and not self.offset:
            return images
        gain, offset = (torch.rand(2, images.shape[0], 1, 1, 1, generator=generator) * 2 - 1).to(images)
        return torch.where(images == 0, images, images * (1 + self.gain * gain) + self.offset * offset)
