"""Shared parts of the pictures of scans: colours, axial planes around a brain, JPEG."""

import io
from typing import Any

import nibabel
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from steelyard.imaging.scans.boxes import extent_along
from steelyard.imaging.scans.volumes import Volume, canonical

PAPER, INK, FAINT = "#14171a", "#e8eaed", "#8b949e"
"""Colours of the background, of text and of what is less important."""

OUTLINE, LESION = "#4cd7f0", "#ffd34d"
"""Colours of the outlines of a brain and of lesions."""

_MARGIN_MM = 18.0  # of head around the brain


class Window:
    """Axial planes cut out around the brain, right-anterior-superior.

    Args:
        brain: Its mask.
        scan: The scan, on the same grid.
    """

    def __init__(self, brain: Volume, scan: Volume) -> None:
        mask = canonical(brain)
        self.scan = scan
        self.greys = np.percentile(scan.voxels[brain.voxels], [0.5, 99.7])
        self.spacing = mask.spacing
        self.box = tuple(self._span(mask, axis) for axis in (0, 1))
        self.levels = np.flatnonzero(mask.voxels.any(axis=(0, 1)))

    @staticmethod
    def _span(mask: Volume, axis: int) -> slice:
        margin = round(_MARGIN_MM / mask.spacing[axis])
        extent = extent_along(mask.voxels, axis)
        return slice(max(0, extent.start - margin), extent.stop + margin)

    def plane(self, volume: Volume, height: int) -> NDArray[Any]:
        """Return one plane, rows from posterior to anterior."""
        orientation = nibabel.orientations.io_orientation(volume.affine)
        # A view: `canonical` would copy the whole volume.
        upright = nibabel.orientations.apply_orientation(volume.voxels, orientation)
        plane: NDArray[Any] = upright[self.box[0], self.box[1], height].T
        return plane

    def show(self, axes: Axes, plane: NDArray[Any], **style: Any) -> None:
        """Draw a plane in its true proportions."""
        axes.imshow(plane, origin="lower", aspect=self.spacing[1] / self.spacing[0], **style)
        axes.set_axis_off()

    def grey(self, axes: Axes, height: int) -> None:
        """Draw a plane of the scan in the greys of its brain."""
        low, high = self.greys
        self.show(axes, self.plane(self.scan, height), cmap="gray", vmin=min(0.0, float(low)), vmax=float(high))

    def outline(self, axes: Axes, plane: NDArray[Any], *, colour: str) -> None:
        """Draw the outline of a plane of a mask."""
        if plane.any() and not plane.all():
            axes.contour(plane.astype(float), [0.5], colors=colour, linewidths=0.9)


def jpeg(figure: Figure) -> bytes:
    """Return a figure as JPEG."""
    packed = io.BytesIO()
    figure.savefig(packed, format="jpg", dpi=100, facecolor=PAPER, pil_kwargs={"quality": 86})
    return packed.getvalue()
