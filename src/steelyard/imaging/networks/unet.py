"""The paper's U-Net."""

from typing import final

import torch
from torch import Tensor, nn

from steelyard.files.checks import check_whole
from steelyard.imaging.networks.initialisation import initialise

_MOST = 100_000  # features of a level


@final
class UNet(nn.Module):
    """Five levels with two Conv-BatchNorm-ReLU each, max pooling down, 2×2 transposed convolutions up, and skips.

    Returns logits of the input's size; height and width must be multiples of 16.

    Args:
        channels: of the input.
        width: features at the first level; the paper's is 64.

    >>> sum(parameter.numel() for parameter in UNet().parameters())
    14787777
    """

    def __init__(self, channels: int = 1, *, width: int = 64) -> None:
        super().__init__()
        check_whole("channels", channels, 1, _MOST)
        check_whole("width", width, 1, _MOST)
        down = [width, 2 * width, 4 * width, 8 * width, 8 * width]
        up = [4 * width, 2 * width, width, width]
        self.encoder = nn.ModuleList(_level(i, o) for i, o in zip([channels, *down[:-1]], down, strict=True))
        self.pool = nn.MaxPool2d(2)
        below = [down[-1], *up[:-1]]
        self.enlarge = nn.ModuleList(nn.ConvTranspose2d(features, features, 2, stride=2) for features in below)
        self.decoder = nn.ModuleList(
            _level(skip + features, o) for skip, features, o in zip(down[-2::-1], below, up, strict=True)
        )
        self.output = nn.Conv2d(width, 1, 1)
        initialise(self)

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


def _level(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )
