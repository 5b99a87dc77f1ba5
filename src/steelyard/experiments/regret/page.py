"""The tables of many trials, and the page that has them as Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from steelyard.experiments.regret.kinds import KindSummary, summarise_kinds
from steelyard.experiments.regret.pooling import Pooled, pool_gains
from steelyard.experiments.regret.scores import BEST_RATE, Setting, sweep_winners
from steelyard.experiments.regret.statistics import (
    AuditCount,
    Estimate,
    audit_counts,
    baseline_scores,
    gains,
    lost_domains,
    regrets,
    relative_costs,
)
from steelyard.experiments.regret.trial import TrialResult

SUMMARY = "summary.md"
TITLE = "When do learned weights pay?"
LEAD = (
    "Scores are means over domains, on test samples with right labels. A gain is the score minus that of equal "
    "weights; ± is half of a 95 % interval over paired seeds."
)


@dataclass(frozen=True, kw_only=True)
class SummaryTable:
    """A table of the summary.

    Args:
        title: Above it.
        headings: Of its columns.
        rows: Its cells.
        note: Below it.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def summary_tables(results: Sequence[TrialResult]) -> list[SummaryTable]:
    """Return all tables that have a row."""
    tables = (
        kinds_table(results),
        pooled_table(results),
        problems_table(results),
        sweeps_table(results),
        lost_table(results),
        audit_summary(results),
    )
    return [table for table in tables if table.rows]


def summary_page(results: Sequence[TrialResult]) -> str:
    """Return the tables as Markdown."""
    parts = [f"# {TITLE}", LEAD]
    for table in summary_tables(results):
        parts += [f"## {table.title}", _markdown(table.headings, table.rows)]
        if table.note:
            parts.append(table.note)
    return "\n\n".join(parts) + "\n"


def kinds_table(results: Sequence[TrialResult], methods: Sequence[str] = ()) -> SummaryTable:
    """Return the answer in short: a row for each kind of fault and each method.

    Args:
        results: Of any trials.
        methods: To be shown; default all.
    """
    methods = methods or sorted({setting.method for setting in gains(results)})
    return SummaryTable(
        title="In short",
        headings=("what is wrong", "method", "gain over equal", "shown to gain", "shown to lose", "gap closed"),
        rows=[_kind_cells(summary) for summary in summarise_kinds(results, methods)],
        note=(
            "The gain is the mean over problems, ± half of a 95 % interval over seeds. Shown to gain or to lose: "
            "rows of the table of problems whose interval over seeds lies above or below 0. Gap closed: the part of "
            "the gap between equal weights and the best of the sweep, over the seeds that have a sweep."
        ),
    )


def _kind_cells(summary: KindSummary) -> tuple[str, ...]:
    closed = ""
    if summary.closed is not None:
        closed = f"{summary.closed:.0%}"
    counts = [f"{count} of {summary.rows}" for count in (summary.gaining, summary.losing)]
    return summary.kind, summary.method, str(summary.gain), *counts, closed


def short_table(results: Sequence[TrialResult], methods: Sequence[str]) -> str:
    """Return the answer in short, for a page of the documentation."""
    table = kinds_table(results, methods)
    return _markdown(table.headings, table.rows)


def pooled_table(results: Sequence[TrialResult]) -> SummaryTable:
    """Return the gains over all problems together."""
    over_equal = pool_gains(gains(results))
    over_best = pool_gains(gains(results, over=BEST_RATE))
    rows = []
    for method, pooled in over_equal.items():
        counts = (str(pooled.gain.count), str(pooled.cells))
        rows.append((method, *counts, *_pooled_cells(pooled), *_pooled_cells(over_best.get(method))))
    return SummaryTable(
        title="All problems together",
        headings=("method", "problems", "cells", "gain over equal", "p", "gain over equal@best", "p"),
        rows=rows,
        note=(
            "A cell is a problem with a variant. The gain is the mean over problems, ± half of a t interval over "
            "problems; p is that of Wilcoxon's signed-rank test over cells, which are not independent. equal@best has "
            "the best of three learning rates, chosen on validation samples with right labels."
        ),
    )


def _pooled_cells(pooled: Pooled | None) -> tuple[str, str]:
    if pooled is None:
        return "", ""
    return str(pooled.gain), f"{pooled.p:.3f}"


def problems_table(results: Sequence[TrialResult]) -> SummaryTable:
    """Return gain, regret and cost of each method on each problem."""
    over_equal, over_best = gains(results), gains(results, over=BEST_RATE)
    scores, regret, costs = baseline_scores(results), regrets(results), relative_costs(results)
    rows = []
    for setting in sorted({*over_equal, *over_best, *scores}):
        gain = _cell(over_equal, setting)
        count = over_equal.get(setting) or over_best.get(setting) or scores[setting]
        if setting in scores:
            gain = f"score {scores[setting].mean:.3f}"
        cost = f"{costs[setting]:.2f}" if setting in costs else ""
        estimates = (gain, _cell(over_best, setting), _cell(regret, setting))
        rows.append((*_names(setting), setting.method, str(count.count), *estimates, cost))
    return SummaryTable(
        title="Each problem",
        headings=(*_NAMES, "method", "seeds", "gain over equal", "gain over equal@best", "regret", "cost"),
        rows=rows,
        note=(
            "Regret is the score of the best of the sweep minus that of the method, over the seeds that have a sweep; "
            "lower is better. Cost is the time "
            "of a training relative to equal weights; that of a sweep is the time of all its trainings."
        ),
    )


def sweeps_table(results: Sequence[TrialResult]) -> SummaryTable:
    """Return the winners of the sweeps."""
    rows = []
    for setting, winner in sweep_winners(results).items():
        score = sum(winner.scores.values()) / len(winner.scores)
        rows.append((*_names(setting), str(len(winner.scores)), winner.member, f"{score:.3f}"))
    return SummaryTable(
        title="The best of each sweep",
        headings=(*_NAMES, "seeds", "weights", "score"),
        rows=rows,
        note=(
            "Chosen by the mean over seeds on validation samples with right labels. Weights are listed by how strongly "
            "a domain is spoiled, the most spoiled first; @ is followed by the factor of the learning rate."
        ),
    )


def lost_table(results: Sequence[TrialResult]) -> SummaryTable:
    """Return how often a method lost a domain."""
    rows = []
    for setting, share in lost_domains(results).items():
        rows.append((setting.problem, setting.optimizer, str(setting.steps), setting.method, f"{share:.2f}"))
    return SummaryTable(
        title="Plain runs that lost a domain",
        headings=("problem", "optimizer", "steps", "method", "share of runs"),
        rows=rows,
        note=(
            "A domain is lost if its share of the update ends below half of an equal share. Without a probe shares are "
            "not measured, and weights take their place: equal weights never lose a domain here."
        ),
    )


def audit_summary(results: Sequence[TrialResult]) -> SummaryTable:
    """Return what the audit said."""
    return SummaryTable(
        title="Audit", headings=(*_NAMES, "method", "result"), rows=list(_audit_rows(results)), note=_AUDIT_NOTE
    )


def wide_table(results: Sequence[TrialResult], methods: Sequence[str]) -> str:
    """Return the gains with a column per method, for a page of the documentation.

    Args:
        results: Of any trials.
        methods: The methods to show, beside equal weights.
    """
    estimates = gains(results)
    headings = ("problem", "variant", "optimizer", "steps", "seeds", "equal", *methods)
    rows = []
    for setting, score in baseline_scores(results).items():
        cells = [_cell(estimates, replace(setting, method=method)) for method in methods]
        names = (setting.problem, setting.variant, setting.optimizer, f"{setting.steps:,}")
        rows.append((*names, str(score.count), f"{score.mean:.3f}", *cells))
    return _markdown(headings, rows)


def audit_table(results: Sequence[TrialResult], method: str) -> str:
    """Return what the audit saw in trials of one method, over both optimizers, for a page of the documentation."""
    counts: dict[tuple[str, ...], AuditCount] = {}
    total = AuditCount()
    for setting, count in audit_counts(results).items():
        if setting.method == method:
            names = (setting.problem, setting.variant, f"{setting.steps:,}")
            counts[names] = counts.get(names, AuditCount()) + count
            total += count
    rows = [(*names, *_audit_cells(count)) for names, count in counts.items()]
    rows.append(("**all**", "", "", *_audit_cells(total)))
    headings = ("problem", "variant", "steps", "faults seen", "sound domains flagged", "plain runs with a flag")
    return _markdown(headings, rows)


def _audit_cells(count: AuditCount) -> list[str]:
    pairs = ((count.seen, count.faults), (count.wrong, count.sound), (count.alarms, count.plain))
    return [f"{part} of {whole}" if whole else "" for part, whole in pairs]


_NAMES = ("problem", "variant", "optimizer", "steps")
_AUDIT_NOTE = (
    "A fault is seen if its domain has a right flag: noisy labels or harms others for wrong labels, out of scale for a "
    "loss × 30. Small domains, and mild faults, need no flag."
)


def _names(setting: Setting) -> tuple[str, str, str, str]:
    return setting.problem, setting.variant, setting.optimizer, str(setting.steps)


def _cell(estimates: Mapping[Setting, Estimate], setting: Setting) -> str:
    return str(estimates.get(setting, ""))


def _audit_rows(results: Sequence[TrialResult]) -> Iterator[tuple[str, ...]]:
    totals: dict[str, AuditCount] = {}
    for setting, count in audit_counts(results).items():
        totals[setting.method] = totals.get(setting.method, AuditCount()) + count
        yield *_names(setting), setting.method, _audit_text(count)
    for method, count in sorted(totals.items()):
        yield "all", "", "", "", method, _audit_text(count)


def _audit_text(count: AuditCount) -> str:
    parts = []
    if count.faults:
        parts.append(f"{count.seen} of {count.faults} faults seen")
    if count.sound:
        parts.append(f"{count.wrong} of {count.sound} sound domains flagged")
    if count.plain:
        parts.append(f"{count.alarms} of {count.plain} plain runs with a flag")
    return "; ".join(parts) or "nothing to see"


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
