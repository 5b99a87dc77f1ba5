"""The picture by which a person judges one preprocessed subject."""

import numpy as np
import SimpleITK as sitk
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec

from steelyard.imaging.preprocess.pipeline import Channel, Prepared
from steelyard.imaging.scans.pictures import FAINT, INK, LESION, OUTLINE, PAPER, Window, jpeg

_TINT = {"flair": "#ff9d5c", "t1": "#6fb7ff"}
_TITLE = {"flair": "FLAIR", "t1": "T1w"}
_HEIGHTS = (0.2, 0.34, 0.46, 0.58, 0.7, 0.82)  # where slices are shown, as shares of the brain's height


def draw_mosaic(done: Prepared, title: str) -> bytes:
    """Return a JPEG: T1's edges on FLAIR, the brain's outline, bias fields, histograms before and after."""
    figure = Figure(figsize=(11.0, 7.4), facecolor=PAPER)
    grid = figure.add_gridspec(
        3, 6, left=0.02, right=0.98, top=0.885, bottom=0.065, wspace=0.06, hspace=0.16, height_ratios=(1, 1, 0.95)
    )
    main = "flair" if "flair" in done.channels else "t1"
    window = Window(done.brain, done.channels[main].corrected)
    for column, height in enumerate(_heights(window)):
        _aligned(figure.add_subplot(grid[0, column]), done, window, height=height)
        _outlined(figure.add_subplot(grid[1, column]), done, window, height=height)
    for column, (name, channel) in enumerate(done.channels.items()):
        _field(figure.add_subplot(grid[2, column]), channel, done, window=window, name=name)
    for columns, before in ((slice(2, 4), True), (slice(4, 6), False)):
        _histograms(figure.add_subplot(grid[2, columns]), done, before=before)
    _captions(figure, grid, done, title=title, main=main)
    return jpeg(figure)


def _heights(window: Window) -> list[int]:
    return [int(window.levels[round(share * (len(window.levels) - 1))]) for share in _HEIGHTS]


def _aligned(axes: Axes, done: Prepared, window: Window, *, height: int) -> None:
    window.grey(axes, height)
    if len(done.channels) < 2:
        return
    scan = done.channels["t1"].corrected
    low, high = np.percentile(scan.voxels[done.brain.voxels], [1, 99])
    scaled = np.clip((window.plane(scan, height) - low) / max(float(high - low), 1e-6), 0, 1).astype(np.float32)
    edges = sitk.CannyEdgeDetection(sitk.GetImageFromArray(scaled), 0.04, 0.12, [2.0, 2.0])
    where = np.asarray(sitk.GetArrayFromImage(edges)) > 0
    tint = np.zeros((*where.shape, 4))
    tint[where] = (1.0, 0.42, 0.34, 0.85)
    window.show(axes, tint, interpolation="nearest")


def _outlined(axes: Axes, done: Prepared, window: Window, *, height: int) -> None:
    window.grey(axes, height)
    masks = [(done.brain, OUTLINE)]
    if "wmh" in done.masks:
        masks.append((done.masks["wmh"], LESION))
    for mask, colour in masks:
        window.outline(axes, window.plane(mask, height), colour=colour)


def _field(axes: Axes, channel: Channel, done: Prepared, *, window: Window, name: str) -> None:
    _caption(axes, f"bias field {_TITLE[name]}, ±30 %")
    if channel.field is None:
        axes.text(0.5, 0.5, "not corrected", color=FAINT, ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    height = _heights(window)[3]
    plane = window.plane(channel.aligned.with_voxels(channel.field), height).astype(float)
    plane[~window.plane(done.brain, height)] = np.nan
    window.show(axes, plane, cmap="RdBu_r", vmin=0.7, vmax=1.3)
    axes.contour(plane, np.arange(0.5, 1.6, 0.05), colors="#00000055", linewidths=0.5)


def _histograms(axes: Axes, done: Prepared, *, before: bool) -> None:
    inside = done.brain.voxels
    for name, channel in done.channels.items():
        values = (channel.aligned if before else channel.ready).voxels[inside]
        low, high = np.percentile(values, [0.5, 99.5])
        counts, edges = np.histogram(values, 120, (low, high), density=True)
        middles = (edges[:-1] + edges[1:]) / 2
        scale = float(np.median(values)) if before else 1.0
        axes.plot(middles / (scale or 1.0), counts / counts.max(), color=_TINT[name], label=_TITLE[name], lw=1.4)
    if not before:
        axes.axvline(0.0, color=FAINT, lw=0.8, ls=":")
    _caption(axes, "brain, before (1 = median)" if before else "brain, after (0 = white matter)")
    axes.set_facecolor(PAPER)
    axes.set_yticks([])
    axes.tick_params(colors=FAINT, labelsize=8, length=2)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(FAINT)
    axes.legend(frameon=False, labelcolor=INK, fontsize=8, loc="upper left")


def _caption(axes: Axes, text: str) -> None:
    axes.set_title(text, color=INK, fontsize=9, loc="left", pad=4)


def _captions(figure: Figure, grid: GridSpec, done: Prepared, *, title: str, main: str) -> None:
    figure.text(0.02, 0.953, title, color=INK, fontsize=13, weight="bold")
    pair = "edges of T1w (red) on FLAIR" if len(done.channels) == 2 else f"{_TITLE[main]} alone"
    lesions = ", supplied lesion mask (yellow)" if "wmh" in done.masks else ""
    for row, text in ((0, pair), (1, f"outline of the brain (blue){lesions} on {_TITLE[main]}")):
        box = grid[row, 0].get_position(figure)
        figure.text(box.x0, box.y1 + 0.008, text, color=INK, fontsize=9)
