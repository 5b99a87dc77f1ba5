"""Pictures of how runs went and what came out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from steelyard.imaging.bids import Subject
from steelyard.imaging.frame import Frame
from steelyard.imaging.pictures import FAINT, INK, LESION, PAPER, Window
from steelyard.imaging.segmentation.inference import lesion_mask, segment
from steelyard.imaging.segmentation.run import RunDirectory
from steelyard.imaging.slices import read_volumes
from steelyard.imaging.volumes import Volume, canonical
from steelyard.report.runs import RunRecord

TITLE = {"flair": "FLAIR", "t1": "T1w"}
"""Domains as people write them."""

_TINTS = ("#6fb7ff", "#ff9d5c", "#7fd38a", "#d59bff", "#ffd34d", "#ff7c8f")
_DOMAIN_TINT = {"flair": "#ff9d5c", "t1": "#6fb7ff"}
_AGREED, _MISSED, _WRONG = "#7fd38a", "#ffd34d", "#ff7c8f"


def draw_scores(runs: Sequence[RunRecord]) -> Figure:
    """Draw the Dice of every test subject, by domain and method; a bar marks the mean."""
    domains = runs[0].config.domains
    figure = Figure(figsize=(5.4, 3.4), facecolor=PAPER, layout="constrained")
    axes = _axes(figure, "Dice of each test subject")
    for group, domain in enumerate(domains):
        for place, run in enumerate(runs):
            scores = run.scores(domain)
            middle = group * (len(runs) + 1) + place
            across = middle + 0.12 * (np.arange(len(scores)) - (len(scores) - 1) / 2)
            label = run.method if group == 0 else None
            axes.scatter(across, scores, s=26, color=_TINTS[place % len(_TINTS)], label=label, zorder=3)
            if scores:
                axes.hlines(np.mean(scores), middle - 0.35, middle + 0.35, color=INK, lw=1.6)
    middles = [group * (len(runs) + 1) + (len(runs) - 1) / 2 for group in range(len(domains))]
    axes.set_xticks(middles, [TITLE.get(domain, domain) for domain in domains])
    axes.set_ylim(0, 1)
    _legend(axes)
    return figure


def draw_weights(runs: Sequence[RunRecord], domain: str) -> Figure:
    """Draw one domain's weight over the steps of training."""
    figure = Figure(figsize=(5.4, 3.4), facecolor=PAPER, layout="constrained")
    axes = _axes(figure, f"weight of {TITLE.get(domain, domain)} over training steps")
    for place, run in enumerate(runs):
        axes.plot(run.weights(domain), color=_TINTS[place % len(_TINTS)], lw=1.3, label=run.method)
    axes.set_ylim(0, 1)
    axes.axhline(1 / len(runs[0].config.domains), color=FAINT, lw=0.8, ls=":")
    _legend(axes)
    return figure


def draw_learning(runs: Sequence[RunRecord]) -> Figure:
    """Draw the validation loss of every domain over the epochs, one panel a run."""
    figure = Figure(figsize=(11.0, 3.0), facecolor=PAPER, layout="constrained")
    for place, run in enumerate(runs):
        axes = _axes(figure, f"{run.method}: validation loss over epochs", place=(1, len(runs), place + 1))
        for domain in run.config.trained:
            axes.plot(run.validation(domain), color=_DOMAIN_TINT.get(domain), lw=1.5, label=TITLE.get(domain, domain))
        _legend(axes)
    return figure


def draw_comparison(run: RunRecord, subject: Subject, *, model: str | None = None) -> Figure:
    """Draw one slice of a subject five times: FLAIR, T1, the manual mask, and what the run finds on each."""
    whole = read_volumes(subject)
    network = RunDirectory(run.path).network(model=model)
    window = Window(whole.brain)
    truth = whole.wmh if whole.wmh is not None else whole.brain.with_voxels(np.zeros_like(whole.brain.voxels))
    height = int(np.argmax(canonical(truth).voxels.sum(axis=(0, 1))))
    frame: Frame = run.config.slices.frame
    contrasts = [name for name in ("flair", "t1") if name in whole.scans]
    panels = 1 + 2 * len(contrasts)
    figure = Figure(figsize=(11.0, 3.1), facecolor=PAPER, layout="constrained")
    main = _on_dark(whole.scans[contrasts[0]], whole.brain)
    expected = window.plane(truth, height)
    for place, name in enumerate(contrasts):
        axes = _picture(figure, (1, panels, place + 1), TITLE[name])
        window.grey(axes, _on_dark(whole.scans[name], whole.brain), height)
        found = lesion_mask(window.plane(segment(network, whole.scans[name], whole.brain, frame=frame), height), 0.5)
        axes = _picture(figure, (1, panels, len(contrasts) + 2 + place), f"found on {TITLE[name]}")
        window.grey(axes, main, height)
        for mask, colour in ((found & expected, _AGREED), (expected & ~found, _MISSED), (found & ~expected, _WRONG)):
            _tint(axes, window, mask, colour)
    axes = _picture(figure, (1, panels, len(contrasts) + 1), "manual mask")
    window.grey(axes, main, height)
    _tint(axes, window, expected, LESION)
    return figure


def _on_dark(scan: Volume, brain: Volume) -> Volume:
    """Return a stripped scan with its background at the lowest value, not at white matter's zero."""
    return scan.with_voxels(np.where(brain.voxels, scan.voxels, scan.voxels.min()))


def _tint(axes: Axes, window: Window, mask: Any, colour: str) -> None:
    layer = np.zeros((*mask.shape, 4))
    layer[mask] = [*(int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)), 0.85]
    window.show(axes, layer, interpolation="nearest")


def _picture(figure: Figure, place: tuple[int, int, int], title: str) -> Axes:
    axes = figure.add_subplot(*place)
    axes.set_title(title, color=INK, fontsize=10, loc="left")
    return axes


def _axes(figure: Figure, title: str, *, place: tuple[int, int, int] = (1, 1, 1)) -> Axes:
    axes = figure.add_subplot(*place)
    axes.set_facecolor(PAPER)
    axes.set_title(title, color=INK, fontsize=10, loc="left")
    axes.tick_params(colors=FAINT, labelsize=8.5, length=2)
    axes.grid(axis="y", color="#2c3338", lw=0.7)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color("#3a4248")
    return axes


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, labelcolor=INK, fontsize=8.5)
