"""Which subjects of a cohort deserve a look first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

DEVIATIONS = 3.5
"""Robust standard deviations from the cohort's median beyond which something stands out."""

_ENOUGH = 6  # subjects, below which a median says little
_LIMITS = {
    "brain_overlap": (0.95, 1.0, "the brains of T1w and FLAIR overlap by {:.3f} only"),
    "supplied_brain_dice": (0.9, 1.0, "the brain agrees with the supplied mask by {:.3f} only"),
    "information": (0.3, np.inf, "T1w and FLAIR share {:.2f} nats of information only"),
    "brain_ml": (900.0, 2000.0, "the brain holds {:.0f} ml"),
    "moved_mm": (0.0, 20.0, "T1w was moved by {:.1f} mm"),
    "t1_missing": (0.0, 0.005, "{:.1%} of the brain lies outside T1w's field of view; T1w is 0 there"),
    "flair_bias_sd": (0.0, 0.25, "FLAIR's bias field varies by {:.0%}"),
    "t1_bias_sd": (0.0, 0.25, "T1w's bias field varies by {:.0%}"),
}
_NAMES = {
    "brain_ml": "brain volume",
    "moved_mm": "motion between T1w and FLAIR",
    "information": "mutual information of T1w and FLAIR",
    "brain_overlap": "overlap of the brains",
    "supplied_brain_dice": "agreement with the supplied brain mask",
    "flair_bias_sd": "bias field of FLAIR",
    "t1_bias_sd": "bias field of T1w",
    "flair_stripe_rank": "place of FLAIR's white stripe",
    "t1_stripe_rank": "place of T1w's white stripe",
}


@dataclass(frozen=True)
class Verdict:
    """How far a subject stands out, and in what.

    Args:
        score: 0 for a subject like the others.
        reasons: What to look at.
    """

    score: float
    reasons: tuple[str, ...]


def judge(cohort: Sequence[Mapping[str, float]]) -> list[Verdict]:
    """Compare each subject with fixed limits and, in cohorts of six and more, with the others.

    >>> judge([{"brain_ml": 1400.0}, {"brain_ml": 100.0}])[1].reasons
    ('the brain holds 100 ml',)
    """
    return [_verdict(subject, cohort) for subject in cohort]


def _verdict(subject: Mapping[str, float], cohort: Sequence[Mapping[str, float]]) -> Verdict:
    reasons: list[str] = []
    score = 0.0
    for name, value in subject.items():
        low, high, text = _LIMITS.get(name, (-np.inf, np.inf, ""))
        if not low <= value <= high:
            reasons.append(text.format(value))
            score += 10.0
            continue
        away = deviations(value, [other[name] for other in cohort if name in other])
        if name in _NAMES and away > DEVIATIONS:
            reasons.append(f"{_NAMES[name]} is unlike the others' ({value:.3g})")
            score += away / DEVIATIONS
    return Verdict(score, tuple(reasons))


def deviations(value: float, others: Sequence[float]) -> float:
    """Return how many robust standard deviations a value lies from the median of all."""
    if len(others) < _ENOUGH:
        return 0.0
    middle = float(np.median(others))
    spread = 1.4826 * float(np.median(np.abs(np.array(others) - middle)))
    spread = max(spread, 0.02 * abs(middle), 1e-9)
    return abs(value - middle) / spread
