"""What tissue a subject's head holds at any point: brain, lesions, skull and scalp brought together."""

from dataclasses import dataclass

import torch

from steelyard.imaging.phantom.anatomy import Anatomy
from steelyard.imaging.phantom.head import load_head
from steelyard.imaging.phantom.lesions import Lesions
from steelyard.imaging.phantom.signal import TISSUES

_SKIN_MARGIN = 12.0  # mm: blocks of voxels whose middle is farther outside hold air alone


@dataclass(frozen=True, kw_only=True)
class TissueSample:
    """The tissue at n points.

    Args:
        shares: Share of each of `signal.TISSUES`, (tissues, n); what is missing to 1 is air.
        brain: 1.0 inside the brain (with the fluid in and between its folds), else 0.0, (n,).
        mottle: Noise of unit variance that makes tissue uneven, (n,).
    """

    shares: torch.Tensor
    brain: torch.Tensor
    mottle: torch.Tensor


def is_near_head(anatomy: Anatomy, points: torch.Tensor) -> torch.Tensor:
    """Return for points (n, 3) of a head whether they are inside it or not far outside."""
    return load_head().at(anatomy.to_template(points))[0] < _SKIN_MARGIN


def tissue_at(anatomy: Anatomy, lesions: Lesions, points: torch.Tensor) -> TissueSample:
    """Return the tissue at points (n, 3) of a head, in mm."""
    places = anatomy.to_template(points)
    depth = anatomy.template.brain_distance.at(places)[0]
    texture = anatomy.texture.at(places)
    beyond = (depth - anatomy.physique.fluid_gap + 0.5).clamp(0, 1)  # share of the voxel outside the inner skull
    shares = torch.zeros(len(TISSUES), len(points))

    inside = (beyond < 1).nonzero()[:, 0]
    if len(inside):
        white, grey, fluid = anatomy.brain_tissues(places[inside], depth[inside], texture[:2, inside])
        severity = lesions.severity_at(places[inside])
        mixture = torch.stack([white * (1 - severity), grey, fluid, white * severity])
        shares[:4, inside] = mixture * (1 - beyond[inside])

    outside = (beyond > 0).nonzero()[:, 0]
    if len(outside):
        around = anatomy.head_tissues(places[outside], depth[outside], texture[2, outside])
        for tissue, share in around.items():
            shares[TISSUES.index(tissue), outside] += share * beyond[outside]
    return TissueSample(shares=shares, brain=(depth < 0).float(), mottle=texture[2])
