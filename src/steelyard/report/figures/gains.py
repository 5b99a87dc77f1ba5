"""Gains over a baseline with intervals: one panel a problem, one row a variant, one colour a method."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite

from matplotlib.axes import Axes
from matplotlib.transforms import ScaledTranslation

from steelyard.report.figures.figure import INK, SOFT, Panel, ReportFigure, method_colours

_WIDTH = 5.6  # inches of a panel
_ROW, _MARGIN = 0.17, 1.5  # inches of an interval, and of a panel without intervals
_LEGEND_BELOW, _LEGEND_COLUMNS = 0.5, 3  # inches below the axes


@dataclass(frozen=True, kw_only=True)
class Gain:
    """The gain of a method on a problem.

    Args:
        panel: Which problem.
        row: Which variant of it.
        method: The method.
        mean: The gain.
        reach: Half of its interval; NaN if there is none.
    """

    panel: str
    row: str
    method: str
    mean: float
    reach: float


def gains_figure(gains: Sequence[Gain], *, title: str, caption: str, name: str = "gains") -> ReportFigure:
    """Show gains with their intervals; what lies to the right of the line is better than the baseline.

    Args:
        gains: In the order of panels, rows and methods.
        title: What the figure shows.
        caption: How to read it.
        name: Of its files.
    """
    tints = method_colours(gain.method for gain in gains)
    panels = []
    tallest = 0
    for problem in dict.fromkeys(gain.panel for gain in gains):
        members = [gain for gain in gains if gain.panel == problem]
        tallest = max(tallest, len(members))
        panels.append(Panel(title=problem, draw=partial(_draw, gains=members, tints=tints)))
    size = (_WIDTH, _MARGIN + _ROW * tallest)
    return ReportFigure(name=name, title=title, caption=caption, panels=tuple(panels), size=size)


def _draw(axes: Axes, *, gains: Sequence[Gain], tints: Mapping[str, str]) -> None:
    """Draw the rows from top to bottom, the methods of each below one another."""
    axes.axvline(0, color=SOFT, lw=1)
    height, labels, ticks = 0.0, [], []
    for row in dict.fromkeys(gain.row for gain in gains):
        members = [gain for gain in gains if gain.row == row]
        labels.append(row)
        ticks.append(height + (len(members) - 1) / 2)
        for gain in members:
            _draw_gain(axes, gain, height, tints[gain.method])
            height += 1
        height += 1  # an empty line between rows
    axes.set_yticks(ticks, labels)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("gain in the mean score over equal weights")
    _add_legend_below(axes)


def _draw_gain(axes: Axes, gain: Gain, height: float, colour: str) -> None:
    reach = gain.reach if isfinite(gain.reach) else 0.0
    axes.errorbar(gain.mean, height, xerr=reach, fmt="o", ms=4, lw=1.4, color=colour, label=gain.method)


def _add_legend_below(axes: Axes) -> None:
    """Name each method once, below the axes, where no interval can be."""
    handles, labels = axes.get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    figure = axes.get_figure(root=True)
    assert figure is not None  # noqa: S101
    below = axes.transAxes + ScaledTranslation(0, -_LEGEND_BELOW, figure.dpi_scale_trans)
    axes.legend(
        by_label.values(),
        by_label.keys(),
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=below,
        ncols=_LEGEND_COLUMNS,
        frameon=False,
        labelcolor=INK,
        fontsize=8.5,
    )


def ordered(gains: Iterable[Gain], methods: Sequence[str]) -> list[Gain]:
    """Return the gains of some methods, in the order of panels, rows and these methods."""
    chosen = [gain for gain in gains if gain.method in methods]
    return sorted(chosen, key=lambda gain: (gain.panel, gain.row, methods.index(gain.method)))
