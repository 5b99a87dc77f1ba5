"""What many trials say about one setting: gains over equal weights, regret, cost, lost domains, the audit."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev

from scipy import stats

from steelyard.experiments.problems.spoiling import NOISE, SCALE
from steelyard.experiments.regret.methods import BASELINE, SWEEP
from steelyard.experiments.regret.scores import Setting, group_by_setting, scores_by_setting
from steelyard.experiments.regret.trial import TrialResult

LOST = 0.5
"""A domain is lost if its share is below this part of an equal share."""
RIGHT_FLAGS = {NOISE: ("noisy labels", "harms others"), SCALE: ("out of scale",)}
"""The flags that an audit should give a domain with a fault; other faults need none."""

_CONFIDENCE = 0.95


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
        sound: Domains without a fault, in runs where others have one.
        wrong: Those with any flag.
    """

    faults: int = 0
    seen: int = 0
    plain: int = 0
    alarms: int = 0
    sound: int = 0
    wrong: int = 0

    def __add__(self, other: "AuditCount") -> "AuditCount":
        return AuditCount(
            faults=self.faults + other.faults,
            seen=self.seen + other.seen,
            plain=self.plain + other.plain,
            alarms=self.alarms + other.alarms,
            sound=self.sound + other.sound,
            wrong=self.wrong + other.wrong,
        )


def gains(results: Iterable[TrialResult], *, over: str = BASELINE) -> dict[Setting, Estimate]:
    """Return how much each method gains over equal weights, from seeds that both have.

    Args:
        results: Of any trials.
        over: `equal`, at the problem's learning rate, or `equal@best`.
    """
    scores = scores_by_setting(results)
    estimates = {}
    for setting, by_seed in scores.items():
        baseline = scores.get(replace(setting, method=over), {})
        differences = [by_seed[seed] - baseline[seed] for seed in sorted(by_seed) if seed in baseline]
        if differences and setting.method != over:
            estimates[setting] = Estimate.of(differences)
    return estimates


def regrets(results: Iterable[TrialResult]) -> dict[Setting, Estimate]:
    """Return how far each method stays below the best of the sweep, from seeds that both have; lower is better."""
    scores = scores_by_setting(results)
    estimates = {}
    for setting, by_seed in scores.items():
        best = scores.get(replace(setting, method=SWEEP), {})
        differences = [best[seed] - by_seed[seed] for seed in sorted(by_seed) if seed in best]
        if differences and setting.method != SWEEP:
            estimates[setting] = Estimate.of(differences)
    return estimates


def baseline_scores(results: Iterable[TrialResult]) -> dict[Setting, Estimate]:
    """Return the scores of equal weights themselves, at the problem's learning rate."""
    estimates = {}
    for setting, by_seed in scores_by_setting(results).items():
        if setting.method == BASELINE:
            estimates[setting] = Estimate.of(list(by_seed.values()))
    return estimates


def relative_costs(results: Iterable[TrialResult]) -> dict[Setting, float]:
    """Return how many times as long as with equal weights a training takes: the median over seeds that both have."""
    seconds: dict[Setting, dict[int, float]] = {}
    for setting, group in group_by_setting(results).items():
        seconds[setting] = {result.trial.seed: result.seconds for result in group}
    costs = {}
    for setting, by_seed in seconds.items():
        baseline = seconds.get(replace(setting, method=BASELINE), {})
        ratios = [by_seed[seed] / baseline[seed] for seed in by_seed if baseline.get(seed, 0) > 0]
        if ratios and not setting.is_baseline:
            costs[setting] = median(ratios)
    return costs


def lost_domains(results: Iterable[TrialResult]) -> dict[Setting, float]:
    """Return the share of plain runs that ended with a domain's share below half of an equal one."""
    losses = {}
    for setting, group in group_by_setting(results).items():
        if setting.variant == "plain" and setting.method != SWEEP:
            losses[setting] = fmean(_smallest_share(result.shares) < LOST for result in group)
    return losses


def _smallest_share(shares: Mapping[str, float]) -> float:
    """Return the smallest share, as a part of an equal share."""
    return min(shares.values()) * len(shares) / sum(shares.values())


def audit_counts(results: Iterable[TrialResult]) -> dict[Setting, AuditCount]:
    """Count faults that the audit saw and plain runs with a flag; trials without an audit are left out."""
    counts: dict[Setting, AuditCount] = {}
    for setting, group in group_by_setting(results).items():
        for result in group:
            if result.flags is not None:
                counts[setting] = counts.get(setting, AuditCount()) + _audit_count(result, result.flags)
    return counts


def _audit_count(result: TrialResult, flags: Sequence[tuple[str, str]]) -> AuditCount:
    if result.trial.variant == "plain":
        return AuditCount(plain=1, alarms=min(1, len(flags)))
    sound = [domain for domain in result.scores if not result.faults.get(domain)]
    wrong = sum(any(domain == flagged for flagged, _ in flags) for domain in sound)
    faults = seen = 0
    for domain, fault in result.faults.items():
        right = RIGHT_FLAGS.get(fault)
        if right:
            faults += 1
            seen += any((domain, kind) in flags for kind in right)
    return AuditCount(faults=faults, seen=seen, sound=len(sound), wrong=wrong)
