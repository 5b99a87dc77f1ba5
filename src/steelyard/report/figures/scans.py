"""One slice, five times (the paper's figure 1)."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from numpy.typing import NDArray

from steelyard.imaging.scans.volumes import canonical
from steelyard.report.data.predictions import SubjectPredictions
from steelyard.report.figures.plate import Panel, Plate, titled

MANUAL, AGREED, MISSED, WRONG = "#ffd34d", "#5fd07a", "#ffd34d", "#ff5d73"
"""On dark: the manual mask; found, missed and wrongly found."""

_OPACITY = 0.72


def scans_plate(shown: SubjectPredictions, *, method: str, title: str, name: str = "scans") -> Plate:
    """Show FLAIR, T1, the manual mask, and what a method finds on each, at the slice with most lesion.

    Args:
        shown: A subject and its predictions.
        method: Whose predictions.
        title: What it is called.
        name: Of the files.
    """
    box = shown.box
    truth = canonical(shown.volumes.wmh).voxels[box] if shown.volumes.wmh is not None else None
    found = {domain: mask[box] for domain, mask in shown.masks[method].items()}
    guide = truth if truth is not None else next(iter(found.values()))
    height = int(np.argmax(guide.sum(axis=(0, 1))))
    greys = {name: shown.grey(name)[..., height] for name in shown.volumes.scans}
    main = next(iter(greys.values()))
    pictures = {titled(name): _coloured(grey, {}) for name, grey in greys.items()}
    expected = None if truth is None else truth[..., height]
    if expected is not None:
        pictures["manual mask"] = _coloured(main, {MANUAL: expected})
    for domain, mask in found.items():
        here = mask[..., height]
        layers = (
            {MANUAL: here}
            if expected is None
            else {AGREED: here & expected, MISSED: expected & ~here, WRONG: here & ~expected}
        )
        pictures[f"found on {titled(domain)}"] = _coloured(main, layers)
    spacing = shown.spacing
    height_in = 2.2 * main.shape[1] * spacing[1] / (main.shape[0] * spacing[0])
    return Plate(
        name=name,
        title=title,
        caption="Green: found; yellow: missed; red: wrongly found. One network, one contrast at a time.",
        panels=tuple(
            Panel(title=name, draw=lambda axes, picture=picture: _show(axes, picture, spacing[1] / spacing[0]))  # type: ignore[misc]
            for name, picture in pictures.items()
        ),
        size=(2.2, height_in + 0.3),
    )


def _coloured(grey: NDArray[np.uint8], layers: dict[str, NDArray[np.bool_]]) -> NDArray[Any]:
    picture = np.repeat(grey[..., None].astype(np.float64) / 255, 3, axis=2)
    for colour, mask in layers.items():
        picture[mask] = (1 - _OPACITY) * picture[mask] + _OPACITY * np.array(to_rgb(colour))
    return (picture * 255).round().astype(np.uint8).swapaxes(0, 1)


def _show(axes: Axes, picture: NDArray[Any], aspect: float) -> None:
    # Left as it is, the browser scales it; resampled, it would be as coarse as the figure's points.
    axes.imshow(picture, origin="lower", aspect=aspect, interpolation="none")
    axes.set_axis_off()
