"""Learning curves."""

from collections.abc import Sequence
from math import isfinite

from matplotlib.axes import Axes

from steelyard.report.data.runs import RunRecord, by_method
from steelyard.report.figures.bands import draw_band
from steelyard.report.figures.plate import DOMAIN_TINT, TINTS, Panel, Plate, legend, titled


def learning_plate(runs: Sequence[RunRecord], *, name: str = "learning") -> Plate:
    """Show the validation loss of every domain over the epochs, one panel a method: mean and s.d. over runs."""
    methods = {method: held for method, held in by_method(runs).items() if any(_has_curve(run) for run in held)}
    highest, lowest = _span(runs)
    panels = tuple(
        Panel(title=method, draw=lambda axes, held=held: _draw(axes, held, (lowest, highest)))  # type: ignore[misc]
        for method, held in methods.items()
    )
    return Plate(
        name=name,
        title="Learning curves",
        caption=(
            "Validation loss after each epoch, cross-entropy minus soft Dice; lower is better, −1 is perfect. The line "
            "is the mean over runs, over those that got so far where they ended at different times; the band is one "
            "standard deviation. All panels share one scale; what lies above it is cut."
        ),
        panels=panels,
    )


def _has_curve(run: RunRecord) -> bool:
    return any(run.validation(domain) for domain in run.config.domains)


def _span(runs: Sequence[RunRecord]) -> tuple[float, float]:
    """Return where the scale ends: the first epochs of some runs are far above all that follows."""
    curves = [run.validation(domain) for run in runs for domain in run.config.domains]
    losses = sorted(loss for curve in curves for loss in curve if isfinite(loss))
    if not losses:
        return 1.0, -1.0
    return losses[min(len(losses) - 1, round(0.98 * len(losses)))] + 0.05, losses[0] - 0.05


def _draw(axes: Axes, runs: Sequence[RunRecord], span: tuple[float, float]) -> None:
    for place, domain in enumerate(runs[0].config.domains):
        curves = [curve for run in runs if (curve := run.validation(domain))]
        tint = DOMAIN_TINT.get(domain, TINTS[(place + 3) % len(TINTS)])
        if curves:
            draw_band(axes, curves, colour=tint, label=titled(domain))
    axes.set_ylim(*span)
    axes.set_xlabel("epoch")
    legend(axes)
