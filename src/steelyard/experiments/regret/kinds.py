"""The answer in short: what a method gains for each kind of fault, over all problems together."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from steelyard.experiments.regret.methods import BASELINE, SWEEP
from steelyard.experiments.regret.scores import ScoreBySeed, Setting, scores_by_setting
from steelyard.experiments.regret.statistics import Estimate, gains
from steelyard.experiments.regret.trial import TrialResult

KINDS = {
    "noisy": "wrong labels",
    "random": "wrong labels",
    "times-30": "loss in other units",
    "scaled": "loss in other units",
    "small": "small domain",
    "plain": "nothing wrong",
}
"""Of each variant, the kind of fault; other variants are kinds of their own."""

_SMALLEST_GAP = 0.005  # of scores


@dataclass(frozen=True, kw_only=True)
class KindSummary:
    """How a method fares with one kind of fault.

    Args:
        kind: Of the fault.
        method: Its name.
        rows: Problems × variants × optimizers × numbers of steps.
        gaining: Rows whose interval lies above 0.
        losing: Rows whose interval lies below 0.
        gain: The mean over problems, with its interval over seeds: it is about these problems, not about others.
        closed: The part of the gap between equal weights and the best of the sweep that the method closes, over all
            seeds that have a sweep; `None` if none has, or the gap is too small to be divided by.
    """

    kind: str
    method: str
    rows: int
    gaining: int
    losing: int
    gain: Estimate
    closed: float | None


def summarise_kinds(results: Sequence[TrialResult], methods: Sequence[str]) -> list[KindSummary]:
    """Return a summary for each kind of fault and each of these methods that has results."""
    by_kind: dict[str, dict[str, dict[Setting, Estimate]]] = {}
    for setting, gain in gains(results).items():
        kind = KINDS.get(setting.variant, setting.variant)
        by_kind.setdefault(kind, {}).setdefault(setting.method, {})[setting] = gain
    scores = scores_by_setting(results)
    order = [*dict.fromkeys(KINDS.values()), *sorted(by_kind.keys() - set(KINDS.values()))]
    summaries = []
    for kind in order:
        for method in methods:
            estimates = by_kind.get(kind, {}).get(method)
            if estimates:
                summaries.append(_summarise(kind, method, estimates, scores))
    return summaries


def _summarise(
    kind: str, method: str, estimates: Mapping[Setting, Estimate], scores: Mapping[Setting, ScoreBySeed]
) -> KindSummary:
    return KindSummary(
        kind=kind,
        method=method,
        rows=len(estimates),
        gaining=sum(gain.mean - gain.reach > 0 for gain in estimates.values()),
        losing=sum(gain.mean + gain.reach < 0 for gain in estimates.values()),
        gain=_mean_gain(estimates, scores),
        closed=_closed(estimates, scores),
    )


def _mean_gain(settings: Iterable[Setting], scores: Mapping[Setting, ScoreBySeed]) -> Estimate:
    """Return the mean gain over problems, each of which counts the same.

    Rows of one problem have the same divisions of its samples, so a seed's gains on them are averaged first. Problems
    are independent: the half-widths of their intervals add up as the root of the sum of their squares.
    """
    gains_by_problem: dict[str, dict[int, list[float]]] = {}
    for setting in settings:
        equal = scores[replace(setting, method=BASELINE)]
        by_seed = gains_by_problem.setdefault(setting.problem, {})
        for seed in equal.keys() & scores[setting].keys():
            by_seed.setdefault(seed, []).append(scores[setting][seed] - equal[seed])
    estimates = []
    for by_seed in gains_by_problem.values():
        most_rows = max(map(len, by_seed.values()))
        complete = [fmean(gains) for gains in by_seed.values() if len(gains) == most_rows]
        estimates.append(Estimate.of(complete))
    reach = math.hypot(*(estimate.reach for estimate in estimates)) / len(estimates)
    return Estimate(fmean(estimate.mean for estimate in estimates), reach, len(estimates))


def _closed(settings: Iterable[Setting], scores: Mapping[Setting, ScoreBySeed]) -> float | None:
    """Return the sum of the method's gains as a part of the sum of the sweep's gains, over the seeds with a sweep."""
    gained, possible = [], []
    for setting in settings:
        equal = scores[replace(setting, method=BASELINE)]
        swept = scores.get(replace(setting, method=SWEEP), {})
        own = scores[setting]
        for seed in swept.keys() & equal.keys() & own.keys():
            gained.append(own[seed] - equal[seed])
            possible.append(swept[seed] - equal[seed])
    if not possible or fmean(possible) < _SMALLEST_GAP:
        return None
    return fmean(gained) / fmean(possible)
