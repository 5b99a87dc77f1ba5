"""Many runs' curves as a mean line and a band."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

_POINTS = 400  # of a line; more cannot be seen, and weigh

_SPREAD = "± 1 s.d."

Curve = NDArray[np.float64]


def mean_band(curves: Sequence[Sequence[float]]) -> tuple[Curve, Curve]:
    """Return mean and s.d. at each place, over those of the curves that get so far; the s.d. of one is NaN.

    >>> mean, spread = mean_band([[1.0, 2.0, 5.0], [3.0, 2.0]])
    >>> mean.tolist(), [round(value, 3) for value in spread.tolist()]
    ([2.0, 2.0, 5.0], [1.414, 0.0, nan])
    """
    longest = max((len(curve) for curve in curves), default=0)
    stacked = np.full((len(curves), longest), np.nan)
    for row, curve in zip(stacked, curves, strict=True):
        row[: len(curve)] = curve
    held = np.isfinite(stacked)
    count = held.sum(axis=0)
    mean = np.divide(np.where(held, stacked, 0).sum(axis=0), count, out=np.full(longest, np.nan), where=count > 0)
    squares = np.where(held, stacked - mean, 0) ** 2
    variance = np.divide(squares.sum(axis=0), count - 1, out=np.full(longest, np.nan), where=count > 1)
    return mean, np.sqrt(variance)


def draw_band(axes: Axes, curves: Sequence[Sequence[float]], *, colour: str, label: str, **line: Any) -> None:
    """Draw the mean of curves as a line and one s.d. to either side as a band."""
    mean, spread = mean_band(curves)
    if not len(mean):
        return
    at = thinned(len(mean))
    axes.plot(at + 1, mean[at], color=colour, label=label, **({"lw": 1.6} | line))
    if len(curves) > 1:
        named = None if _SPREAD in axes.get_legend_handles_labels()[1] else _SPREAD
        axes.fill_between(at + 1, (mean - spread)[at], (mean + spread)[at], color=colour, alpha=0.22, lw=0, label=named)


def thinned(length: int) -> NDArray[np.int64]:
    """Return the places of a line that are drawn, first and last among them."""
    return np.unique(np.linspace(0, length - 1, min(length, _POINTS)).round().astype(np.int64))
