"""The tissue of a subject's head at any point: brain, lesions, skull and scalp together."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from steelyard.imaging.anatomy.rigid import Matrix
from steelyard.imaging.phantom.anatomy import Anatomy
from steelyard.imaging.phantom.head import load_head
from steelyard.imaging.phantom.lesions import SimulatedLesions
from steelyard.imaging.phantom.signal import TISSUES

_SKIN_MARGIN = 3.6  # mm: blocks of voxels whose middle is farther outside hold air alone
_VENTRICLE_MARGIN = 2.0  # mm of the template: with age, fluid also takes the blurred rim of its ventricles


@dataclass(frozen=True, kw_only=True)
class Part:
    """Tissue shares at some of the points: those that may hold brain, or those that may not."""

    indices: torch.Tensor
    shares: dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class TissueSample:
    """The tissue at n points; the rest up to 1 is air.

    Args:
        parts: The shares of tissues, each at some of the points; where parts meet, their shares add up.
        brain: 1.0 inside the brain (with the fluid in and between its folds), else 0.0, (n,).
        mottle: Noise of unit variance that makes tissue uneven, (n,).
    """

    parts: tuple[Part, ...]
    brain: torch.Tensor
    mottle: torch.Tensor

    def share_of(self, tissue: str) -> torch.Tensor:
        """Return the share of one tissue, (n,)."""
        return self.weighted([float(name == tissue) for name in TISSUES])

    def weighted(self, weights: Sequence[float]) -> torch.Tensor:
        """Return the sum of the shares, each times its weight (in the order of `signal.TISSUES`), (n,)."""
        total = torch.zeros_like(self.mottle)
        weight_of = dict(zip(TISSUES, weights, strict=True))
        for part in self.parts:
            terms = [share * weight_of[name] for name, share in part.shares.items() if weight_of[name] != 0]
            if terms:
                total.index_add_(0, part.indices, torch.stack(terms).sum(dim=0))
        return total


@dataclass(frozen=True, kw_only=True)
class PosedHead:
    """A head as it lies in the scanner.

    Args:
        anatomy: The head.
        lesions: Its white matter hyperintensities.
        to_head: From scanner coordinates to the head's: 4 × 4, right-anterior-superior mm.
        damage: Which part of the lesions' tissue is lost, on average.
        lining: Share of the bright line in the tissue right at the ventricles.
    """

    anatomy: Anatomy
    lesions: SimulatedLesions
    to_head: Matrix
    damage: float
    lining: float

    def is_near(self, points: torch.Tensor) -> torch.Tensor:
        """Return for points (n, 3) of the scanner whether they are in the head or not far from it."""
        return load_head().skin_distance.at(self._to_template(points))[0] < _SKIN_MARGIN

    def tissue_at(self, points: torch.Tensor) -> TissueSample:
        """Return the tissue at points (n, 3) of the scanner, in mm."""
        in_template = self._to_template(points)
        layers = self.anatomy.layers.at(in_template)
        depth, _, mottle = layers
        # The share of each voxel beyond the inner skull; at its border a voxel belongs to both parts.
        beyond = (depth - self.anatomy.physique.fluid_gap + 0.5).clamp(0, 1)
        inside, outside = (beyond < 1).nonzero()[:, 0], (beyond > 0).nonzero()[:, 0]
        brain = self._in_brain(in_template[inside], depth[inside], 1 - beyond[inside])
        around = self.anatomy.head_tissues(in_template[outside], layers[:, outside])
        around = {name: share * beyond[outside] for name, share in around.items()}
        return TissueSample(
            parts=(Part(indices=inside, shares=brain), Part(indices=outside, shares=around)),
            brain=(depth < 0).float(),
            mottle=mottle,
        )

    def ventricles_at(self, points: torch.Tensor) -> torch.Tensor:
        """Return the share of the lateral ventricles' fluid at points (n, 3) of the scanner, in mm."""
        in_template = self._to_template(points)
        depth = self.anatomy.layers.at(in_template)[0]
        young = self.anatomy.before_ageing(in_template, depth)
        fluid = self.anatomy.brain_tissues(young, depth)[2]
        is_close = self.anatomy.template.ventricle_distance.at(young)[0] < _VENTRICLE_MARGIN
        return fluid * (is_close & (depth < 0))

    def _in_brain(
        self, in_template: torch.Tensor, depth: torch.Tensor, within: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the shares of tissue at points of the template, of which `within` lies inside the skull."""
        young = self.anatomy.before_ageing(in_template, depth)
        white, grey, fluid = self.anatomy.brain_tissues(young, depth) * within
        severity, lost, closeness = self.lesions.at(young, damage=self.damage)
        lesion = white * severity
        rim = self.lining * closeness
        return {
            "white": (white - lesion) * (1 - rim),
            "grey": grey * (1 - rim),
            "csf": fluid,
            "lesion": lesion * (1 - lost),
            "hole": lesion * lost,
            "lining": (white - lesion + grey) * rim,
        }

    def _to_template(self, points: torch.Tensor) -> torch.Tensor:
        """Return the points of the template for points (n, 3) of the scanner."""
        matrix = torch.from_numpy(self.to_head).float()
        return self.anatomy.to_template(points @ matrix[:3, :3].T + matrix[:3, 3])
