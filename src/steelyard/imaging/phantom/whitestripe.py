"""WhiteStripe normalisation, the white matter known (Shinohara et al., NeuroImage: Clinical 6:9, 2014)."""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from steelyard.imaging.anatomy.field import FloatArray
from steelyard.imaging.anatomy.stripe import stripe_values


def white_stripe(image: FloatArray, brain: NDArray[np.bool_], white: NDArray[np.bool_]) -> FloatArray:
    """Return (image − m) / s within the brain and 0 elsewhere, m and s the mean and s.d. of the white stripe.

    The stripe is the tenth of the brain's voxels whose ranks lie around that of white matter's most frequent
    value. WhiteStripe estimates that value from the histogram; here white matter is known.

    Args:
        image: The scan, free of bias.
        brain: The brain.
        white: White matter without lesions.
    """
    values = image[brain]
    stripe = stripe_values(values, _mode(image[white])).astype(np.float64)
    normalised = np.zeros_like(image)
    normalised[brain] = (values - stripe.mean()) / stripe.std()
    return normalised


def _mode(values: FloatArray) -> float:
    """Return the most frequent value, from a histogram smoothed over about 2 % of its range."""
    low, high = np.quantile(values, [0.01, 0.99])
    counts, edges = np.histogram(values, bins=200, range=(low, high))
    smooth = ndimage.gaussian_filter1d(counts.astype(float), 4.0)
    peak = int(smooth.argmax())
    return float(edges[peak] + edges[peak + 1]) / 2
