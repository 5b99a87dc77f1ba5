"""The Dice of every test subject."""

from collections.abc import Mapping, Sequence
from math import isfinite

import numpy as np
from matplotlib.axes import Axes

from steelyard.report.data.runs import RunRecord, by_method
from steelyard.report.figures.plate import INK, Panel, Plate, titled


def scores_plate(runs: Sequence[RunRecord], *, tints: Mapping[str, str], name: str = "scores") -> Plate:
    """Show the Dice of every test subject by method, one panel a domain; a bar marks the mean."""
    return Plate(
        name=name,
        title="Each test subject",
        caption="Dice; a dot is one subject in one run, a bar the mean of all.",
        panels=tuple(
            Panel(title=f"Dice on {titled(domain)}", draw=lambda axes, domain=domain: _draw(axes, runs, domain, tints))  # type: ignore[misc]
            for domain in runs[0].config.domains
        ),
    )


def _draw(axes: Axes, runs: Sequence[RunRecord], domain: str, tints: Mapping[str, str]) -> None:
    methods = by_method(run for run in runs if run.scores(domain))
    for place, (method, held) in enumerate(methods.items()):
        scores = np.array([score for run in held for score in run.scores(domain) if isfinite(score)])
        if not len(scores):
            continue
        spread = np.linspace(-0.28, 0.28, len(scores)) if len(scores) > 1 else np.zeros(1)
        axes.scatter(place + spread, scores, s=18, color=tints[method], alpha=0.8, lw=0, zorder=3)
        axes.hlines(scores.mean(), place - 0.36, place + 0.36, color=INK, lw=1.6, zorder=4)
    slant = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if len(methods) > 3 else {}
    axes.set_xticks(range(len(methods)), list(methods), **slant)  # type: ignore[arg-type]
    axes.set_xlim(-0.6, max(len(methods), 1) - 0.4)
    axes.set_ylim(0, 1)
