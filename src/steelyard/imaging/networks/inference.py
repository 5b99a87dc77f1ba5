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
"""Where the frame is laid, in pixels off the middle: the mean depends less on how a scan's grid happens to lie."""
FOUR_TIMES: Shifts = (*TWICE, (-0.25, 0.25), (0.25, -0.25))
"""The same at twice the price and a little steadier."""

_SLICES_AT_A_TIME = 8  # bounds memory whatever the number of slices


def segment(network: nn.Module, scan: Volume, brain: Volume, *, frame: Frame, shifts: Shifts = TWICE) -> Volume:
    """Return the probability of a lesion for every voxel of a stripped, normalised scan; zero outside the brain.

    Slice by slice in axial planes, whatever the axes of the scan; the frame grows where the brain would not fit.

    Args:
        network: In evaluation mode, from one channel to logits of the same size.
        scan: A FLAIR or a T1, as `steelyard preprocess` leaves it.
        brain: Its brain mask, on the same grid.
        frame: The one that the network was trained with.
        shifts: Where it is laid; the probabilities are the mean. A frame of the scan's own pixels is laid once.
    """
    mask = canonical(brain)
    levels = np.flatnonzero(mask.voxels.any(axis=(0, 1)))
    if not len(levels):
        raise UserError("the brain mask is empty.")
    indices = range(int(levels[0]), int(levels[-1]) + 1)
    voxels = canonical(scan).voxels
    probabilities = np.zeros(mask.voxels.shape, dtype=np.float32)
    shifts = shifts if frame.pixel_mm is not None else ((0.0, 0.0),)
    wide = frame.covering(mask)
    placements = [wide.place(mask, shift=shift) for shift in shifts]
    for start in range(indices.start, indices.stop, _SLICES_AT_A_TIME):
        part = range(start, min(start + _SLICES_AT_A_TIME, indices.stop))
        for placement in placements:
            planes = _probabilities(network, placement.cut(voxels, part))
            probabilities[:, :, part.start : part.stop] += placement.back(planes) / len(shifts)
    if not np.isfinite(probabilities).all():
        raise UserError("the network's output is not finite; its weights are of no use.")
    np.clip(probabilities, 0, 1, out=probabilities)
    probabilities[~mask.voxels] = 0
    return turned_back(probabilities, brain)


def lesion_mask(probabilities: NDArray[np.float32], threshold: float) -> NDArray[np.bool_]:
    """Return where there is a lesion: where its probability is greater than the threshold."""
    return np.asarray(probabilities > threshold)


def _probabilities(network: nn.Module, planes: NDArray[np.float32]) -> NDArray[np.float32]:
    device = next(network.parameters()).device
    with torch.inference_mode():
        images = torch.from_numpy(planes)[:, None].to(device).contiguous(memory_format=torch.channels_last)
        probabilities: NDArray[np.float32] = network(images).sigmoid()[:, 0].float().cpu().numpy()
    return probabilities
