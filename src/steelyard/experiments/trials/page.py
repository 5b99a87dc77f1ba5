"""The tables of many trials, on a page."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from steelyard.experiments.trials.statistics import (
    AuditCount,
    audit_counts,
    baseline_scores,
    gains,
    lost_domains,
)
from steelyard.experiments.trials.trial import TrialResult

SUMMARY = "summary.md"


def summary_page(results: Sequence[TrialResult]) -> str:
    """Return the tables as Markdown."""
    parts = [
        "# Trials\n\nGains are in the mean score over domains; ± is half of a 95 % interval over paired seeds.",
        "## Gain over equal weights",
        _table(("problem", "variant", "optimizer", "steps", "method", "seeds", "gain"), _gain_rows(results)),
        "## Plain runs that lost a domain",
        _table(("problem", "optimizer", "steps", "method", "share of runs"), _lost_rows(results)),
        "## Audit",
        audit_table(results),
    ]
    return "\n\n".join(parts) + "\n"


def wide_table(results: Sequence[TrialResult], methods: Sequence[str]) -> str:
    """Return the gains with a column per method, for a page of the documentation.

    Args:
        results: Of any trials.
        methods: The methods to show, beside equal weights.
    """
    estimates = gains(results)
    header = ("problem", "variant", "optimizer", "steps", "seeds", "equal", *methods)
    rows = []
    for setting, score in baseline_scores(results).items():
        cells = [str(estimates.get(replace(setting, method=method), "")) for method in methods]
        names = (setting.problem, setting.variant, setting.optimizer, f"{setting.steps:,}")
        rows.append((*names, score.count, f"{score.mean:.3f}", *cells))
    return _table(header, rows)


def audit_table(results: Sequence[TrialResult]) -> str:
    """Return what the audit saw, for a page of the documentation."""
    header = ("problem", "variant", "optimizer", "steps", "method", "result")
    return _table(header, _audit_rows(results))


def _gain_rows(results: Sequence[TrialResult]) -> Iterator[tuple[object, ...]]:
    estimates = gains(results)
    scores = baseline_scores(results)
    for setting in sorted([*estimates, *scores]):
        cells = (setting.problem, setting.variant, setting.optimizer, setting.steps, setting.method)
        if setting in scores:
            yield *cells, scores[setting].count, f"score {scores[setting].mean:.3f}"
        else:
            yield *cells, estimates[setting].count, str(estimates[setting])


def _lost_rows(results: Sequence[TrialResult]) -> Iterator[tuple[object, ...]]:
    for setting, share in lost_domains(results).items():
        yield setting.problem, setting.optimizer, setting.steps, setting.method, f"{share:.2f}"


def _audit_rows(results: Sequence[TrialResult]) -> Iterator[tuple[object, ...]]:
    totals: dict[str, AuditCount] = {}
    for setting, count in audit_counts(results).items():
        totals[setting.method] = totals.get(setting.method, AuditCount()) + count
        cells = (setting.problem, setting.variant, setting.optimizer, setting.steps, setting.method)
        yield *cells, _audit_text(count)
    for method, count in sorted(totals.items()):
        yield "all", "", "", "", method, _audit_text(count)


def _audit_text(count: AuditCount) -> str:
    parts = []
    if count.faults:
        parts.append(f"{count.seen} of {count.faults} faults seen")
    if count.plain:
        parts.append(f"{count.alarms} of {count.plain} plain runs with a flag")
    return "; ".join(parts) or "nothing to see"


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)
