"""A network's probabilities on a scan's own grid."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from steelyard.errors import UserError
from steelyard.imaging.scans.frame import Frame
from steelyard.imaging.scans.volumes import Volume, canonical, turned_back

Shifts = tuple[tuple[float, float], ...]
TWICE: Shifts = ((-0.25, -0.25), (0.25, 0.25))
"""Where the frame is placed, in pixels from the middle; a mean depends less on the position of a scan's grid."""
FOUR_TIMES: Shifts = (*TWICE, (-0.25, 0.25), (0.25, -0.25))
"""Four placements: twice the time, and a little steadier."""

_SLICES_AT_A_TIME = 8  # bounds memory whatever the number of slices


def segment(network: nn.Module, scan: Volume, brain: Volume, *, frame: Frame, shifts: Shifts = TWICE) -> Volume:
    """Return the probability of a lesion for every voxel of a stripped, normalised scan; zero outside the brain.

    The network sees axial slices, whatever the axes of the scan. The frame is enlarged where the brain does not fit.

    Args:
        network: In evaluation mode, from one channel to logits of the same size.
        scan: A FLAIR or a T1, as `steelyard preprocess` leaves it.
        brain: Its brain mask, on the same grid.
        frame: The one that the network was trained with.
        shifts: Where the frame is placed; the probabilities are the mean. A frame of the scan's own pixels is placed
            only once.

    Raises:
        UserError: The brain mask is empty, or the network's output is not finite.
    """
    mask = canonical(brain)
    levels = np.flatnonzero(mask.voxels.any(axis=(0, 1)))  # indices of the axial planes with brain
    if not len(levels):
        raise UserError("the brain mask is empty.")
    indices = range(int(levels[0]), int(levels[-1]) + 1)
    voxels = canonical(scan).voxels
    probabilities = np.zeros(mask.voxels.shape, dtype=np.float32)
    if frame.pixel_mm is None:
        shifts = ((0.0, 0.0),)
    enlarged = frame.covering(mask)
    placements = [enlarged.place(mask, shift=shift) for shift in shifts]
    for start in range(indices.start, indices.stop, _SLICES_AT_A_TIME):
        part = range(start, min(start + _SLICES_AT_A_TIME, indices.stop))
        for placement in placements:
            planes = _predict_planes(network, placement.cut(voxels, part))
            probabilities[:, :, part.start : part.stop] += placement.back(planes) / len(shifts)
    if not np.isfinite(probabilities).all():
        raise UserError("the network's output is not finite; its weights are of no use.")
    np.clip(probabilities, 0, 1, out=probabilities)
    probabilities[~mask.voxels] = 0
    return turned_back(probabilities, brain)


def lesion_mask(probabilities: NDArray[np.float32], threshold: float) -> NDArray[np.bool_]:
    """Return where there is a lesion: where its probability is greater than the threshold."""
    return np.asarray(probabilities > threshold)


def _predict_planes(network: nn.Module, planes: NDArray[np.float32]) -> NDArray[np.float32]:
    device = next(network.parameters()).device
    with torch.inference_mode():
        images = torch.from_numpy(planes)[:, None].to(device).contiguous(memory_format=torch.channels_last)
        probabilities: NDArray[np.float32] = network(images).sigmoid()[:, 0].float().cpu().numpy()
    return probabilities
