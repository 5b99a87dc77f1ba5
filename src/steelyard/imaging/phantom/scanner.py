"""Scanner presets: field strength, sequences, noise and shading. Each is a domain of its own."""

from dataclasses import dataclass, field, replace

from steelyard.files.checks import check_choice
from steelyard.imaging.phantom.signal import (
    RELAXATION,
    TISSUES,
    Flair,
    Mprage,
    Relaxation,
    Sequence,
    SpinEcho,
    tissue_signals,
    with_lesion_contrast,
)


@dataclass(frozen=True, kw_only=True)
class Scanner:
    """The settings of a scanner.

    Args:
        field_strength: In tesla; picks the relaxation times.
        t1w: The T1-weighted sequence.
        flair: The FLAIR sequence.
        noise: Standard deviation of the noise in each of the two receiver channels, of white matter's signal.
        shading: Standard deviation of the logarithm of the bias field within the head.
        fat_suppression: Which part of the fat's signal the FLAIR sequence removes, 0 to 1.
    """

    field_strength: float = 3.0
    t1w: Sequence = field(default_factory=Mprage)
    flair: Sequence = field(default_factory=Flair)
    noise: float = 0.035
    shading: float = 0.10
    fat_suppression: float = 0.0

    def __post_init__(self) -> None:
        if self.field_strength not in RELAXATION:
            raise ValueError(f"field_strength must be one of {sorted(RELAXATION)}; got {self.field_strength}.")
        if self.noise < 0 or self.shading < 0 or not 0 <= self.fat_suppression <= 1:
            raise ValueError(f"noise and shading must not be negative, fat_suppression within 0 to 1; got {self}.")

    def t1w_signals(self, lesion_contrast: float) -> tuple[float, ...]:
        """Return the signal of each of `signal.TISSUES` in the T1w scan, in units of white matter's."""
        return tissue_signals(self.t1w, self._relaxation(lesion_contrast))

    def flair_signals(self, lesion_contrast: float) -> tuple[float, ...]:
        """Return the signal of each of `signal.TISSUES` in the FLAIR scan, in units of white matter's."""
        signals = list(tissue_signals(self.flair, self._relaxation(lesion_contrast)))
        for fatty in ("fat", "marrow"):
            signals[TISSUES.index(fatty)] *= 1 - self.fat_suppression
        return tuple(signals)

    def _relaxation(self, lesion_contrast: float) -> dict[str, Relaxation]:
        return with_lesion_contrast(RELAXATION[self.field_strength], lesion_contrast)


_STANDARD = Scanner()

SCANNERS: dict[str, Scanner] = {
    "standard-3t": _STANDARD,
    "noisy-3t": replace(_STANDARD, noise=0.08, shading=0.18),
    "fatsat-3t": replace(
        _STANDARD,
        flair=Flair(repetition_time=9000.0, inversion_time=2500.0, echo_time=125.0),
        t1w=Mprage(repetition_time=2000.0, inversion_time=1000.0, flip_angle=8.0, echo_time=2.3),
        fat_suppression=0.9,
    ),
    "standard-1.5t": replace(
        _STANDARD,
        field_strength=1.5,
        t1w=Mprage(repetition_time=2400.0, inversion_time=1000.0, flip_angle=8.0, echo_time=3.5),
        flair=Flair(repetition_time=9000.0, inversion_time=2450.0, echo_time=100.0),
        noise=0.055,
        shading=0.06,
    ),
    "clinical-1.5t": replace(
        _STANDARD,
        field_strength=1.5,
        t1w=SpinEcho(),
        flair=Flair(repetition_time=8000.0, inversion_time=2300.0, echo_time=110.0),
        noise=0.045,
        shading=0.08,
    ),
}
"""The presets by name; the first is the default and has the paper's TE, TR and flip angles."""


def scanner_named(name: str) -> Scanner:
    """Return a preset.

    Raises:
        UserError: There is none of this name.
    """
    check_choice("scanner", name, tuple(SCANNERS))
    return SCANNERS[name]
