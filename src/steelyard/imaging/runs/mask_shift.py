"""Wrong lesion masks on purpose, to see what a method makes of a domain with bad labels."""

from dataclasses import dataclass
from math import pi

import torch
from torch import Tensor
from torch.nn.functional import pad

from steelyard.errors import UserError
from steelyard.files.checks import brief, check_whole, is_name

_FARTHEST = 1024  # pixels; the largest frame


@dataclass(frozen=True, kw_only=True)
class MaskShift:
    """Which domains learn from shifted masks, and how far they are shifted.

    Args:
        domains: Their names; the masks of all other domains stay as they are.
        pixels: How far each slice's mask is shifted, in a direction drawn at random for each slice.
    """

    domains: tuple[str, ...]
    pixels: int

    def __post_init__(self) -> None:
        if not isinstance(self.domains, tuple) or not self.domains or not all(map(is_name, self.domains)):
            raise UserError(f"domains of mask_shift must be names, at least one; got {brief(self.domains)}.")
        check_whole("pixels", self.pixels, 1, _FARTHEST)

    def check_domains(self, domains: tuple[str, ...]) -> None:
        """Raise a `UserError` if a name is not one of these domains."""
        for name in self.domains:
            if name not in domains:
                raise UserError(f"mask_shift: the domains are {', '.join(domains)}; there is no {name}.")

    def __call__(self, masks: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return shifted masks, samples × 1 × rows × columns; what leaves the plane is lost, and zeros come in."""
        angles = 2 * pi * torch.rand(len(masks), generator=generator)
        down = (self.pixels * angles.sin()).round().int().tolist()
        right = (self.pixels * angles.cos()).round().int().tolist()
        rows, columns = masks.shape[-2:]
        padded = pad(masks, [self.pixels] * 4)
        shifted = torch.empty_like(masks)
        for index in range(len(masks)):
            top, left = self.pixels - down[index], self.pixels - right[index]
            shifted[index] = padded[index, :, top : top + rows, left : left + columns]
        return shifted
