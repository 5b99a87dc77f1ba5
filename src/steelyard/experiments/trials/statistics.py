"""What many trials say: gains over equal weights with intervals, runs that lost a domain, what the audit saw."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from scipy import stats

from steelyard.experiments.problems.spoiling import NOISE, SCALE
from steelyard.experiments.trials.methods import BASELINE
from steelyard.experiments.trials.trial import Trial, TrialResult

LOST = 0.5
"""A domain is lost if its share is below this part of an equal share."""
RIGHT_FLAGS = {NOISE: ("noisy labels", "harms others"), SCALE: ("out of scale",)}
"""The flags that an audit should give a domain with a fault; other faults need none."""

_CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True, order=True)
class Setting:
    """Trials that differ in nothing but the seed."""

    problem: str
    variant: str
    optimizer: str
    steps: int
    method: str

    @classmethod
    def of(cls, trial: Trial) -> "Setting":
        """Return the setting of a trial."""
        return cls(
            problem=trial.problem,
            variant=trial.variant,
            optimizer=trial.optimizer,
            steps=trial.steps,
            method=trial.method,
        )


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % t interval, mean ± reach; the reach of a single number is NaN."""

    mean: float
    reach: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """Return the mean of some values, at least one.

        >>> Estimate.of([1.0, 2.0, 3.0])
        Estimate(mean=2.0, reach=2.484..., count=3)
        """
        count = len(values)
        if count < 2:
            return cls(values[0], math.nan, count)
        quantile = float(stats.t.ppf((1 + _CONFIDENCE) / 2, count - 1))
        return cls(fmean(values), quantile * stdev(values) / math.sqrt(count), count)

    def __str__(self) -> str:
        if math.isnan(self.reach):
            return f"{self.mean:+.3f}"
        return f"{self.mean:+.3f} ± {self.reach:.3f}"


@dataclass(frozen=True, kw_only=True)
class AuditCount:
    """What the audit saw of faults, and where it saw some that are none.

    Args:
        faults: Domains with a fault that an audit should see.
        seen: Those that have a right flag.
        plain: Runs on plain problems.
        alarms: Those with any flag.
    """

    faults: int = 0
    seen: int = 0
    plain: int = 0
    alarms: int = 0

    def __add__(self, other: "AuditCount") -> "AuditCount":
        return AuditCount(
            faults=self.faults + other.faults,
            seen=self.seen + other.seen,
            plain=self.plain + other.plain,
            alarms=self.alarms + other.alarms,
        )


def gains(results: Iterable[TrialResult]) -> dict[Setting, Estimate]:
    """Return how much each method gains over equal weights, from seeds that both have."""
    by_setting: dict[Setting, dict[int, float]] = {}
    for result in results:
        by_setting.setdefault(Setting.of(result.trial), {})[result.trial.seed] = result.score
    estimates = {}
    for setting, scores in sorted(by_setting.items()):
        baseline = by_setting.get(replace(setting, method=BASELINE), {})
        differences = [scores[seed] - baseline[seed] for seed in sorted(scores) if seed in baseline]
        if differences and setting.method != BASELINE:
            estimates[setting] = Estimate.of(differences)
    return estimates


def baseline_scores(results: Iterable[TrialResult]) -> dict[Setting, Estimate]:
    """Return the scores of equal weights themselves."""
    scores: dict[Setting, list[float]] = {}
    for result in results:
        if result.trial.method == BASELINE:
            scores.setdefault(Setting.of(result.trial), []).append(result.score)
    return {setting: Estimate.of(values) for setting, values in sorted(scores.items())}


def lost_domains(results: Iterable[TrialResult]) -> dict[Setting, float]:
    """Return the share of plain runs that ended with a domain's share below half of an equal one."""
    losses: dict[Setting, list[bool]] = {}
    for result in results:
        if result.trial.variant == "plain":
            losses.setdefault(Setting.of(result.trial), []).append(_smallest_share(result.shares) < LOST)
    return {setting: fmean(lost) for setting, lost in sorted(losses.items())}


def _smallest_share(shares: Mapping[str, float]) -> float:
    """Return the smallest share, as a part of an equal share."""
    return min(shares.values()) * len(shares) / sum(shares.values())


def audit_counts(results: Iterable[TrialResult]) -> dict[Setting, AuditCount]:
    """Count faults that the audit saw and plain runs with a flag; trials without an audit are left out."""
    counts: dict[Setting, AuditCount] = {}
    for result in results:
        if result.flags is not None:
            setting = Setting.of(result.trial)
            counts[setting] = counts.get(setting, AuditCount()) + _audit_count(result, result.flags)
    return dict(sorted(counts.items()))


def _audit_count(result: TrialResult, flags: Sequence[tuple[str, str]]) -> AuditCount:
    if result.trial.variant == "plain":
        return AuditCount(plain=1, alarms=min(1, len(flags)))
    faults = seen = 0
    for domain, fault in result.faults.items():
        right = RIGHT_FLAGS.get(fault)
        if right:
            faults += 1
            seen += any((domain, kind) in flags for kind in right)
    return AuditCount(faults=faults, seen=seen)
