"""The picture by which a person judges the lesions found in one scan."""

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

_PERIVENTRICULAR_COLOUR = "#ff9d5c"
_DEEP_COLOUR = "#ffe14d"  # also of all lesions where the ventricles were not found
_ROWS, _COLUMNS = 3, 4
_WIDTH, _TITLE_HEIGHT = 11.0, 0.8  # inches
_LOWEST, _HIGHEST = 0.1, 0.94  # the part of the brain's height that is shown


def draw_mosaic(prediction: Prediction, row: Row) -> bytes:
    """Return a JPEG of axial slices through the brain with the outlines of brain and lesions.

    The brain's height is cut into as many bands as there are panels. Each panel shows the slice with most lesion.
    """
    window = Window(prediction.brain, prediction.scan)
    height = _ROWS * _WIDTH / _COLUMNS * _panel_aspect(window) + _TITLE_HEIGHT
    figure = Figure(figsize=(_WIDTH, height), facecolor=PAPER)
    top = 1 - _TITLE_HEIGHT / height
    grid = figure.add_gridspec(_ROWS, _COLUMNS, left=0.01, right=0.99, top=top, bottom=0.01, wspace=0.02, hspace=0.02)
    periventricular = _periventricular_lesions(prediction)
    for number, level in enumerate(_levels(window.levels, prediction.lesions.mask)):
        axes = figure.add_subplot(grid[number // _COLUMNS, number % _COLUMNS])
        _draw_panel(axes, window, prediction, periventricular=periventricular, level=level)
        if number == 0:
            axes.text(0.98, 0.5, "R", color=FAINT, fontsize=9, ha="right", va="center", transform=axes.transAxes)
    _draw_captions(figure, row, height)
    return jpeg(figure)


def _panel_aspect(window: Window) -> float:
    """Return a panel's height over its width: the brain's, but at most 1.5."""
    x, y = window.box
    width_mm = float((x.stop - x.start) * window.spacing[0])
    height_mm = float((y.stop - y.start) * window.spacing[1])
    return min(1.5, height_mm / width_mm)


def _levels(levels: NDArray[np.int64], mask: Volume) -> list[int]:
    """Return the slices to show, from below: in each band the one with most lesion, or the middle one."""
    top = len(levels) - 1
    visible = levels[round(_LOWEST * top) : round(_HIGHEST * top) + 1]
    lesion_areas = mask.voxels.sum(axis=(0, 1))
    chosen = []
    for band in np.array_split(visible, min(_ROWS * _COLUMNS, len(visible))):
        areas = lesion_areas[band]
        index = areas.argmax() if areas.any() else len(band) // 2
        chosen.append(int(band[index]))
    return chosen


def _periventricular_lesions(prediction: Prediction) -> Volume:
    mask = prediction.lesions.mask
    if prediction.ventricles is None:
        return mask.with_voxels(np.zeros_like(mask.voxels))
    return mask.with_voxels(mask.voxels & near(prediction.ventricles, PERIVENTRICULAR_MM))


def _draw_panel(axes: Axes, window: Window, prediction: Prediction, *, periventricular: Volume, level: int) -> None:
    window.grey(axes, level)
    window.outline(axes, window.plane(prediction.brain, level), colour=f"{OUTLINE}66")
    near_plane = window.plane(periventricular, level)
    deep_plane = window.plane(prediction.lesions.mask, level) & ~near_plane
    window.outline(axes, near_plane, colour=_PERIVENTRICULAR_COLOUR)
    window.outline(axes, deep_plane, colour=_DEEP_COLOUR)
    axes.text(0.02, 0.02, f"slice {level + 1}", color=FAINT, fontsize=8, transform=axes.transAxes)


def _draw_captions(figure: Figure, row: Row, height: float) -> None:
    first_line, second_line = 1 - 0.32 / height, 1 - 0.62 / height  # inches from the top, as shares of the height
    name = f"{row.scan.split('_space-')[0]}   {SUFFIX.get(row.contrast, 'scan')}"
    figure.text(0.012, first_line, name, color=INK, fontsize=13, weight="bold", parse_math=False)
    count = "1 lesion" if row.lesions == 1 else f"{row.lesions} lesions"
    figure.text(0.012, second_line, f"{row.wmh_ml:.2f} ml in {count}", color=INK, fontsize=11)
    right = 0.988
    for text, colour in _legend(row):  # from right to left
        label = figure.text(right, second_line, text, color=colour, fontsize=9, ha="right")
        right -= label.get_window_extent().width / figure.bbox.width + 0.02


def _legend(row: Row) -> list[tuple[str, str]]:
    """Return what each colour means."""
    brain = ("outline of the brain", OUTLINE)
    if row.deep_ml is None:
        return [brain, ("lesion", _DEEP_COLOUR)]
    periventricular = f"within {PERIVENTRICULAR_MM:g} mm of the ventricles, {row.periventricular_ml:.2f} ml"
    return [brain, (f"deep, {row.deep_ml:.2f} ml", _DEEP_COLOUR), (periventricular, _PERIVENTRICULAR_COLOUR)]
