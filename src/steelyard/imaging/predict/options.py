"""Options of prediction."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from steelyard.errors import UserError
from steelyard.files.checks import check_choice
from steelyard.imaging.networks.accelerator import Accelerator
from steelyard.imaging.preprocess.settings import Bias, Normalise
from steelyard.imaging.scans.nifti import MOST_VOXELS

FindBrain = Literal["auto", "deepbet", "skip"]

REVISION = 1
"""Part of every fingerprint. Raise it when the same scan, network and options give another result."""

_CHOICES = {"brain": FindBrain, "bias": Bias, "normalise": Normalise, "accelerator": Accelerator}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which steps run, and what counts as a lesion.

    Args:
        threshold: A voxel is a lesion if its probability is greater.
        smallest_ml: Lesions of less volume are dropped.
        brain: `deepbet` finds the brain in a whole head. `skip` takes the scan as stripped. `auto` decides by the
            scan's background.
        bias: `n4`, or `skip` to leave the intensities unchanged.
        normalise: `whitestripe`, or `skip`.
        most_voxels: Larger scans are refused. It changes no result, so it is not part of `as_dict`.
        accelerator: What the network runs on. It changes the last bits of probabilities at most, so it is not part of
            `as_dict` either.
    """

    threshold: float = 0.5
    smallest_ml: float = 0.0
    brain: FindBrain = "auto"
    bias: Bias = "n4"
    normalise: Normalise = "whitestripe"
    most_voxels: int = MOST_VOXELS
    accelerator: Accelerator = "auto"

    def __post_init__(self) -> None:
        for name, literal in _CHOICES.items():
            check_choice(name, getattr(self, name), get_args(literal))
        if not 0 < self.threshold < 1:
            raise UserError(f"threshold must lie between 0 and 1; got {self.threshold}.")
        if not 0 <= self.smallest_ml < math.inf:
            raise UserError(f"smallest_ml must be at least 0; got {self.smallest_ml}.")

    def as_dict(self) -> dict[str, Any]:
        """Return every option that changes the result, by name, for sidecars and fingerprints."""
        options = asdict(self)
        del options["most_voxels"], options["accelerator"]
        return options
