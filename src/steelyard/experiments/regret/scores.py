"""Scores of trials that differ in the seed alone, with the best learning rate and the best of each sweep chosen."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from steelyard.experiments.regret.methods import BASELINE, SWEEP
from steelyard.experiments.regret.trial import Trial, TrialResult

BEST_RATE = f"{BASELINE}@best"
"""Equal weights at the learning rate that is best on clean validation samples."""

ScoreBySeed = dict[int, float]


@dataclass(frozen=True, kw_only=True, order=True)
class Setting:
    """Trials that differ in nothing but the seed; the method has its factor of the learning rate: `equal@3`."""

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
            method=trial.method_at_rate,
        )

    @property
    def is_baseline(self) -> bool:
        """Whether its weights are equal, at any learning rate."""
        return self.method == BASELINE or self.method.startswith(f"{BASELINE}@")


@dataclass(frozen=True)
class Winner:
    """The member of a sweep with the best mean on clean validation samples.

    Args:
        member: Its weights, most spoiled domain first, and the factor of the learning rate: `1-30-30@3`.
        scores: On samples for the test, by seed.
    """

    member: str
    scores: ScoreBySeed


def group_by_setting(results: Iterable[TrialResult]) -> dict[Setting, list[TrialResult]]:
    """Return the results of each setting, sorted."""
    groups: dict[Setting, list[TrialResult]] = {}
    for result in results:
        groups.setdefault(Setting.of(result.trial), []).append(result)
    return dict(sorted(groups.items()))


def scores_by_setting(results: Iterable[TrialResult]) -> dict[Setting, ScoreBySeed]:
    """Return the test scores of every setting, by seed. Those of a sweep are its winner's.

    `equal@best` is a setting of its own: equal weights at the learning rate with the best mean on clean validation
    samples, over the seeds that all rates have. There is none where only one rate was tried.
    """
    scores: dict[Setting, ScoreBySeed] = {}
    baselines: dict[Setting, list[list[TrialResult]]] = {}
    for setting, group in group_by_setting(results).items():
        if setting.method == SWEEP:
            scores[setting] = _winner(group).scores
            continue
        scores[setting] = {result.trial.seed: result.score for result in group}
        if setting.is_baseline:
            baselines.setdefault(replace(setting, method=BEST_RATE), []).append(group)
    for setting, rates in baselines.items():
        if len(rates) > 1:
            scores[setting] = _best_rate(rates)
    return dict(sorted(scores.items()))


def sweep_winners(results: Iterable[TrialResult]) -> dict[Setting, Winner]:
    """Return the winner of each sweep; one choice for all seeds of a setting."""
    winners = {}
    for setting, group in group_by_setting(results).items():
        if setting.method == SWEEP:
            winners[setting] = _winner(group)
    return winners


def _winner(sweeps: Sequence[TrialResult]) -> Winner:
    means = {}
    for member in sweeps[0].sweep:
        mean = fmean(result.sweep[member].clean_validation for result in sweeps)
        means[member] = -math.inf if math.isnan(mean) else mean
    best = max(means, key=lambda member: means[member])
    return Winner(best, {result.trial.seed: result.sweep[best].score for result in sweeps})


def _best_rate(rates: Sequence[Sequence[TrialResult]]) -> ScoreBySeed:
    """Return the test scores at the rate that is best on clean validation samples."""
    seeds = set.intersection(*({result.trial.seed for result in group} for group in rates))
    best: ScoreBySeed = {}
    best_mean = -math.inf
    for group in rates:
        shared = [result for result in group if result.trial.seed in seeds]
        if not shared:
            continue
        mean = fmean(result.clean_validation for result in shared)
        if mean > best_mean:
            best_mean = mean
            best = {result.trial.seed: result.score for result in shared}
    return best
