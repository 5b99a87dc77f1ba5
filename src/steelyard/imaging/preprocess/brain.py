"""Brain extraction by deepbet."""

import warnings
from functools import cache
from typing import Any

import numpy as np

from steelyard.errors import UserError
from steelyard.imaging.scans.volumes import Volume, canonical, turned_back

_BELIEVABLE_ML = (300.0, 2500.0)  # from a small child's brain in part of a field of view to more than anyone's
_THRESHOLD = 0.5  # deepbet's own


class NoBrainError(UserError):
    """No brain was found where one was looked for."""


def extract_brain(scan: Volume) -> Volume:
    """Return the mask of the brain in a T1 or FLAIR scan of a whole head, any orientation.

    Raises:
        NoBrainError: Nothing that could be a brain was found.

    Reference: Fisch et al., deepbet: fast brain extraction of T1-weighted MRI, 2024.
    """
    upright = canonical(scan).voxels.astype(np.float32, copy=False)
    network = _network()
    try:
        # The steps of deepbet's `run` that lead to the mask; it would also return a stripped copy of the scan.
        inside = network.postprocess(network.run_model(upright) > _THRESHOLD)
    except (AssertionError, ValueError, RuntimeError) as error:
        raise NoBrainError("no brain was found in it") from error
    mask = turned_back(inside, scan)
    volume = float(np.count_nonzero(mask.voxels)) * mask.voxel_ml
    if not _BELIEVABLE_ML[0] <= volume <= _BELIEVABLE_ML[1]:
        raise NoBrainError(f"no brain was found in it (the mask would hold {volume:.0f} ml)")
    return mask


@cache
def _network() -> Any:
    """Load deepbet's networks once per process; its weights come with its wheel."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit announces its retirement
        from deepbet.bet import BrainExtraction

        return BrainExtraction(no_gpu=True)
