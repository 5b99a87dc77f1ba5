"""What the pictures of scans share: colours, axial planes about a brain, JPEG."""

import io
from typing import Any

import nibabel
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from steelyard.imaging.scans.volumes import Volume, canonical

PAPER, INK, FAINT = "#14171a", "#e8eaed", "#8b949e"
"""Background, text and what stands back."""

OUTLINE, LESION = "#4cd7f0", "#ffd34d"
"""Of a brain and of lesions."""

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
        hit = np.flatnonzero(mask.voxels.any(axis=tuple({0, 1, 2} - {axis})))
        margin = round(_MARGIN_MM / mask.spacing[axis])
        return slice(max(0, int(hit[0]) - margin), int(hit[-1]) + margin + 1)

    def plane(self, volume: Volume, height: int) -> NDArray[Any]:
        """Return one plane, rows from posterior to anterior."""
        turn = nibabel.orientations.io_orientation(volume.affine)
        upright = nibabel.orientations.apply_orientation(volume.voxels, turn)  # a view: `canonical` would copy it all
        plane: NDArray[Any] = upright[self.box[0], self.box[1], height].T
        return plane

    def show(self, axes: Axes, plane: NDArray[Any], **how: Any) -> None:
        """Draw a plane in its true proportions."""
        axes.imshow(plane, origin="lower", aspect=self.spacing[1] / self.spacing[0], **how)
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
