"""The picture by which a person judges one preprocessed subject."""

import numpy as np
import SimpleITK as sitk
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from numpy.typing import NDArray

from steelyard.imaging.datasets.bids import SUFFIX
from steelyard.imaging.preprocess.pipeline import PreparedScan, PreparedSubject
from steelyard.imaging.scans.pictures import FAINT, INK, LESION, OUTLINE, PAPER, Window, jpeg

_COLOURS = {"flair": "#ff9d5c", "t1": "#6fb7ff"}
_HEIGHTS = (0.2, 0.34, 0.46, 0.58, 0.7, 0.82)  # of the slices, as shares of the brain's height
_FIELD_HEIGHT = 3  # the index of the slice on which bias fields are drawn
_EDGE_COLOUR = (1.0, 0.42, 0.34, 0.85)  # red, green, blue, opacity
_BINS = 120


def draw_mosaic(prepared: PreparedSubject, title: str) -> bytes:
    """Return a JPEG: T1's edges on FLAIR, the brain's outline, bias fields, histograms before and after."""
    figure = Figure(figsize=(11.0, 7.4), facecolor=PAPER)
    grid = figure.add_gridspec(
        3, 6, left=0.02, right=0.98, top=0.885, bottom=0.065, wspace=0.06, hspace=0.16, height_ratios=(1, 1, 0.95)
    )
    background = "flair" if "flair" in prepared.scans else "t1"
    window = Window(prepared.brain, prepared.scans[background].corrected)
    heights = _slice_heights(window)
    for column, height in enumerate(heights):
        _draw_t1_edges(figure.add_subplot(grid[0, column]), prepared, window, height=height)
        _draw_outlines(figure.add_subplot(grid[1, column]), prepared, window, height=height)
    for column, (contrast, scan) in enumerate(prepared.scans.items()):
        axes = figure.add_subplot(grid[2, column])
        _add_caption(axes, f"bias field {SUFFIX[contrast]}, ±30 %")
        _draw_bias_field(axes, scan, prepared, window, height=heights[_FIELD_HEIGHT])
    _draw_histograms_before(figure.add_subplot(grid[2, 2:4]), prepared)
    _draw_histograms_after(figure.add_subplot(grid[2, 4:6]), prepared)
    _add_row_captions(figure, grid, prepared, background=background)
    figure.text(0.02, 0.953, title, color=INK, fontsize=13, weight="bold")
    return jpeg(figure)


def _slice_heights(window: Window) -> list[int]:
    """Return the indices of the slices that are shown."""
    top = len(window.levels) - 1
    return [int(window.levels[round(share * top)]) for share in _HEIGHTS]


def _draw_t1_edges(axes: Axes, prepared: PreparedSubject, window: Window, *, height: int) -> None:
    window.grey(axes, height)
    if len(prepared.scans) < 2:
        return
    scan = prepared.scans["t1"].corrected
    low, high = np.percentile(scan.voxels[prepared.brain.voxels], [1, 99])
    spread = max(float(high - low), 1e-6)
    scaled = np.clip((window.plane(scan, height) - low) / spread, 0, 1).astype(np.float32)
    # Thresholds and variance (in pixels) of the Canny filter, for intensities between 0 and 1.
    edges = sitk.CannyEdgeDetection(sitk.GetImageFromArray(scaled), 0.04, 0.12, [2.0, 2.0])
    is_edge = np.asarray(sitk.GetArrayFromImage(edges)) > 0
    overlay = np.zeros((*is_edge.shape, 4))
    overlay[is_edge] = _EDGE_COLOUR
    window.show(axes, overlay, interpolation="nearest")


def _draw_outlines(axes: Axes, prepared: PreparedSubject, window: Window, *, height: int) -> None:
    window.grey(axes, height)
    window.outline(axes, window.plane(prepared.brain, height), colour=OUTLINE)
    if "wmh" in prepared.masks:
        window.outline(axes, window.plane(prepared.masks["wmh"], height), colour=LESION)


def _draw_bias_field(axes: Axes, scan: PreparedScan, prepared: PreparedSubject, window: Window, *, height: int) -> None:
    if scan.field is None:
        axes.text(0.5, 0.5, "not corrected", color=FAINT, ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    plane = window.plane(scan.aligned.with_voxels(scan.field), height).astype(float)
    plane[~window.plane(prepared.brain, height)] = np.nan
    window.show(axes, plane, cmap="RdBu_r", vmin=0.7, vmax=1.3)
    axes.contour(plane, np.arange(0.5, 1.6, 0.05), colors="#00000055", linewidths=0.5)


def _draw_histograms_before(axes: Axes, prepared: PreparedSubject) -> None:
    """Draw the histograms of the aligned scans in units of their medians: scanners have no common scale."""
    for contrast, scan in prepared.scans.items():
        values = scan.aligned.voxels[prepared.brain.voxels]
        unit = float(np.median(values)) or 1.0
        _draw_histogram(axes, values, contrast, unit=unit)
    _style_histograms(axes, "brain, before (1 = median)")


def _draw_histograms_after(axes: Axes, prepared: PreparedSubject) -> None:
    for contrast, scan in prepared.scans.items():
        _draw_histogram(axes, scan.ready.voxels[prepared.brain.voxels], contrast)
    axes.axvline(0.0, color=FAINT, lw=0.8, ls=":")
    _style_histograms(axes, "brain, after (0 = white matter)")


def _draw_histogram(axes: Axes, values: NDArray[np.float32], contrast: str, *, unit: float = 1.0) -> None:
    low, high = np.percentile(values, [0.5, 99.5])
    counts, edges = np.histogram(values, _BINS, (low, high), density=True)
    centres = (edges[:-1] + edges[1:]) / 2
    axes.plot(centres / unit, counts / counts.max(), color=_COLOURS[contrast], label=SUFFIX[contrast], lw=1.4)


def _style_histograms(axes: Axes, caption: str) -> None:
    _add_caption(axes, caption)
    axes.set_facecolor(PAPER)
    axes.set_yticks([])
    axes.tick_params(colors=FAINT, labelsize=8, length=2)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(FAINT)
    axes.legend(frameon=False, labelcolor=INK, fontsize=8, loc="upper left")


def _add_caption(axes: Axes, text: str) -> None:
    axes.set_title(text, color=INK, fontsize=9, loc="left", pad=4)


def _add_row_captions(figure: Figure, grid: GridSpec, prepared: PreparedSubject, *, background: str) -> None:
    first_row = f"{SUFFIX[background]} alone"
    if len(prepared.scans) == 2:
        first_row = "edges of T1w (red) on FLAIR"
    lesions = ", supplied lesion mask (yellow)" if "wmh" in prepared.masks else ""
    second_row = f"outline of the brain (blue){lesions} on {SUFFIX[background]}"
    for row, text in enumerate((first_row, second_row)):
        box = grid[row, 0].get_position(figure)
        figure.text(box.x0, box.y1 + 0.008, text, color=INK, fontsize=9)
