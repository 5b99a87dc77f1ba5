"""From tissue to brightness: relaxation times and the signal equations of the three sequences.

All times are in milliseconds, all angles in degrees. References, by the keys the table below uses:

- W: Wansapura et al., J Magn Reson Imaging 9:531 (1999), white and grey matter at 3 T
- R: Rooney et al., Magn Reson Med 57:308 (2007), T1 of white and grey matter at 1.5 T
- S: Stanisz et al., Magn Reson Med 54:507 (2005), T2 of white and grey matter at 1.5 T, muscle at 1.5 and 3 T
- L: Lin et al., Proc Intl Soc Magn Reson Med 9:1391 (2001), T1 of cerebrospinal fluid
- P: Spijkerman et al., MAGMA 31:415 (2018), T2 of cerebrospinal fluid at 3 T
- G: Gold et al., AJR 183:343 (2004), fat and marrow at 1.5 and 3 T
- D: proton densities, relative to fluid, rounded from the water contents in Whittall et al., Magn Reson Med
  37:34 (1997)

White matter hyperintensities differ so much, between people and within one, that no one value is right: here T2
is about twice that of white matter, and T1 from a sixth longer (`lesion`, faint on T1w) to twice as long (`hole`,
tissue lost), fitted to the contrast of real lesions (docs/phantom.md). `lining` is the thin bright line that FLAIR
shows along healthy ventricles; its values are a guess.
"""

from dataclasses import dataclass, replace
from math import cos, exp, log, radians, sin
from typing import Protocol

TISSUES = ("white", "grey", "csf", "lesion", "fat", "marrow", "muscle", "hole", "lining")
"""Tissues that give signal; the rest of a voxel is air or compact bone, whose T2 of 0.4 ms is shorter than any echo."""


@dataclass(frozen=True, kw_only=True)
class Relaxation:
    """What the signal of a tissue depends on: proton density (fluid = 1), T1 and T2 in ms."""

    density: float
    t1: float
    t2: float

    def __post_init__(self) -> None:
        if not (self.density >= 0 and self.t1 > 0 and self.t2 > 0):
            raise ValueError(f"density must not be negative, T1 and T2 must be positive; got {self}.")


RELAXATION: dict[float, dict[str, Relaxation]] = {
    3.0: {
        "white": Relaxation(density=0.70, t1=832, t2=79.2),  # W, D
        "grey": Relaxation(density=0.82, t1=1331, t2=110),  # W, D
        "csf": Relaxation(density=1.00, t1=4163, t2=2030),  # L, P
        "lesion": Relaxation(density=0.77, t1=1000, t2=177),
        "fat": Relaxation(density=0.90, t1=371, t2=133),  # G
        "marrow": Relaxation(density=0.80, t1=365, t2=133),  # G
        "muscle": Relaxation(density=0.80, t1=1412, t2=50),  # S
        "hole": Relaxation(density=0.82, t1=1600, t2=195),
        "lining": Relaxation(density=0.80, t1=1200, t2=160),
    },
    1.5: {
        "white": Relaxation(density=0.70, t1=656, t2=72),  # R, S, D
        "grey": Relaxation(density=0.82, t1=1188, t2=95),  # R, S, D
        "csf": Relaxation(density=1.00, t1=4163, t2=2200),  # L: hardly depends on the field
        "lesion": Relaxation(density=0.77, t1=850, t2=138),
        "fat": Relaxation(density=0.90, t1=288, t2=165),  # G
        "marrow": Relaxation(density=0.80, t1=288, t2=165),  # G
        "muscle": Relaxation(density=0.80, t1=1008, t2=44),  # S
        "hole": Relaxation(density=0.82, t1=1500, t2=152),
        "lining": Relaxation(density=0.80, t1=1000, t2=128),
    },
}
"""Relaxation by field strength (tesla) and tissue; letters are the references in the module's docstring."""


class Sequence(Protocol):
    """An MR sequence: the signal it gets from a tissue."""

    @property
    def repetition_time(self) -> float:
        """TR in ms."""

    @property
    def echo_time(self) -> float:
        """TE in ms."""

    @property
    def flip_angle(self) -> float:
        """Flip angle in degrees, as protocols state it."""

    def signal(self, tissue: Relaxation) -> float:
        """Return the signal of a voxel full of this tissue."""


@dataclass(frozen=True, kw_only=True)
class Mprage:
    """Magnetisation-prepared rapid gradient echo (Deichmann et al., NeuroImage 12:112, 2000).

    Each inversion is followed by a wait, by a train of `train_length` pulses, `echo_spacing` apart, whose
    middle comes `inversion_time` after the inversion, and by the rest of `repetition_time`. In the train the
    magnetisation approaches M* with T1*, where 1/T1* = 1/T1 − ln(cos α)/τ.
    """

    repetition_time: float = 2300.0
    inversion_time: float = 900.0
    echo_time: float = 2.98
    flip_angle: float = 9.0
    echo_spacing: float = 7.1
    train_length: int = 160

    def __post_init__(self) -> None:
        half = self.echo_spacing * self.train_length / 2
        if not half < self.inversion_time < self.repetition_time - half:
            raise ValueError(
                f"the {2 * half:g} ms pulse train must fit around TI within TR; "
                f"got TI {self.inversion_time:g} ms and TR {self.repetition_time:g} ms."
            )

    def signal(self, tissue: Relaxation) -> float:
        """Return sin α · Mz(TI) · exp(−TE/T2) in the steady state."""
        alpha, tau = radians(self.flip_angle), self.echo_spacing
        half = tau * self.train_length / 2
        driven_t1 = 1 / (1 / tissue.t1 - log(cos(alpha)) / tau)
        pulse_decay = exp(-tau / tissue.t1)
        driven_end = (1 - pulse_decay) / (1 - cos(alpha) * pulse_decay)

        def affine(end: float, time: float, constant: float) -> tuple[float, float]:
            """Return (a, b) of M ↦ a·M + b, the approach to `end` over `time`."""
            decay = exp(-time / constant)
            return decay, end * (1 - decay)

        wait = affine(1.0, self.inversion_time - half, tissue.t1)
        half_train = affine(driven_end, half, driven_t1)
        rest = affine(1.0, self.repetition_time - self.inversion_time - half, tissue.t1)
        # One repetition takes M to gain·M + offset; it begins with the inversion, M ↦ −M.
        gain, offset = -1.0, 0.0
        for a, b in (wait, half_train, half_train, rest):
            gain, offset = a * gain, a * offset + b
        steady = offset / (1 - gain)  # the M that a repetition leaves unchanged
        after_wait = wait[0] * -steady + wait[1]
        at_centre = half_train[0] * after_wait + half_train[1]
        return tissue.density * sin(alpha) * at_centre * exp(-self.echo_time / tissue.t2)


@dataclass(frozen=True, kw_only=True)
class SpinEcho:
    """Spin echo: M0 (1 − exp(−TR/T1)) exp(−TE/T2), with a 90° excitation."""

    repetition_time: float = 600.0
    echo_time: float = 12.0
    flip_angle: float = 90.0

    def signal(self, tissue: Relaxation) -> float:
        """Return the signal of a voxel full of this tissue."""
        recovered = 1 - exp(-self.repetition_time / tissue.t1)
        return tissue.density * sin(radians(self.flip_angle)) * recovered * exp(-self.echo_time / tissue.t2)


@dataclass(frozen=True, kw_only=True)
class Flair:
    """Turbo spin echo after an inversion that nulls fluid.

    S = M0 · |1 − 2 exp(−TI/T1) + exp(−TR/T1)| · exp(−TE/T2) · sin²(α/2), where α is the refocusing angle,
    which is the flip angle such protocols state.
    """

    repetition_time: float = 9160.0
    inversion_time: float = 2500.0
    echo_time: float = 90.0
    flip_angle: float = 150.0

    def signal(self, tissue: Relaxation) -> float:
        """Return the signal of a voxel full of this tissue."""
        inverted = 1 - 2 * exp(-self.inversion_time / tissue.t1) + exp(-self.repetition_time / tissue.t1)
        refocused = sin(radians(self.flip_angle / 2)) ** 2
        return tissue.density * abs(inverted) * exp(-self.echo_time / tissue.t2) * refocused


def tissue_signals(sequence: Sequence, relaxation: dict[str, Relaxation]) -> tuple[float, ...]:
    """Return the signal of each of `TISSUES`, in units of white matter's.

    >>> flair = dict(zip(TISSUES, tissue_signals(Flair(), RELAXATION[3.0])))
    >>> flair["csf"] < 0.1 < flair["white"] < flair["grey"] < flair["lesion"]
    True
    """
    signals = [sequence.signal(relaxation[tissue]) for tissue in TISSUES]
    return tuple(value / signals[0] for value in signals)


def with_lesion_contrast(relaxation: dict[str, Relaxation], factor: float) -> dict[str, Relaxation]:
    """Return the table with the T2 of lesions and holes `factor` times as far from white matter's.

    T1 stays: how dark lesions are on T1w follows from how much of them is hole.
    """
    white = relaxation["white"]
    changed = dict(relaxation)
    for name in ("lesion", "hole"):
        t2 = white.t2 + factor * (relaxation[name].t2 - white.t2)
        changed[name] = replace(relaxation[name], t2=t2)
    return changed
