"""What prediction shall do."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from steelyard.errors import UserError
from steelyard.imaging.preprocess.settings import Bias, Normalise
from steelyard.imaging.scans.nifti import MOST_VOXELS

FindBrain = Literal["auto", "deepbet", "skip"]

REVISION = 1
"""Part of every fingerprint: raise it when the same scan, model and options give another result."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which steps run, and what counts as a lesion.

    Args:
        threshold: A voxel is a lesion from this probability on.
        smallest_ml: Lesions of less volume are dropped.
        brain: `deepbet` finds the brain in a whole head; `skip` takes a stripped scan as it is; `auto` tells.
        bias: `n4`, or `skip` to leave the intensities as they are.
        normalise: `whitestripe`, or `skip`.
        most_voxels: Larger scans are refused. It changes no result, so that it is not part of `as_dict`.
    """

    threshold: float = 0.5
    smallest_ml: float = 0.0
    brain: FindBrain = "auto"
    bias: Bias = "n4"
    normalise: Normalise = "whitestripe"
    most_voxels: int = MOST_VOXELS

    def __post_init__(self) -> None:
        for name, kind in (("brain", FindBrain), ("bias", Bias), ("normalise", Normalise)):
            if getattr(self, name) not in get_args(kind):
                raise UserError(f"{name} must be one of {', '.join(get_args(kind))}; got {getattr(self, name)!r}.")
        if not 0 < self.threshold < 1:
            raise UserError(f"threshold must lie between 0 and 1; got {self.threshold}.")
        if not 0 <= self.smallest_ml < math.inf:
            raise UserError(f"smallest_ml must be at least 0; got {self.smallest_ml}.")

    def as_dict(self) -> dict[str, Any]:
        """Return every option that shapes the result by name, for sidecars and fingerprints."""
        options = asdict(self)
        del options["most_voxels"]
        return options
