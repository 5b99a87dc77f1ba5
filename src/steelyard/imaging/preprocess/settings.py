"""Settings of preprocessing."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from steelyard.errors import UserError
from steelyard.files.checks import check_choice
from steelyard.imaging.scans.nifti import MOST_VOXELS

Align = Literal["auto", "always", "skip"]
Bias = Literal["n4", "skip"]
Brain = Literal["deepbet", "own", "skip"]
Normalise = Literal["whitestripe", "skip"]

REVISION = 2
"""Part of every fingerprint. Raise it when the same input and settings give another output."""

_CHOICES = {"align": Align, "bias": Bias, "brain": Brain, "normalise": Normalise}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Which steps run, and with which parameters.

    Args:
        align: `auto` registers T1 to FLAIR unless both share a grid and are aligned already. `always` registers in
            any case. `skip` trusts the headers.
        bias: `n4`, or `skip` to leave the intensities unchanged.
        brain: `deepbet` finds the brain. `own` takes the mask supplied with the subject, and deepbet's where there is
            none. `skip` keeps the whole head.
        normalise: `whitestripe`, or `skip`.
        aligned_mm: With `align="auto"` and one grid, a T1 that is off by no more than this is left unchanged.
        stripe: Half the width of the white stripe, as a share of the brain's voxels.
        depth_mm: WhiteStripe's histogram is of voxels at least this far inside the brain, most of them white matter.
        empty_wmh: Whether a lesion mask may be empty.
        most_voxels: Larger scans are refused. It changes no result, so it is not part of `as_dict`.
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
        for name, literal in _CHOICES.items():
            check_choice(name, getattr(self, name), get_args(literal))
        if not 0 < self.stripe < 0.5:
            raise UserError(f"stripe must lie between 0 and 0.5; got {self.stripe}.")
        if not self.aligned_mm >= 0:
            raise UserError(f"aligned_mm must be at least 0; got {self.aligned_mm}.")
        if not 0 <= self.depth_mm <= 50:
            raise UserError(f"depth_mm must lie between 0 and 50; got {self.depth_mm}.")

    def as_dict(self) -> dict[str, Any]:
        """Return every setting that changes the result, by name, for sidecars and fingerprints."""
        settings = asdict(self)
        del settings["most_voxels"]
        return settings
