"""Was learning the weights worth it? The findings of a table of results, in plain sentences."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from steelyard.imaging.runs.method import Method
from steelyard.report.data.metrics import LOWER_IS_BETTER, METRICS
from steelyard.report.data.names import describe_methods
from steelyard.report.data.results import Results, Setting
from steelyard.report.statistics.bootstrap import Estimate
from steelyard.report.statistics.comparisons import (
    ALPHA,
    BEST_FIXED,
    Comparison,
    ComparisonOutcome,
    ComparisonSettings,
    compare_with_baseline,
    compare_with_best_fixed,
)
from steelyard.report.statistics.signed_rank import smallest_p

_STEADINESS: dict[ComparisonOutcome, str] = {"better": "steadier", "worse": "less steady"}


@dataclass(frozen=True, kw_only=True)
class SettingFinding:
    """What a table of results shows about one setting.

    Args:
        setting: The network and the data it had.
        overall: One paragraph that answers the question.
        sentences: One per comparison.
        comparisons: The numbers behind them, in the same order.
        methods: One line per method that is compared: its name and what it does.
    """

    setting: Setting
    overall: str
    sentences: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    methods: tuple[str, ...]


def findings_of(results: Results, settings: ComparisonSettings | None = None) -> tuple[SettingFinding, ...]:
    """Return what results show, setting by setting.

    Args:
        results: All rows.
        settings: What is compared, and how.

    Raises:
        UserError: There is no baseline to compare with, or the metric is infinite somewhere.
    """
    with_baseline = compare_with_baseline(results, settings)
    with_fixed = compare_with_best_fixed(results, settings)
    findings = []
    for setting in results.settings:
        base = _of_setting(with_baseline, setting)
        fixed = _of_setting(with_fixed, setting)
        finding = SettingFinding(
            setting=setting,
            overall=overall(setting, base, fixed, settings_in_all=len(results.settings)),
            sentences=tuple(map(sentence, (*base, *fixed))),
            comparisons=(*base, *fixed),
            methods=tuple(describe_methods(results.methods(setting))),
        )
        findings.append(finding)
    return tuple(findings)


def _of_setting(comparisons: Sequence[Comparison], setting: Setting) -> list[Comparison]:
    return [comparison for comparison in comparisons if comparison.setting == setting]


def sentence(comparison: Comparison) -> str:
    """Return a sentence on what one comparison shows, with its numbers."""
    domains = ", ".join(f"{name} {with_interval(estimate)}" for name, estimate in comparison.domains.items())
    effect = f"rank-biserial {comparison.ranks.rank_biserial:+.2f}"
    if not math.isnan(comparison.dz):
        effect += f", dz {comparison.dz:+.2f}"
    text = (
        f"{comparison.method} against {comparison.against}, {METRICS[comparison.metric]} summed over "
        f"{len(comparison.domains)} domains: {with_interval(comparison.total)} ({domains}); {comparison.subjects} "
        f"subjects, {comparison.folds} folds, {comparison.pairs} pairs of runs; signed-rank "
        f"{probability(comparison.ranks.p)}, bootstrap {probability(comparison.total.p)}, the larger after Holm's "
        f"correction for {comparison.family} methods {probability(comparison.corrected)}; {effect}: "
        f"{comparison.outcome}{_losing_domains(comparison)}."
    )
    return " ".join(filter(None, (text, _limits(comparison), _spread_sentence(comparison))))


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
    learned = [comparison for comparison in baseline if Method.parse_or_unknown(comparison.method).is_learned]
    if not learned:
        return f"{setting}: no baseline, or no method that learns its weights, was run; the question stays open."
    sentences = [f"{setting}: {_answer(learned)}"]
    better = _names_with("better", fixed)
    if fixed:
        names = ", ".join(better) or "none"
        sentences.append(f"Against {BEST_FIXED}, chosen on other subjects, better: {names} of {len(fixed)}.")
    elif _names_with("better", learned):
        sentences.append("No other fixed weighting was run, so a better fixed one may do as well.")
    steadier = [comparison.method for comparison in learned if comparison.spread_outcome == "better"]
    names = ", ".join(steadier) or "none shown to be"
    sentences.append(f"Steadier over repeats than {learned[0].against}: {names}.")
    sentences.append(_procedure(learned[0], settings_in_all))
    return " ".join(sentences)


def _procedure(comparison: Comparison, settings_in_all: int) -> str:
    """Return the sentence that says what was tested, at which level, and what was corrected for."""
    text = (
        f"Judged by {METRICS[comparison.metric]} summed over domains at {100 * ALPHA:g} % after Holm's correction for "
        f"{comparison.family} methods"
    )
    if settings_in_all > 1:
        return f"{text}; each of the {settings_in_all} settings is corrected on its own."
    return f"{text}."


def _answer(learned: Sequence[Comparison]) -> str:
    by_outcome: dict[ComparisonOutcome, list[Comparison]] = {}
    for comparison in learned:
        by_outcome.setdefault(comparison.outcome, []).append(comparison)
    base = learned[0].against
    parts = []
    if better := by_outcome.get("better"):
        parts.append(f"better than {base}: {_gains(better)}")
    if worse := by_outcome.get("worse"):
        parts.append(f"worse than {base}: {_gains(worse)}")
    if undecided := by_outcome.get("no evidence either way"):
        parts.append(f"no evidence either way for {len(undecided)} ({_widest_interval(undecided)})")
    if unknown := by_outcome.get("cannot be told"):
        parts.append(f"cannot be told for {len(unknown)}. {_limits(unknown[0])}".rstrip("."))
    conclusion = "No evidence that it was"
    if better:
        conclusion = f"Against {base}, yes"
    elif set(by_outcome) == {"worse"}:
        conclusion = f"Against {base}, no"
    return (
        f"was learning the weights worth it? {conclusion}: of {len(learned)} methods that learn them, "
        f"{'; '.join(parts)}."
    )


def _gains(comparisons: Sequence[Comparison]) -> str:
    gains = []
    for comparison in comparisons:
        gain = f"{with_interval(comparison.total)}{_losing_domains(comparison)}"
        gains.append(f"{comparison.method} ({gain})")
    return ", ".join(gains)


def _widest_interval(comparisons: Sequence[Comparison]) -> str:
    low = min(comparison.total.low for comparison in comparisons)
    high = max(comparison.total.high for comparison in comparisons)
    return f"95 % intervals within {_signed(low)} and {_signed(high)}"


def _names_with(outcome: ComparisonOutcome, comparisons: Sequence[Comparison]) -> list[str]:
    return [comparison.method for comparison in comparisons if comparison.outcome == outcome]


def _losing_domains(comparison: Comparison) -> str:
    """Name the domains whose own interval shows a loss although the sum is better; empty if there are none."""
    if comparison.outcome != "better":
        return ""
    losing = []
    for name, estimate in comparison.domains.items():
        lower_is_better = comparison.metric in LOWER_IS_BETTER
        if (lower_is_better and estimate.low > 0) or (not lower_is_better and estimate.high < 0):
            losing.append(name)
    if not losing:
        return ""
    return f", at the expense of {', '.join(losing)}"


def _limits(comparison: Comparison) -> str:
    """Return why so little data could not have shown more; empty if it could."""
    if comparison.subjects < 2:
        return f"Both were tested on {comparison.subjects or 'no'} subject: nothing can be said about others."
    if not comparison.repeated:
        return "With one run a fold, a lucky network cannot be told from a better method; two or more repeats can."
    return _too_few(comparison.subjects, comparison.family, "subjects")


def _too_few(count: int, family: int, counted: str) -> str:
    smallest = smallest_p(count)
    if smallest * family < ALPHA:
        return ""
    return (
        f"With {count} {counted} p cannot fall below {smallest:.2g}, or {min(1.0, smallest * family):.2g} after "
        f"correction for {family} methods, so nothing could have been shown."
    )


def _spread_sentence(comparison: Comparison) -> str:
    """Return a sentence on GAIN-σ; empty if it was not estimated."""
    spread = comparison.spread
    if spread is None or math.isnan(spread.value):
        return ""
    outcome = _STEADINESS.get(comparison.spread_outcome, comparison.spread_outcome)
    text = (
        f"Spread over repeats (GAIN-σ) {with_interval(spread)}, permutation {probability(spread.p)}, corrected "
        f"{probability(comparison.spread_corrected)}: {outcome}."
    )
    repeats = comparison.pairs - comparison.folds
    limits = _too_few(repeats, comparison.family, "pairs of runs beyond one a fold")
    return " ".join(filter(None, (text, limits)))


def with_interval(estimate: Estimate) -> str:
    """Return an estimate as text, with its interval if it has one."""
    if math.isnan(estimate.value):
        return "not known"
    if math.isnan(estimate.low):
        return _signed(estimate.value)
    return f"{_signed(estimate.value)} [{_signed(estimate.low)}, {_signed(estimate.high)}]"


def _signed(value: float) -> str:
    return f"{round(value, 3) + 0.0:+.3f}"  # adding 0.0 turns −0.0 into 0.0


def probability(value: float) -> str:
    """Return a p-value as text."""
    if math.isnan(value):
        return "p not known"
    if value < 0.0001:
        return "p < 0.0001"
    if value < 0.01:
        return f"p = {value:.2g}"
    return f"p = {value:.2f}"
