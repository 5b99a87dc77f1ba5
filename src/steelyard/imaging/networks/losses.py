"""The paper's segmentation loss."""

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits


def cross_entropy_minus_dice(logits: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy minus soft Dice, BCE − 2 yᵀp / (Σy + Σp), with the sums over the whole batch.

    Lies between −1 (perfect) and infinity.

    >>> import torch
    >>> perfect = cross_entropy_minus_dice(torch.tensor([[20.0, -20.0]]), torch.tensor([[1.0, 0.0]]))
    >>> round(perfect.item(), 4)
    -1.0
    """
    targets = targets.to(logits.dtype)
    probabilities = logits.sigmoid()
    overlap = 2 * (targets * probabilities).sum() / (targets.sum() + probabilities.sum()).clamp(min=1e-8)
    return binary_cross_entropy_with_logits(logits, targets) - overlap
