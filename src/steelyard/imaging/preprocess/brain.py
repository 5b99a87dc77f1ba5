"""The brain in each scan of a subject: found by deepbet, supplied, or the whole head."""

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.errors import UserError
from steelyard.imaging.preprocess.settings import Brain
from steelyard.imaging.scans.background import head_foreground
from steelyard.imaging.scans.volumes import Volume, canonical, turned_back

_PLAUSIBLE_ML = (300.0, 2500.0)  # from part of a small child's brain to more than any adult's
_THRESHOLD = 0.5  # deepbet's own


class NoBrainError(UserError):
    """No brain was found in a scan."""


def find_brains(
    scans: dict[str, Volume], paths: dict[str, Path], *, supplied: Volume | None, method: Brain
) -> dict[str, Volume]:
    """Return brain masks by contrast, each on its own scan's grid.

    The first scan's brain is applied to all scans, so it is always found. The second scan's brain helps to align the
    pair and to check it. It is left out with `skip`, and where the supplied mask is on the first scan's grid only.

    Args:
        scans: By contrast.
        paths: Their files, which errors name.
        supplied: The brain mask supplied with the subject, on the grid of one of the scans; used with `own`.
        method: The setting `brain`.

    Raises:
        UserError: There is no brain in a scan.
    """
    if method != "own":
        supplied = None
    brains: dict[str, Volume] = {}
    for contrast, scan in scans.items():
        is_first = not brains
        if supplied is not None and supplied.same_grid(scan):
            brains[contrast] = supplied
        elif method == "skip":
            if is_first:
                brains[contrast] = head_foreground(scan)
        elif supplied is None or is_first:
            try:
                brains[contrast] = extract_brain(scan)
            except NoBrainError as error:
                raise UserError(f"{paths[contrast]}: {error}.") from error
    return brains


def extract_brain(scan: Volume) -> Volume:
    """Return the mask of the brain in a T1 or FLAIR scan of a whole head, any orientation.

    Raises:
        NoBrainError: Nothing that could be a brain was found.

    Reference: Fisch et al., deepbet: fast brain extraction of T1-weighted MRI, 2024.
    """
    canonical_voxels = canonical(scan).voxels.astype(np.float32, copy=False)
    network = _deepbet()
    try:
        # These are the steps of deepbet's `run` that lead to the mask. `run` would also return a stripped copy.
        inside = network.postprocess(network.run_model(canonical_voxels) > _THRESHOLD)
    except (AssertionError, ValueError, RuntimeError) as error:
        raise NoBrainError("no brain was found in it") from error
    mask = turned_back(inside, scan)
    volume_ml = float(np.count_nonzero(mask.voxels)) * mask.voxel_ml
    smallest, largest = _PLAUSIBLE_ML
    if not smallest <= volume_ml <= largest:
        raise NoBrainError(f"no brain was found in it (the mask would hold {volume_ml:.0f} ml)")
    return mask


@cache
def _deepbet() -> Any:
    """Load deepbet's networks once per process; its weights come with its wheel."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit, which deepbet uses, is deprecated
        from deepbet.bet import BrainExtraction

        return BrainExtraction(no_gpu=True)
