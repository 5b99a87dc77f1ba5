"""What cheaper votes lose: agreement of votes and of the curves of weights, and differences in the scores."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from steelyard.errors import UserError, one_line
from steelyard.imaging.runs.experiment_folder import RESULTS, RUNS, VOTES
from steelyard.report.data.names import canonical_method, column_suffixes, sorted_methods
from steelyard.report.data.results import Results, RunKey, Setting, read_results, split_key
from steelyard.report.data.runs import RunRecord, read_runs
from steelyard.report.data.timings import timings_of
from steelyard.report.statistics.bootstrap import UNKNOWN, Estimate
from steelyard.report.statistics.comparisons import Comparison, ComparisonSettings, compare_with_baseline
from steelyard.report.statistics.vote_agreement import (
    Trace,
    curve_agreement,
    every_step_method,
    has_variants,
    mean_over_runs,
    read_trace,
    variants_of,
    vote_agreement,
    votes_exactly,
)

Row = dict[str, str | int | float]

_COLUMNS = {
    "share": ("same vote", ".3f"),
    "kappa": ("κ", ".3f"),
    "held": ("same vote, held over", ".3f"),
    "correlation": ("r of H differences", ".3f"),
    "curve_correlation": ("r of λ", ".3f"),
    "curve_difference": ("mean abs. Δλ", ".3f"),
}
"""The name of a number, its title and its format."""

_COUNTS = {
    "traced": "retraced runs",
    "to_the_bit": "of them bit-identical",
    "steps": "steps with both votes",
    "pairs": "pairs of runs",
    "subjects": "test subjects",
}


@dataclass(frozen=True, kw_only=True)
class Variants:
    """The runs of one method that votes exactly, and of cheaper variants of it.

    Args:
        out: The experiment's folder.
        exact: The method that votes exactly on every step.
        cheaper: The variants.
        runs: By setting and run.
        results: Their scores.
    """

    out: Path
    exact: str
    cheaper: tuple[str, ...]
    runs: Mapping[tuple[Setting, RunKey], RunRecord]
    results: Results

    @property
    def settings(self) -> list[Setting]:
        """The settings that have a run of exact votes."""
        return sorted({setting for setting, run in self.runs if run.method == self.exact})

    def of(self, setting: Setting, method: str) -> dict[tuple[int, int], RunRecord]:
        """Return a method's runs in a setting, by fold and repeat."""
        runs = {}
        for (run_setting, run), record in sorted(self.runs.items(), key=lambda item: item[0]):
            if run_setting == setting and run.method == method:
                runs[run.fold, run.repeat] = record
        return runs

    def probed_methods(self) -> tuple[str, ...]:
        """Return the methods whose probes are evaluated at every step of a retraced run, beside the exact one's."""
        methods = dict.fromkeys(map(every_step_method, self.cheaper))
        return tuple(name for name in methods if name != self.exact)

    def votes_of(self, record: RunRecord) -> Path:
        """Return the file for the votes of a run that is retraced."""
        block, method = record.path.parents[1].name, record.path.parent.name
        return self.out / VOTES / block / method / f"{record.path.name}.csv"


def read_variants(out: Path, exact: str | None = None) -> Variants:
    """Read an experiment that has one method with exact votes and with cheaper ones.

    Args:
        out: The experiment's folder.
        exact: The method with exact votes; may be left out if only one has cheaper variants.

    Raises:
        UserError: There is no such method, or there are several, or the runs have no scores yet.
    """
    runs = _runs_by_key(out)
    methods = sorted_methods(run.method for _, run in runs)
    if exact is None:
        exact = _exact_method(out, methods)
    exact = canonical_method(exact)
    cheaper = variants_of(exact, methods)
    if exact not in methods or not cheaper:
        raise UserError(f"{out}: there must be runs of {exact} and of a cheaper variant; it has {', '.join(methods)}.")
    if not votes_exactly(exact):
        raise UserError(f"method {exact}: does not vote exactly on every step.")
    results = read_results(out / RESULTS)
    rows = tuple(row for row in results.rows if row.run.method in (exact, *cheaper))
    return Variants(out=out, exact=exact, cheaper=tuple(cheaper), runs=runs, results=Results(rows, results.source))


def agreement_rows(variants: Variants) -> list[Row]:
    """Return a row per setting and cheaper variant: what it loses, with 95 % confidence intervals.

    Votes are compared in the runs that were retraced, curves and scores in all pairs of runs.

    Raises:
        UserError: A table is damaged.
    """
    timings = timings_of(variants.out)
    comparisons = {}
    for comparison in compare_with_baseline(variants.results, ComparisonSettings(baseline=variants.exact)):
        comparisons[comparison.setting, comparison.method] = comparison
    rows = []
    for setting in variants.settings:
        traces = _traces(variants, setting)
        for method in variants.cheaper:
            if not variants.of(setting, method):
                continue
            row: Row = {"model": setting.model, "availability": setting.availability}
            row |= {"exact": variants.exact, "method": method}
            row |= _vote_columns(traces, variants.exact, method)
            row |= _curve_columns(variants, setting, method)
            row |= _score_columns(comparisons.get((setting, method)), variants.results.domains)
            rows.append(row | {"time_ratio": timings.ratio(setting, method, variants.exact)})
    return rows


def as_json(rows: Sequence[Row]) -> list[dict[str, str | int | float | None]]:
    """Return the rows as JSON holds them: what is not known is null."""
    json_rows = []
    for row in rows:
        json_row: dict[str, str | int | float | None] = dict(row)
        for name in row:
            if _is_unknown(row[name]):
                json_row[name] = None
        json_rows.append(json_row)
    return json_rows


def as_markdown(rows: Sequence[Mapping[str, object]]) -> str:
    """Return a table per setting, from rows or from what JSON held of them."""
    groups: dict[tuple[object, object], list[Mapping[str, object]]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["availability"]), []).append(row)
    return "\n".join(map(_markdown_table, groups.values()))


def _exact_method(out: Path, methods: Sequence[str]) -> str:
    """Return the one method that has cheaper variants.

    Raises:
        UserError: None has, or several have.
    """
    candidates = [name for name in methods if has_variants(name, methods)]
    fault = f"{out}: one method must have cheaper variants, such as conservative-25+first-order"
    if not candidates:
        raise UserError(f"{fault}; none does.")
    if len(candidates) > 1:
        raise UserError(f"{fault}; several do ({', '.join(candidates)}); say --exact.")
    return candidates[0]


def _runs_by_key(out: Path) -> dict[tuple[Setting, RunKey], RunRecord]:
    runs = {}
    for record in read_runs([out / RUNS]):
        if record.key is None:
            raise UserError(f"{record.path}: is not a run of an experiment.")
        runs[split_key(record.key)] = record
    return runs


def _traces(variants: Variants, setting: Setting) -> list[tuple[Trace, bool]]:
    """Return the votes of every retraced run, and whether its losses are bit-identical to those of the run itself."""
    traces = []
    for record in variants.of(setting, variants.exact).values():
        path = variants.votes_of(record)
        if path.exists():
            trace = read_trace(path)
            losses = [step.hypothetical_losses for step in trace.votes.get(variants.exact, ())]
            traces.append((trace, losses == record.hypothetical_losses()[: len(losses)]))
    return traces


def _vote_columns(traces: Sequence[tuple[Trace, bool]], exact: str, method: str) -> Row:
    agreements = []
    identical_runs, steps = 0, 0
    for trace, identical in traces:
        if exact in trace.votes and every_step_method(method) in trace.votes:
            agreement = vote_agreement(trace, exact, method)
            agreements.append(agreement)
            identical_runs += identical
            steps += agreement.steps
    row: Row = {"traced": len(agreements), "to_the_bit": identical_runs, "steps": steps}
    row |= _estimate_columns("share", mean_over_runs([agreement.share for agreement in agreements]))
    row |= _estimate_columns("kappa", mean_over_runs([agreement.kappa for agreement in agreements]))
    row |= _estimate_columns("held", mean_over_runs([agreement.share_between for agreement in agreements]))
    row |= _estimate_columns("correlation", mean_over_runs([agreement.correlation for agreement in agreements]))
    return row


def _curve_columns(variants: Variants, setting: Setting, method: str) -> Row:
    exact, cheaper = variants.of(setting, variants.exact), variants.of(setting, method)
    correlations, differences = [], []
    for fold_and_repeat in exact:
        if fold_and_repeat in cheaper:
            correlation, difference = curve_agreement(exact[fold_and_repeat], cheaper[fold_and_repeat])
            correlations.append(correlation)
            differences.append(difference)
    row: Row = {"pairs": len(correlations)}
    row |= _estimate_columns("curve_correlation", mean_over_runs(correlations))
    return row | _estimate_columns("curve_difference", mean_over_runs(differences))


def _score_columns(comparison: Comparison | None, domains: Sequence[str]) -> Row:
    row: Row = {"subjects": 0}
    estimates: Mapping[str, Estimate] = {}
    if comparison is not None:
        row = {"subjects": comparison.subjects}
        estimates = comparison.domains
    for domain in domains:
        row |= _estimate_columns(f"dsc_{domain}", estimates.get(domain, UNKNOWN))
    return row


def _estimate_columns(name: str, estimate: Estimate) -> Row:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _markdown_table(rows: Sequence[Mapping[str, object]]) -> str:
    first = rows[0]
    columns = dict(_COLUMNS)
    for domain, suffix in column_suffixes(_scored_domains(first)).items():
        columns[f"dsc_{domain}"] = (f"ΔDSC-{suffix}", "+.3f")
    titles = ["method"]
    for title, _ in columns.values():
        titles.append(title)
    titles.append("time of a step")
    lines = [
        f"### {first['model']} ({first['availability']}), against {first['exact']}",
        "",
        f"| {' | '.join(titles)} |",
        f"| --- |{' ---: |' * (len(titles) - 1)}",
    ]
    for row in rows:
        cells = [_cell(row, name, form) for name, (_, form) in columns.items()]
        time = "–"
        if not _is_unknown(row["time_ratio"]):
            time = f"{row['time_ratio']:.2f}×"
        lines.append(f"| {row['method']} | {' | '.join(cells)} | {time} |")
    return "\n".join([*map(one_line, lines), "", _basis(rows), ""])


def _scored_domains(row: Mapping[str, object]) -> list[str]:
    domains = []
    for name in row:
        if name.startswith("dsc_") and not name.endswith(("_low", "_high")):
            domains.append(name.removeprefix("dsc_"))
    return domains


def _cell(row: Mapping[str, object], name: str, form: str) -> str:
    """Return a number with its interval, if it has one."""
    if _is_unknown(row[name]):
        return "–"
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    if _is_unknown(low):
        return f"{row[name]:{form}}"
    return f"{row[name]:{form}} [{low:{form}}, {high:{form}}]"


def _basis(rows: Sequence[Mapping[str, object]]) -> str:
    """Return how many runs, steps and subjects the numbers rest on."""
    parts = []
    for name, counted in _COUNTS.items():
        numbers = [int(str(row[name])) for row in rows]
        count = str(min(numbers))
        if max(numbers) > min(numbers):
            count = f"{min(numbers)}–{max(numbers)}"
        parts.append(f"{count} {counted}")
    return f"{', '.join(parts)}; 95 % confidence intervals."


def _is_unknown(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
