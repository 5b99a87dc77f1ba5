"""The geometry of two gradients (the paper's figure 2), as measured."""

from math import acos, degrees, hypot

from matplotlib.axes import Axes

from steelyard.report.data.geometry import Geometry
from steelyard.report.figures.plate import DOMAIN_TINT, INK, SOFT, TINTS, Panel, Plate, titled

Vector = tuple[float, float]

_ARROW: dict[str, object] = {"arrowstyle": "-|>", "lw": 2, "shrinkA": 0, "shrinkB": 0}


def angle_between(first: Vector, second: Vector) -> float:
    """Return the angle of two vectors of the plane in degrees.

    >>> round(angle_between((1.0, 0.0), (0.0, 2.0)))
    90
    """
    cosine = (first[0] * second[0] + first[1] * second[1]) / (hypot(*first) * hypot(*second))
    return degrees(acos(max(-1.0, min(1.0, cosine))))


def geometry_plate(measured: Geometry, *, method: str, name: str = "geometry") -> Plate:
    """Show the two gradients, the weighted combination, and the sum's gradient on the other half."""
    first, second = (titled(domain) for domain in measured.domains)
    in_plane = hypot(*measured.other_half)
    along = measured.along
    greedy = (first, second)[along[1] > along[0]]
    norms = [hypot(*vector) for vector in measured.gradients]
    return Plate(
        name=name,
        title="Two gradients and what is made of them",
        caption=(
            f"Measured, not drawn: the network that {method} left, one batch of its training slices, "
            f"{measured.parameters:,} parameters. ‖g {first}‖ = {norms[0]:.3g} and ‖g {second}‖ = {norms[1]:.3g} on "
            f"the meta-train halves, {angle_between(*measured.gradients):.0f}° apart; the plane is the one they span. "
            f"G, the gradient of both losses' sum on the other half, has norm {measured.other_norm:.3g}, of which "
            f"{in_plane:.3g} lies in the plane and is shown, {_angles(measured)}. Inner products with G: {first} "
            f"{along[0]:.3g}, {second} {along[1]:.3g}; a small plain step alone, without what it does to any running "
            f"statistics, would have greedy vote for {greedy} here and conservative for the other."
        ),
        panels=(Panel(title="in the plane of the two gradients", draw=lambda axes: _draw(axes, measured)),),
        size=(5.6, 4.2),
    )


def _angles(measured: Geometry) -> str:
    parts = (
        f"{angle_between(vector, measured.other_half):.0f}° from {titled(domain)}"
        for domain, vector in zip(measured.domains, measured.gradients, strict=True)
    )
    return " and ".join(parts)


def _draw(axes: Axes, measured: Geometry) -> None:
    weights = " + ".join(
        f"{weight:.2f} g {titled(domain)}" for weight, domain in zip(measured.weights, measured.domains, strict=True)
    )
    arrows = [
        (vector, f"g {titled(domain)}", DOMAIN_TINT.get(domain, TINTS[place + 3]))
        for place, (domain, vector) in enumerate(zip(measured.domains, measured.gradients, strict=True))
    ]
    arrows += [(measured.combination, weights, TINTS[3]), (measured.other_half, "G, other half", SOFT)]
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
