"""The parts of WhiteStripe normalisation that preprocessing and phantoms share.

Reference: Shinohara et al., Statistical normalization techniques for magnetic resonance imaging, 2014.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Real = TypeVar("Real", bound=np.floating)

_BINS = 1024


def stripe_values(brain: NDArray[Real], peak: float, *, width: float = 0.05) -> NDArray[Real]:
    """Return the brain's intensities whose rank lies within `width` of the peak's.

    >>> stripe_values(np.arange(100.0), 50.0, width=0.02)
    array([48., 49., 50., 51.])
    """
    rank = float(np.mean(brain < peak))
    lowest, highest = np.quantile(brain, [max(rank - width, 0.0), min(rank + width, 1.0)])
    inside: NDArray[Real] = brain[(brain >= lowest) & (brain <= highest)]
    return inside


def largest_mode(values: NDArray[np.floating]) -> float:
    """Return the highest peak of a smoothed histogram (Silverman's bandwidth, outer percentiles left out).

    >>> generator = np.random.default_rng(0)
    >>> bool(abs(largest_mode(generator.normal(100.0, 5.0, 50_000)) - 100.0) < 1.0)
    True
    """
    low, lower_quartile, upper_quartile, high = np.percentile(values, [1, 25, 75, 99])
    if not high > low:
        return float(low)
    inner = values[(values >= low) & (values <= high)]
    deviation = float(inner.std())
    # A normal distribution's quartiles lie 1.34 standard deviations apart. Quartiles that coincide say nothing.
    spread = min(deviation, (upper_quartile - lower_quartile) / 1.34) or deviation
    bandwidth = 0.9 * spread * len(inner) ** -0.2
    bin_width = (high - low) / _BINS
    return histogram_peak(values, limits=(low, high), bins=_BINS, smoothing=max(1.0, bandwidth / bin_width))


def histogram_peak(values: NDArray[np.floating], *, limits: tuple[float, float], bins: int, smoothing: float) -> float:
    """Return the middle of the highest bin of a smoothed histogram.

    Args:
        values: Those outside the limits do not count.
        limits: Where the first bin begins and the last one ends.
        bins: How many bins there are.
        smoothing: Standard deviation of the Gaussian that smooths the counts, in bins.
    """
    counts, edges = np.histogram(values, bins, limits)
    density = ndimage.gaussian_filter1d(counts.astype(np.float64), smoothing, mode="nearest")
    highest = int(density.argmax())
    return float(edges[highest] + edges[highest + 1]) / 2
