"""The Dice of the methods: on one domain against the other, and of every test subject."""

from collections.abc import Mapping, Sequence
from functools import partial
from math import isfinite

import numpy as np
from matplotlib.axes import Axes

from steelyard.imaging.runs.method import Method
from steelyard.report.data.names import domain_title
from steelyard.report.data.runs import RunRecord, by_method, mean_and_spread
from steelyard.report.figures.figure import INK, SOFT, Panel, ReportFigure

Point = tuple[float, float]

_LINE, _WIDE = 11.0, 80.0  # a label's height and width, in points
_SPAN = 0.06  # of Dice that an axis covers at least, or tiny differences would fill the figure


def trade_off_figure(
    runs: Sequence[RunRecord], domains: tuple[str, str], *, tints: Mapping[str, str], name: str = "trade_off"
) -> ReportFigure:
    """Show the mean Dice of each method on two domains, and the Pareto front of the fixed weights."""
    first, second = domains
    draw = partial(_draw_trade_off, runs=runs, domains=domains, tints=tints)
    return ReportFigure(
        name=name,
        title=f"{domain_title(first)} against {domain_title(second)}",
        caption=(
            "Mean Dice over runs, each the mean over its test subjects; whiskers are one standard deviation over runs "
            "(none for a single run). Circles learn their weights; triangles saw one domain alone. The line joins the "
            "fixed weights, squares, that no other fixed weights beat on both domains: what is above and to the right "
            "of it no fixed weights reached."
        ),
        panels=(Panel(title="mean Dice", draw=draw),),
        size=(5.6, 4.4),
    )


def scores_figure(runs: Sequence[RunRecord], *, tints: Mapping[str, str], name: str = "scores") -> ReportFigure:
    """Show the Dice of every test subject by method, one panel a domain; a bar marks the mean."""
    panels = []
    for domain in runs[0].domains:
        draw = partial(_draw_scores, runs=runs, domain=domain, tints=tints)
        panels.append(Panel(title=f"Dice on {domain_title(domain)}", draw=draw))
    return ReportFigure(
        name=name,
        title="Each test subject",
        caption="Dice; a dot is one subject in one run, a bar the mean of all.",
        panels=tuple(panels),
    )


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other beats in both coordinates, from left to right.

    >>> pareto_front([(0.5, 0.5), (0.9, 0.1), (0.4, 0.4), (0.2, 0.8)])
    [(0.2, 0.8), (0.5, 0.5), (0.9, 0.1)]
    """
    front: list[Point] = []
    for point in sorted(set(points), reverse=True):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front[::-1]


def spread_labels(positions: Sequence[Point]) -> list[Point]:
    """Return positions of labels: those that would overlap are moved a line apart about their middle.

    >>> spread_labels([(0.0, 0.0), (5.0, 2.0), (200.0, 0.0)])
    [(0.0, -4.5), (5.0, 6.5), (200.0, 0.0)]
    """
    heights = [y for _, y in positions]
    for _ in range(100):
        overlaps = _overlaps(positions, heights)
        if not overlaps:
            break
        for lower, upper in overlaps:
            shift = max(0.0, _LINE - (heights[upper] - heights[lower])) / 2
            heights[lower] -= shift
            heights[upper] += shift
    return [(x, height) for (x, _), height in zip(positions, heights, strict=True)]


def _overlaps(positions: Sequence[Point], heights: Sequence[float]) -> list[tuple[int, int]]:
    """Return the labels that overlap, by their numbers: the lower and the upper of each pair."""
    ascending = sorted(range(len(positions)), key=lambda number: (heights[number], number))
    pairs = []
    for rank, lower in enumerate(ascending):
        for upper in ascending[rank + 1 :]:
            across = abs(positions[lower][0] - positions[upper][0])
            if across < _WIDE and heights[upper] - heights[lower] < _LINE - 1e-6:
                pairs.append((lower, upper))
    return pairs


def _draw_trade_off(
    axes: Axes, *, runs: Sequence[RunRecord], domains: tuple[str, str], tints: Mapping[str, str]
) -> None:
    points: dict[str, Point] = {}
    for method, group in by_method(runs).items():
        evaluated = [run for run in group if run.scores(domains[0]) and run.scores(domains[1])]
        if evaluated:
            points[method] = _draw_method(axes, method, evaluated, domains, tints[method])
    front = pareto_front([point for method, point in points.items() if Method.parse_or_unknown(method).is_fixed])
    if len(front) > 1:
        axes.plot(*zip(*front, strict=True), color=SOFT, lw=1.1, zorder=2)
    axes.set_xlabel(f"on {domain_title(domains[0])}")
    axes.set_ylabel(f"on {domain_title(domains[1])}")
    axes.grid(axis="x", color=axes.yaxis.get_gridlines()[0].get_color(), lw=0.7)
    axes.margins(0.22)
    axes.set_xlim(*_widened(axes.get_xlim()))
    axes.set_ylim(*_widened(axes.get_ylim()))
    _label_points(axes, points)


def _draw_method(axes: Axes, method: str, runs: Sequence[RunRecord], domains: tuple[str, str], tint: str) -> Point:
    """Draw a method's mean and whiskers, and return the mean."""
    x, x_spread = mean_and_spread(_run_means(runs, domains[0]))
    y, y_spread = mean_and_spread(_run_means(runs, domains[1]))
    whiskers: dict[str, float] = {}
    if len(runs) > 1:
        whiskers = {"xerr": x_spread, "yerr": y_spread}
    marker = "o"
    if Method.parse_or_unknown(method).is_fixed:
        marker = "s"
    elif Method.parse_or_unknown(method).is_single:
        marker = "^"
    axes.errorbar(x, y, **whiskers, fmt=marker, ms=7, color=tint, elinewidth=1, capsize=2, zorder=3)  # type: ignore[arg-type]
    return x, y


def _run_means(runs: Sequence[RunRecord], domain: str) -> list[float]:
    return [mean_and_spread(run.scores(domain))[0] for run in runs]


def _widened(limits: tuple[float, float]) -> tuple[float, float]:
    """Return the limits of an axis, moved apart if they are closer than `_SPAN`."""
    low, high = limits
    missing = max(0.0, _SPAN - (high - low)) / 2
    return low - missing, high + missing


def _label_points(axes: Axes, points: Mapping[str, Point]) -> None:
    """Write each name beside its point, above a whisker, on the side where no other point is.

    Names that would cover each other are put below one another, if need be with a line to the point.
    """
    to_points = 72 / axes.figure.dpi  # from pixels to typographic points
    positions: list[Point] = []
    for point in points.values():
        x, y = axes.transData.transform(point) * to_points
        positions.append((x, y))
    sides, corners = [], []
    for x, y in positions:
        side = _free_side((x, y), positions)
        sides.append(side)
        left = x if side > 0 else x - _WIDE
        corners.append((left, y + _LINE / 2))
    labels = spread_labels(corners)
    for number, (name, point) in enumerate(points.items()):
        offset = labels[number][1] - positions[number][1]
        _write_label(axes, name, point, side=sides[number], offset=offset)


def _free_side(position: Point, positions: Sequence[Point]) -> int:
    """Return the side of a point for its label: −1 (left) if another point is close on the right, else 1."""
    x, y = position
    for other_x, other_y in positions:
        if 12 < other_x - x < _WIDE and abs(other_y - y) < _LINE:
            return -1
    return 1


def _write_label(axes: Axes, name: str, point: Point, *, side: int, offset: float) -> None:
    far = abs(offset) > 1.5 * _LINE
    distance, arrow = 8, None
    if far:
        distance, arrow = 20, {"arrowstyle": "-", "lw": 0.6, "color": SOFT, "shrinkA": 0, "shrinkB": 3}
    axes.annotate(
        name,
        point,
        xytext=(side * distance, offset),
        textcoords="offset points",
        va="center",
        ha="left" if side > 0 else "right",
        fontsize=8.5,
        color=INK,
        arrowprops=arrow,
    )


def _draw_scores(axes: Axes, *, runs: Sequence[RunRecord], domain: str, tints: Mapping[str, str]) -> None:
    methods = by_method(run for run in runs if run.scores(domain))
    for number, (method, group) in enumerate(methods.items()):
        finite: list[float] = []
        for run in group:
            finite += filter(isfinite, run.scores(domain))
        if not finite:
            continue
        scores = np.array(finite)
        offsets = np.zeros(1)
        if len(scores) > 1:
            offsets = np.linspace(-0.28, 0.28, len(scores))
        axes.scatter(number + offsets, scores, s=18, color=tints[method], alpha=0.8, lw=0, zorder=3)
        axes.hlines(scores.mean(), number - 0.36, number + 0.36, color=INK, lw=1.6, zorder=4)
    slant = {}
    if len(methods) > 3:
        slant = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(range(len(methods)), list(methods), **slant)  # type: ignore[arg-type]
    axes.set_xlim(-0.6, max(len(methods), 1) - 0.4)
    axes.set_ylim(0, 1)
