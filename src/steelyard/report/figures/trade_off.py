"""How good each method is on one domain, against how good on the other."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from steelyard.report.data.kinds import is_fixed, is_single
from steelyard.report.data.runs import RunRecord, by_method, mean_and_spread
from steelyard.report.figures.plate import INK, SOFT, Panel, Plate, titled

Point = tuple[float, float]

_LINE, _WIDE = 11.0, 80.0  # a label's height and width, in points
_SPAN = 0.06  # of Dice that an axis covers at least, or differences of nothing would fill the figure


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other beats on both counts, from left to right.

    >>> pareto_front([(0.5, 0.5), (0.9, 0.1), (0.4, 0.4), (0.2, 0.8)])
    [(0.2, 0.8), (0.5, 0.5), (0.9, 0.1)]
    """
    front: list[Point] = []
    for point in sorted(set(points), reverse=True):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front[::-1]


def trade_off_plate(
    runs: Sequence[RunRecord], domains: tuple[str, str], *, tints: Mapping[str, str], name: str = "trade_off"
) -> Plate:
    """Show the mean Dice of each method on two domains, and the front of what fixed weights reach."""
    first, second = domains
    return Plate(
        name=name,
        title=f"{titled(first)} against {titled(second)}",
        caption=(
            "Mean Dice over runs, each the mean over its test subjects; whiskers are one standard deviation over runs "
            "(none for a single run). Circles learn their weights; triangles saw one domain alone. The line joins the "
            "fixed weights, squares, that no other fixed weights beat on both domains: what is above and to the right "
            "of it no fixed weights reached."
        ),
        panels=(Panel(title="mean Dice", draw=lambda axes: _draw(axes, runs, domains, tints)),),
        size=(5.6, 4.4),
    )


def _draw(axes: Axes, runs: Sequence[RunRecord], domains: tuple[str, str], tints: Mapping[str, str]) -> None:
    fixed: list[Point] = []
    points: dict[str, Point] = {}
    for method, held in by_method(runs).items():
        judged = [run for run in held if all(run.scores(domain) for domain in domains)]
        if not judged:
            continue
        (x, x_spread), (y, y_spread) = (
            mean_and_spread([mean_and_spread(run.scores(domain))[0] for run in judged]) for domain in domains
        )
        if is_fixed(method):
            fixed.append((x, y))
        whiskers = {"xerr": x_spread, "yerr": y_spread} if len(judged) > 1 else {}
        mark = "s" if is_fixed(method) else "^" if is_single(method) else "o"
        axes.errorbar(x, y, **whiskers, fmt=mark, ms=7, color=tints[method], elinewidth=1, capsize=2, zorder=3)  # type: ignore[arg-type]
        points[method] = (x, y)
    front = pareto_front(fixed)
    if len(front) > 1:
        axes.plot(*zip(*front, strict=True), color=SOFT, lw=1.1, zorder=2)
    axes.set_xlabel(f"on {titled(domains[0])}")
    axes.set_ylabel(f"on {titled(domains[1])}")
    axes.grid(axis="x", color=axes.yaxis.get_gridlines()[0].get_color(), lw=0.7)
    axes.margins(0.22)
    for low, high, set_limits in ((*axes.get_xlim(), axes.set_xlim), (*axes.get_ylim(), axes.set_ylim)):
        short = max(0.0, _SPAN - (high - low)) / 2
        set_limits(low - short, high + short)
    _label(axes, points)


def _label(axes: Axes, points: Mapping[str, Point]) -> None:
    """Write each name beside its point, above a whisker, on the side where no other point is.

    Where names would cover each other, they are put below one another, if need be with a line.
    """
    to_points = 72 / axes.figure.dpi
    places = [tuple(axes.transData.transform(point) * to_points) for point in points.values()]
    sides = [-1 if any(12 < u - x < _WIDE and abs(v - y) < _LINE for u, v in places) else 1 for x, y in places]
    wanted = [(x - _WIDE * (side < 0), y + _LINE / 2) for (x, y), side in zip(places, sides, strict=True)]
    heights = [height - y for (_, height), (_, y) in zip(spread_labels(wanted), places, strict=True)]
    for (name, point), side, height in zip(points.items(), sides, heights, strict=True):
        far = abs(height) > 1.5 * _LINE
        axes.annotate(
            name,
            point,
            xytext=(side * (20 if far else 8), height),
            textcoords="offset points",
            va="center",
            ha="left" if side > 0 else "right",
            fontsize=8.5,
            color=INK,
            arrowprops={"arrowstyle": "-", "lw": 0.6, "color": SOFT, "shrinkA": 0, "shrinkB": 3} if far else None,
        )


def spread_labels(places: Sequence[Point]) -> list[Point]:
    """Return where labels go: those that would lie on each other are put a line apart about their middle.

    >>> spread_labels([(0.0, 0.0), (5.0, 2.0), (200.0, 0.0)])
    [(0.0, -4.5), (5.0, 6.5), (200.0, 0.0)]
    """
    heights = [y for _, y in places]
    for _ in range(100):
        order = sorted(range(len(places)), key=lambda i: (heights[i], i))
        close = [
            (i, j)
            for place, i in enumerate(order)
            for j in order[place + 1 :]
            if abs(places[i][0] - places[j][0]) < _WIDE and heights[j] - heights[i] < _LINE - 1e-6
        ]
        if not close:
            break
        for i, j in close:
            short = max(0.0, _LINE - (heights[j] - heights[i])) / 2
            heights[i], heights[j] = heights[i] - short, heights[j] + short
    return [(x, y) for (x, _), y in zip(places, heights, strict=True)]
