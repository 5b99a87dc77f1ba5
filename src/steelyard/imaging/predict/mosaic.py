"""The picture by which a person judges what was found in one scan."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from steelyard.imaging.anatomy.lesions import PERIVENTRICULAR_MM
from steelyard.imaging.datasets.bids import SUFFIX
from steelyard.imaging.predict.pipeline import Prediction
from steelyard.imaging.predict.table import Row
from steelyard.imaging.scans.distances import near
from steelyard.imaging.scans.pictures import FAINT, INK, OUTLINE, PAPER, Window, jpeg
from steelyard.imaging.scans.volumes import Volume

_NEAR, _FAR = "#ff9d5c", "#ffe14d"  # beside the ventricles, and deep or unknown
_ROWS, _COLUMNS = 3, 4
_WIDTH, _TITLE = 11.0, 0.8  # inches
_LOW, _HIGH = 0.1, 0.94  # the part of the brain's height that is shown


def draw_mosaic(found: Prediction, row: Row) -> bytes:
    """Return a JPEG of axial slices through the brain with the outlines of brain and lesions.

    The brain's height is cut into as many bands as there are slices; of each the slice with most lesion is shown.
    """
    window = Window(found.brain, found.scan)
    panel = _WIDTH / _COLUMNS
    wide, high = ((box.stop - box.start) * edge for box, edge in zip(window.box, window.spacing, strict=False))
    height = _ROWS * panel * min(1.5, high / wide) + _TITLE
    figure = Figure(figsize=(_WIDTH, height), facecolor=PAPER)
    top = 1 - _TITLE / height
    grid = figure.add_gridspec(_ROWS, _COLUMNS, left=0.01, right=0.99, top=top, bottom=0.01, wspace=0.02, hspace=0.02)
    beside = _beside(found)
    for number, level in enumerate(_levels(window.levels, found.lesions.mask)):
        axes = figure.add_subplot(grid[number // _COLUMNS, number % _COLUMNS])
        _panel(axes, window, found, beside=beside, level=level)
        if not number:
            axes.text(0.98, 0.5, "R", color=FAINT, fontsize=9, ha="right", va="center", transform=axes.transAxes)
    _captions(figure, row, height)
    return jpeg(figure)


def _levels(levels: NDArray[np.int64], mask: Volume) -> list[int]:
    """Return the slices to show, from below."""
    shown = levels[round(_LOW * (len(levels) - 1)) : round(_HIGH * (len(levels) - 1)) + 1]
    bands = np.array_split(shown, min(_ROWS * _COLUMNS, len(shown)))
    area = mask.voxels.sum(axis=(0, 1))
    return [int(band[area[band].argmax()] if area[band].any() else band[len(band) // 2]) for band in bands]


def _beside(found: Prediction) -> Volume:
    mask = found.lesions.mask
    if found.ventricles is None:
        return mask.with_voxels(np.zeros_like(mask.voxels))
    return mask.with_voxels(mask.voxels & near(found.ventricles, PERIVENTRICULAR_MM))


def _panel(axes: Axes, window: Window, found: Prediction, *, beside: Volume, level: int) -> None:
    window.grey(axes, level)
    window.outline(axes, window.plane(found.brain, level), colour=f"{OUTLINE}66")
    close = window.plane(beside, level)
    rest = window.plane(found.lesions.mask, level) & ~close
    for plane, colour in ((close, _NEAR), (rest, _FAR)):
        window.outline(axes, plane, colour=colour)
    axes.text(0.02, 0.02, f"slice {level + 1}", color=FAINT, fontsize=8, transform=axes.transAxes)


def _captions(figure: Figure, row: Row, height: float) -> None:
    name = f"{row.scan.split('_space-')[0]}   {SUFFIX.get(row.contrast, 'scan')}"
    figure.text(0.012, 1 - 0.32 / height, name, color=INK, fontsize=13, weight="bold", parse_math=False)
    count = "1 lesion" if row.lesions == 1 else f"{row.lesions} lesions"
    figure.text(0.012, 1 - 0.62 / height, f"{row.wmh_ml:.2f} ml in {count}", color=INK, fontsize=11)
    parts = [("outline of the brain", OUTLINE), ("deep lesion" if row.deep_ml is not None else "lesion", _FAR)]
    if row.deep_ml is not None:
        parts = [
            parts[0],
            (f"deep, {row.deep_ml:.2f} ml", _FAR),
            (f"within {PERIVENTRICULAR_MM:g} mm of the ventricles, {row.periventricular_ml:.2f} ml", _NEAR),
        ]
    right = 0.988
    for text, colour in parts:
        drawn = figure.text(right, 1 - 0.62 / height, text, color=colour, fontsize=9, ha="right")
        right -= drawn.get_window_extent().width / figure.bbox.width + 0.02
