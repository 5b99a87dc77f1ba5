"""What preprocessing shall do."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from steelyard.errors import UserError
from steelyard.imaging.scans.nifti import MOST_VOXELS

Align = Literal["auto", "always", "skip"]
Bias = Literal["n4", "skip"]
Brain = Literal["deepbet", "own", "skip"]
Normalise = Literal["whitestripe", "skip"]

REVISION = 2
"""Part of every fingerprint: raise it when the same input and settings give another output."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Which steps run, and how.

    Args:
        align: `auto` registers T1 to FLAIR unless both share a grid and already fit; `always` registers in any
            case; `skip` trusts the headers.
        bias: `n4`, or `skip` to leave the intensities as they are.
        brain: `deepbet` finds the brain; `own` takes the mask supplied with the subject and falls back to deepbet
            where there is none; `skip` keeps the whole head.
        normalise: `whitestripe`, or `skip`.
        aligned_mm: With `align="auto"` and one grid, a T1 that is off by no more than this is left untouched.
        stripe: Half the width of the white stripe, as a share of the brain's voxels.
        depth_mm: How far inside the brain the histogram is taken in which white matter is the largest peak.
        empty_wmh: Whether a lesion mask may be empty.
        most_voxels: Larger scans are refused. It changes no result, so that it is not part of `as_dict`.
    """

    align: Align = "auto"
    bias: Bias = "n4"
    brain: Brain = "deepbet"
    normalise: Normalise = "whitestripe"
    aligned_mm: float = 1.5
    stripe: float = 0.05
    depth_mm: float = 10.0
    empty_wmh: bool = False
    most_voxels: int = MOST_VOXELS

    def __post_init__(self) -> None:
        for name, kind in (("align", Align), ("bias", Bias), ("brain", Brain), ("normalise", Normalise)):
            if getattr(self, name) not in get_args(kind):
                raise UserError(f"{name} must be one of {', '.join(get_args(kind))}; got {getattr(self, name)!r}.")
        if not 0 < self.stripe < 0.5:
            raise UserError(f"stripe must lie between 0 and 0.5; got {self.stripe}.")
        if not self.aligned_mm >= 0:
            raise UserError(f"aligned_mm must be at least 0; got {self.aligned_mm}.")
        if not 0 <= self.depth_mm <= 50:
            raise UserError(f"depth_mm must lie between 0 and 50; got {self.depth_mm}.")

    def as_dict(self) -> dict[str, Any]:
        """Return every setting that shapes the result by name, for sidecars and fingerprints."""
        settings = asdict(self)
        del settings["most_voxels"]
        return settings
