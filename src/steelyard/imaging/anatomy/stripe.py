"""The white stripe, once the peak of white matter is known."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Real = TypeVar("Real", bound=np.floating)


def stripe_values(brain: NDArray[Real], peak: float, *, width: float = 0.05) -> NDArray[Real]:
    """Return the brain's intensities whose rank lies within `width` of the peak's.

    >>> stripe_values(np.arange(100.0), 50.0, width=0.02)
    array([48., 49., 50., 51.])
    """
    rank = float(np.mean(brain < peak))
    lowest, highest = np.quantile(brain, [max(rank - width, 0.0), min(rank + width, 1.0)])
    inside: NDArray[Real] = brain[(brain >= lowest) & (brain <= highest)]
    return inside
