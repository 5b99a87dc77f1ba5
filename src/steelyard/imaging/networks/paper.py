"""The paper's two networks and their loss.

Reference: Sicilia et al., Multi-Domain Learning by Meta-Learning, ISBI 2021.
"""

from typing import Literal, final, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from steelyard.files.checks import check_choice, check_whole

Norm = Literal["batch", "instance"]

_MOST = 100_000  # features of a level


@final
class UNet(nn.Module):
    """Five levels with two Conv-BatchNorm-ReLU each, max pooling down, 2×2 transposed convolutions up, and skips.

    Returns logits of the input's size; height and width must be multiples of 16.

    Args:
        channels: Of the input.
        width: Features at the first level; the paper's is 64.
        norm: `batch` normalisation as in the paper, or `instance` normalisation, which treats each slice by itself.

    >>> sum(parameter.numel() for parameter in UNet().parameters())
    14787777
    """

    def __init__(self, channels: int = 1, *, width: int = 64, norm: Norm = "batch") -> None:
        super().__init__()
        check_whole("channels", channels, 1, _MOST)
        check_whole("width", width, 1, _MOST)
        check_choice("norm", norm, get_args(Norm))
        # Features of each level, from the full resolution to the lowest and back.
        down = [width, 2 * width, 4 * width, 8 * width, 8 * width]
        up = [4 * width, 2 * width, width, width]
        self.encoder = nn.ModuleList()
        features = channels
        for outputs in down:
            self.encoder.append(_level(features, outputs, norm))
            features = outputs
        self.pool = nn.MaxPool2d(2)
        self.enlarge = nn.ModuleList()
        self.decoder = nn.ModuleList()
        for skip, outputs in zip(reversed(down[:-1]), up, strict=True):
            self.enlarge.append(nn.ConvTranspose2d(features, features, 2, stride=2))
            self.decoder.append(_level(skip + features, outputs, norm))
            features = outputs
        self.output = nn.Conv2d(width, 1, 1)
        _initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits for images of shape (samples, channels, height, width)."""
        if images.shape[-1] % 16 or images.shape[-2] % 16:
            raise ValueError(f"height and width must be multiples of 16; got {tuple(images.shape[-2:])}.")
        first, *deeper = self.encoder
        features: Tensor = first(images)
        skips = []
        for level in deeper:
            skips.append(features)
            features = level(self.pool(features))
        for enlarge, level in zip(self.enlarge, self.decoder, strict=True):
            features = level(torch.cat([skips.pop(), enlarge(features)], dim=1))
        logits: Tensor = self.output(features)
        return logits


@final
class Lightweight(nn.Module):
    """Three unpadded convolutions down, three transposed ones up; about 3 % of the U-Net's parameters at width 64.

    No pooling, no skips; ReLU, then batch normalisation, after all but the last. Returns logits of the input's size.

    Args:
        channels: Of the input.
        width: Features after the first convolution; the paper's is 64.

    >>> sum(parameter.numel() for parameter in Lightweight().parameters())
    445057
    """

    def __init__(self, channels: int = 1, *, width: int = 64) -> None:
        super().__init__()
        check_whole("channels", channels, 1, _MOST)
        check_whole("width", width, 1, _MOST)
        wide = 2 * width
        self.conv_down = nn.Sequential(
            *_block(nn.Conv2d(channels, width, 3)),
            *_block(nn.Conv2d(width, wide, 3)),
            *_block(nn.Conv2d(wide, wide, 3)),
        )
        self.conv_up = nn.Sequential(
            *_block(nn.ConvTranspose2d(wide, wide, 3)),
            *_block(nn.ConvTranspose2d(wide, width, 3)),
            nn.ConvTranspose2d(width, 1, 3),
        )
        _initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits for images of shape (samples, channels, height, width)."""
        logits: Tensor = self.conv_up(self.conv_down(images))
        return logits


def cross_entropy_minus_dice(logits: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy minus soft Dice, BCE − 2 yᵀp / (Σy + Σp), with the sums over the whole batch.

    Lies between −1 (perfect) and infinity.

    >>> perfect = cross_entropy_minus_dice(torch.tensor([[20.0, -20.0]]), torch.tensor([[1.0, 0.0]]))
    >>> round(perfect.item(), 4)
    -1.0
    """
    targets = targets.to(logits.dtype)
    return binary_cross_entropy_with_logits(logits, targets) - _soft_dice(logits, targets)


def soft_dice_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """One minus soft Dice, 1 − 2 yᵀp / (Σy + Σp), with the sums over the whole batch; lies between 0 and 1.

    A batch without lesions scores 1 whatever the network does, so it tells nothing about a change of the network.

    >>> round(soft_dice_loss(torch.tensor([[20.0, -20.0]]), torch.tensor([[1.0, 0.0]])).item(), 4)
    0.0
    """
    return 1 - _soft_dice(logits, targets.to(logits.dtype))


def _soft_dice(logits: Tensor, targets: Tensor) -> Tensor:
    probabilities = logits.sigmoid()
    return 2 * (targets * probabilities).sum() / (targets.sum() + probabilities.sum()).clamp(min=1e-8)


def _level(inputs: int, outputs: int, norm: Norm) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        _normalisation(outputs, norm),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        _normalisation(outputs, norm),
        nn.ReLU(inplace=True),
    )


def _normalisation(features: int, norm: Norm) -> nn.Module:
    if norm == "instance":
        return nn.InstanceNorm2d(features, affine=True)
    return nn.BatchNorm2d(features)


def _block(convolution: nn.Conv2d | nn.ConvTranspose2d) -> tuple[nn.Module, ...]:
    return convolution, nn.ReLU(inplace=True), nn.BatchNorm2d(convolution.out_channels)


def _initialise(network: nn.Module) -> None:
    """Give every convolution Xavier-uniform weights with the gain of ReLU, and zero biases."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.xavier_uniform_(module.weight, gain=nn.init.calculate_gain("relu"))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
