"""The geometry of two measured gradients (the paper's figure 2)."""

from functools import partial
from math import acos, degrees, hypot

from matplotlib.axes import Axes

from steelyard.report.data.names import domain_title
from steelyard.report.figures.figure import INK, SOFT, TINTS, Panel, ReportFigure, domain_colour
from steelyard.report.statistics.gradient_geometry import Geometry

Vector = tuple[float, float]

_ARROW: dict[str, object] = {"arrowstyle": "-|>", "lw": 2, "shrinkA": 0, "shrinkB": 0}


def angle_between(first: Vector, second: Vector) -> float:
    """Return the angle of two vectors of the plane in degrees.

    >>> round(angle_between((1.0, 0.0), (0.0, 2.0)))
    90
    """
    cosine = (first[0] * second[0] + first[1] * second[1]) / (hypot(*first) * hypot(*second))
    return degrees(acos(max(-1.0, min(1.0, cosine))))


def geometry_figure(measured: Geometry, *, method: str, name: str = "geometry") -> ReportFigure:
    """Show the two gradients, the weighted combination, and the sum's gradient on the other half."""
    first, second = map(domain_title, measured.domains)
    in_plane = hypot(*measured.other_half)
    along = measured.along
    greedy = second if along[1] > along[0] else first
    first_norm, second_norm = hypot(*measured.gradients[0]), hypot(*measured.gradients[1])
    angles = []
    for domain, vector in zip(measured.domains, measured.gradients, strict=True):
        angles.append(f"{angle_between(vector, measured.other_half):.0f}° from {domain_title(domain)}")
    return ReportFigure(
        name=name,
        title="Two gradients and what is made of them",
        caption=(
            f"Measured, not drawn: the network that {method} left, one batch of its training slices, "
            f"{measured.parameters:,} parameters. ‖g {first}‖ = {first_norm:.3g} and "
            f"‖g {second}‖ = {second_norm:.3g} on the meta-train halves, "
            f"{angle_between(*measured.gradients):.0f}° apart; the plane is the one they span. "
            f"G, the gradient of both losses' sum on the other half, has norm {measured.other_norm:.3g}, of which "
            f"{in_plane:.3g} lies in the plane and is shown, {' and '.join(angles)}. Inner products with G: {first} "
            f"{along[0]:.3g}, {second} {along[1]:.3g}; a small plain step alone, without what it does to any running "
            f"statistics, would have greedy vote for {greedy} here and conservative for the other."
        ),
        panels=(Panel(title="in the plane of the two gradients", draw=partial(_draw, measured=measured)),),
        size=(5.6, 4.2),
    )


def _draw(axes: Axes, *, measured: Geometry) -> None:
    arrows: list[tuple[Vector, str, str]] = []
    terms = []
    for number, domain in enumerate(measured.domains):
        gradient = f"g {domain_title(domain)}"
        arrows.append((measured.gradients[number], gradient, domain_colour(domain, number)))
        terms.append(f"{measured.weights[number]:.2f} {gradient}")
    arrows.append((measured.combination, " + ".join(terms), TINTS[3]))
    arrows.append((measured.other_half, "G, other half", SOFT))
    for vector, label, tint in arrows:
        axes.annotate("", vector, (0, 0), arrowprops=_ARROW | {"color": tint})
        axes.plot([], [], color=tint, lw=2, label=f"{label}: {hypot(*vector):.3g}")
    (x0, y0), (x1, y1) = measured.gradients
    axes.plot([x0, x1], [y0, y1], color=SOFT, lw=0.9, ls=":")
    points = [(0.0, 0.0), *(vector for vector, _, _ in arrows)]
    axes.update_datalim(points)
    axes.autoscale_view()
    axes.margins(0.12)
    axes.set_aspect("equal", adjustable="datalim")
    axes.axhline(0, color=axes.yaxis.get_gridlines()[0].get_color(), lw=0.8)
    axes.legend(frameon=False, labelcolor=INK, fontsize=8.5, loc="best")
