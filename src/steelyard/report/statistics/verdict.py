"""Was learning the weights worth it? What the evidence shows and does not, in plain sentences."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from steelyard.report.data.kinds import LOWER_IS_BETTER, METRICS, is_learned
from steelyard.report.data.results import Results, Setting
from steelyard.report.statistics.bootstrap import Estimate
from steelyard.report.statistics.comparisons import (
    ALPHA,
    BEST_FIXED,
    Comparison,
    Settings,
    compare_with_baseline,
    compare_with_best_fixed,
)
from steelyard.report.statistics.signed_rank import smallest_p


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a table of results shows about one setting.

    Args:
        setting: The network and the data it had.
        overall: One paragraph that answers the question.
        sentences: One per comparison.
        comparisons: The numbers behind them, in the same order.
    """

    setting: Setting
    overall: str
    sentences: tuple[str, ...]
    comparisons: tuple[Comparison, ...]


def judge(results: Results, settings: Settings | None = None) -> tuple[Verdict, ...]:
    """Say what results show, setting by setting.

    Args:
        results: All rows.
        settings: What is compared, and how.

    Raises:
        UserError: There is no baseline to compare with, or the metric is infinite somewhere.
    """
    with_baseline = compare_with_baseline(results, settings)
    with_fixed = compare_with_best_fixed(results, settings)
    verdicts = []
    for setting in results.settings:
        base, fixed = ([one for one in some if one.setting == setting] for some in (with_baseline, with_fixed))
        verdicts.append(
            Verdict(
                setting=setting,
                overall=overall(setting, base, fixed, settings_in_all=len(results.settings)),
                sentences=tuple(map(sentence, (*base, *fixed))),
                comparisons=(*base, *fixed),
            )
        )
    return tuple(verdicts)


def sentence(comparison: Comparison) -> str:
    """Say what one comparison shows, with its numbers."""
    one = comparison
    domains = ", ".join(f"{name} {ranged(found)}" for name, found in one.domains.items())
    effect = f"rank-biserial {one.ranks.rank_biserial:+.2f}" + ("" if math.isnan(one.dz) else f", dz {one.dz:+.2f}")
    said = (
        f"{one.method} against {one.against}, {METRICS[one.metric]} summed over {len(one.domains)} domains: "
        f"{ranged(one.total)} ({domains}); {one.subjects} subjects, {one.folds} folds, {one.pairs} pairs of runs; "
        f"signed-rank {probability(one.ranks.p)}, bootstrap {probability(one.total.p)}, the larger after Holm's "
        f"correction for {one.family} methods {probability(one.corrected)}; {effect}: {one.outcome}{_losers(one)}."
    )
    return " ".join(filter(None, (said, _limits(one), _spread(one))))


def overall(
    setting: Setting, baseline: Sequence[Comparison], fixed: Sequence[Comparison], *, settings_in_all: int = 1
) -> str:
    """Answer in one paragraph whether learning the weights was worth it in a setting.

    Args:
        setting: The network and the data it had.
        baseline: Every method against the baseline.
        fixed: The methods that learn their weights against the best fixed weighting.
        settings_in_all: How many settings are judged beside each other.
    """
    learned = [one for one in baseline if is_learned(one.method)]
    if not learned:
        return f"{setting}: no baseline, or no method that learns its weights, was run; the question stays open."
    base, title = learned[0].against, METRICS[learned[0].metric]
    said = [f"{setting}: {_answer(learned)}"]
    if fixed:
        beyond = [one.method for one in fixed if one.outcome == "better"]
        names = ", ".join(beyond) or "none"
        said.append(f"Against {BEST_FIXED}, chosen on other subjects, better: {names} of {len(fixed)}.")
    elif any(one.outcome == "better" for one in learned):
        said.append("No other fixed weighting was run, so a better fixed one may do as well.")
    steadier = [one.method for one in learned if one.spread_outcome == "better"]
    said.append(f"Steadier over repeats than {base}: {', '.join(steadier) or 'none shown to be'}.")
    level, family = f"{100 * ALPHA:g} %", learned[0].family
    said.append(
        f"Judged by {title} summed over domains at {level} after Holm's correction for {family} methods"
        + (f"; each of the {settings_in_all} settings is corrected on its own." if settings_in_all > 1 else ".")
    )
    return " ".join(said)


def _answer(learned: Sequence[Comparison]) -> str:
    base, count = learned[0].against, len(learned)
    by_outcome = {
        kind: [one for one in learned if one.outcome == kind]
        for kind in ("better", "worse", "no evidence either way", "cannot be told")
    }
    parts = []
    for kind in ("better", "worse"):
        if found := by_outcome[kind]:
            names = ", ".join(f"{one.method} ({ranged(one.total)}{_losers(one)})" for one in found)
            parts.append(f"{kind} than {base}: {names}")
    if found := by_outcome["no evidence either way"]:
        low, high = min(one.total.low for one in found), max(one.total.high for one in found)
        parts.append(
            f"no evidence either way for {len(found)} (95 % intervals within {_signed(low)} and {_signed(high)})"
        )
    if found := by_outcome["cannot be told"]:
        parts.append(f"cannot be told for {len(found)}. {_limits(found[0])}".rstrip("."))
    if by_outcome["better"]:
        verdict = f"Against {base}, yes"
    else:
        verdict = f"Against {base}, no" if len(by_outcome["worse"]) == count else "No evidence that it was"
    return f"was learning the weights worth it? {verdict}: of {count} methods that learn them, {'; '.join(parts)}."


def _losers(one: Comparison) -> str:
    """Name the domains whose own interval says that they lost, where the sum says better."""
    lower = one.metric in LOWER_IS_BETTER
    lost = [name for name, found in one.domains.items() if (found.low > 0 if lower else found.high < 0)]
    return f", at the expense of {', '.join(lost)}" if lost and one.outcome == "better" else ""


def _limits(one: Comparison) -> str:
    """Say why so little data could not have shown more."""
    if one.subjects < 2:
        return f"Both were tested on {one.subjects or 'no'} subject: nothing can be said about others."
    if not one.repeated:
        return "With one run a fold, a lucky network cannot be told from a better method; two or more repeats can."
    return _too_few(one.subjects, one.family, "subjects")


def _too_few(count: int, family: int, what: str) -> str:
    smallest = smallest_p(count)
    if smallest * family < ALPHA:
        return ""
    return (
        f"With {count} {what} p cannot fall below {smallest:.2g}, or {min(1.0, smallest * family):.2g} after "
        f"correction for {family} methods, so nothing could have been shown."
    )


def _spread(one: Comparison) -> str:
    if one.spread is None or math.isnan(one.spread.value):
        return ""
    shown = {"better": "steadier", "worse": "less steady"}.get(one.spread_outcome, one.spread_outcome)
    said = (
        f"Spread over repeats (GAIN-σ) {ranged(one.spread)}, permutation {probability(one.spread.p)}, corrected "
        f"{probability(one.spread_corrected)}: {shown}."
    )
    return " ".join(
        filter(None, (said, _too_few(one.pairs - one.folds, one.family, "pairs of runs beyond one a fold")))
    )


def ranged(found: Estimate) -> str:
    """Write an estimate with its interval, if it has one."""
    if math.isnan(found.value):
        return "not known"
    return _signed(found.value) + ("" if math.isnan(found.low) else f" [{_signed(found.low)}, {_signed(found.high)}]")


def _signed(value: float) -> str:
    return f"{round(value, 3) + 0.0:+.3f}"  # what rounds to zero has no minus


def probability(value: float) -> str:
    """Write a p-value."""
    if math.isnan(value):
        return "p not known"
    return "p < 0.0001" if value < 0.0001 else f"p = {value:.2g}" if value < 0.01 else f"p = {value:.2f}"
