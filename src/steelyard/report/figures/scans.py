"""One slice of a subject: scans, manual mask and predictions (the paper's figure 1)."""

from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from numpy.typing import NDArray

from steelyard.imaging.scans.masks import Mask
from steelyard.imaging.scans.volumes import canonical
from steelyard.report.data.names import domain_title
from steelyard.report.data.predictions import SubjectPredictions
from steelyard.report.figures.figure import Panel, ReportFigure

MANUAL, AGREED, MISSED, WRONG = "#ffd34d", "#5fd07a", "#ffd34d", "#ff5d73"
"""Colours on a scan: the manual mask; found, missed and wrongly found voxels."""

_OPACITY = 0.72
_WIDTH = 2.2  # of a panel, in inches


def scans_figure(predictions: SubjectPredictions, *, method: str, title: str, name: str = "scans") -> ReportFigure:
    """Show FLAIR, T1, the manual mask, and what a method finds on each, at the slice with most lesion.

    Args:
        predictions: A subject and its predictions.
        method: Whose predictions.
        title: Of the figure.
        name: Of the files.
    """
    pictures = _pictures(predictions, method)
    first = next(iter(pictures.values()))
    aspect = predictions.spacing[1] / predictions.spacing[0]
    height = _WIDTH * first.shape[0] * aspect / first.shape[1]
    panels = []
    for panel_title, picture in pictures.items():
        panels.append(Panel(title=panel_title, draw=partial(_draw, picture=picture, aspect=aspect)))
    return ReportFigure(
        name=name,
        title=title,
        caption="Green: found; yellow: missed; red: wrongly found. One network, one contrast at a time.",
        panels=tuple(panels),
        size=(_WIDTH, height + 0.3),
    )


def _pictures(predictions: SubjectPredictions, method: str) -> dict[str, NDArray[Any]]:
    """Return a picture of one slice for each panel, by its title."""
    box = predictions.box
    masks = {domain: mask[box] for domain, mask in predictions.masks[method].items()}
    manual = None
    if predictions.volumes.wmh is not None:
        manual = canonical(predictions.volumes.wmh).voxels[box].astype(bool)
    guide = manual if manual is not None else next(iter(masks.values()))
    level = int(np.argmax(guide.sum(axis=(0, 1))))  # the axial slice with most lesion
    greys = {contrast: predictions.grey(contrast)[..., level] for contrast in predictions.volumes.scans}
    background = next(iter(greys.values()))
    pictures = {domain_title(contrast): _coloured(grey, {}) for contrast, grey in greys.items()}
    if manual is not None:
        pictures["manual mask"] = _coloured(background, {MANUAL: manual[..., level]})
    for domain, mask in masks.items():
        layers = {MANUAL: mask[..., level]}
        if manual is not None:
            layers = _compared(mask[..., level], manual[..., level])
        pictures[f"found on {domain_title(domain)}"] = _coloured(background, layers)
    return pictures


def _compared(mask: Mask, manual: Mask) -> dict[str, Mask]:
    """Return the voxels of each colour: found, missed and wrongly found."""
    return {AGREED: mask & manual, MISSED: manual & ~mask, WRONG: mask & ~manual}


def _coloured(grey: NDArray[np.uint8], layers: dict[str, Mask]) -> NDArray[Any]:
    """Return a slice with masks laid over it, as rows, columns and RGB."""
    picture = np.repeat(grey[..., None].astype(np.float64) / 255, 3, axis=2)
    for colour, mask in layers.items():
        picture[mask] = (1 - _OPACITY) * picture[mask] + _OPACITY * np.array(to_rgb(colour))
    return (picture * 255).round().astype(np.uint8).swapaxes(0, 1)


def _draw(axes: Axes, *, picture: NDArray[Any], aspect: float) -> None:
    # Without interpolation the browser scales the picture; resampled here it would be coarse.
    axes.imshow(picture, origin="lower", aspect=aspect, interpolation="none")
    axes.set_axis_off()
