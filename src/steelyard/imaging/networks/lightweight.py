"""The paper's lightweight network."""

from typing import final

from torch import Tensor, nn

from steelyard.files.checks import check_whole
from steelyard.imaging.networks.initialisation import initialise

_MOST = 100_000  # features of a level


@final
class Lightweight(nn.Module):
    """Three unpadded convolutions down, three transposed ones up; about 3 % of the U-Net's parameters at width 64.

    No pooling, no skips; ReLU, then batch normalisation, after all but the last. Returns logits of the input's size.

    Args:
        channels: of the input.
        width: features after the first convolution; the paper's is 64.

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
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits for images of shape (samples, channels, height, width)."""
        logits: Tensor = self.conv_up(self.conv_down(images))
        return logits


def _block(convolution: nn.Conv2d | nn.ConvTranspose2d) -> tuple[nn.Module, ...]:
    return convolution, nn.ReLU(inplace=True), nn.BatchNorm2d(convolution.out_channels)
