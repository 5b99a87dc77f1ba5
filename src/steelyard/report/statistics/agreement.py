"""What cheaper votes lose: agreement of votes, of the curves of λ, and differences in the scores."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from steelyard.errors import UserError
from steelyard.imaging.runs.method import Method
from steelyard.report.data.kinds import method_order
from steelyard.report.data.results import RESULTS, RUNS, Results, RunKey, Setting, read_results
from steelyard.report.data.runs import RunRecord, read_runs
from steelyard.report.statistics.bootstrap import Design, Estimate, estimate_mean
from steelyard.report.statistics.comparisons import Comparison, Settings, compare_with_baseline
from steelyard.report.statistics.vote_agreement import Trace, VoteAgreement, correlation, read_trace, vote_agreement
from steelyard.report.tables.cost import timings_of

VOTES = "votes"
"""The folder of an experiment that keeps the votes of retraced runs."""

Row = dict[str, str | int | float]
_NOTHING = Estimate(value=math.nan, low=math.nan, high=math.nan, p=math.nan)


@dataclass(frozen=True, kw_only=True)
class Variants:
    """The runs of one method that votes exactly, and of cheaper variants of it.

    Args:
        out: The experiment's folder.
        exact: The method that votes exactly on every step.
        cheaper: The variants.
        runs: By setting and run.
        results: How they did.
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
        return {
            (run.fold, run.repeat): record
            for (where, run), record in sorted(self.runs.items())
            if (where, run.method) == (setting, method)
        }

    def asked(self) -> tuple[str, ...]:
        """Return the methods whose probes must be asked at every step; the exact one's is anyway."""
        asked = dict.fromkeys(Method.parse(name).with_every_vote.name for name in self.cheaper)
        return tuple(name for name in asked if name != self.exact)

    def votes_of(self, record: RunRecord) -> Path:
        """Return the file for the votes of a run that is retraced."""
        block = record.path.parents[1].name, record.path.parent.name
        return self.out.joinpath(VOTES, *block, f"{record.path.name}.csv")


def read_variants(out: Path, exact: str | None = None) -> Variants:
    """Read an experiment that has one method with exact votes and with cheaper ones.

    Args:
        out: The experiment's folder.
        exact: The method with exact votes; may be left out if only one has cheaper variants.

    Raises:
        UserError: There is no such method, or there are several, or the runs have no scores yet.
    """
    runs = {_key(record): record for record in read_runs([out / RUNS])}
    methods = sorted({run.method for _, run in runs}, key=method_order)
    if exact is None:
        with_variants = [one for one in methods if any(other.startswith(f"{one}+") for other in methods)]
        if len(with_variants) != 1:
            told = f"several do ({', '.join(with_variants)}); say --exact" if with_variants else "none does"
            raise UserError(f"{out}: one method must have cheaper variants, such as greedy-25+first-order; {told}.")
        exact = with_variants[0]
    exact = Method.parse(exact).name
    cheaper = tuple(one for one in methods if one != exact and one.partition("+")[0] == exact.partition("+")[0])
    if exact not in methods or not cheaper:
        raise UserError(f"{out}: there must be runs of {exact} and of a cheaper variant; it has {', '.join(methods)}.")
    if Method.parse(exact).first_order or (Method.parse(exact).every or 1) > 1:
        raise UserError(f"method {exact}: does not vote exactly on every step.")
    whole = read_results(out / RESULTS)
    rows = tuple(row for row in whole.rows if row.run.method in (exact, *cheaper))
    return Variants(out=out, exact=exact, cheaper=cheaper, runs=runs, results=Results(rows, whole.source))


def agreement_rows(variants: Variants) -> list[Row]:
    """Return a row per setting and cheaper variant: what it loses, with 95 % confidence intervals.

    Votes are compared in the runs that were retraced, curves and scores in all pairs of runs.

    Raises:
        UserError: A table is damaged.
    """
    timings = timings_of(variants.out)
    found = compare_with_baseline(variants.results, Settings(baseline=variants.exact))
    scores = {(one.setting, one.method): one for one in found}
    rows = []
    for setting in variants.settings:
        traces = _traces(variants, setting)
        for method in variants.cheaper:
            if variants.of(setting, method):
                row: Row = {"model": setting.model, "availability": setting.availability}
                row |= {"exact": variants.exact, "method": method}
                row |= _votes(traces, variants.exact, method)
                row |= _curves(variants, setting, method)
                row |= _scores(scores.get((setting, method)), variants.results.domains)
                rows.append(row | {"time_ratio": timings.ratio(setting, method, variants.exact)})
    return rows


def over_runs(values: Sequence[float]) -> Estimate:
    """Return the mean over runs, or pairs of runs, and its bootstrap interval; what is not defined is left out.

    >>> over_runs([0.5, 0.7]).value
    0.6
    """
    if not values:
        return _NOTHING
    each = np.arange(len(values))
    return estimate_mean(np.array(values)[:, None], Design(fold_of_unit=each, subject_of_unit=each))


def curve_agreement(one: RunRecord, other: RunRecord) -> tuple[float, float]:
    """Return correlation and mean absolute difference of two runs' weights over the steps that both took.

    Means over the domains but the last, whose weight follows from the others'.
    """
    pairs = [(one.weights(name), other.weights(name)) for name in one.config.trained[:-1]]
    cut = [[np.array(curve[: min(map(len, pair))], dtype=float) for curve in pair] for pair in pairs]
    if not all(len(mine) for mine, _ in cut):
        return math.nan, math.nan
    apart = fmean(float(np.abs(mine - yours).mean()) for mine, yours in cut)
    return fmean(correlation(mine, yours) for mine, yours in cut), apart


def _key(record: RunRecord) -> tuple[Setting, RunKey]:
    """Return what the tables call a run of an experiment, from where it lies."""
    fold = re.fullmatch(r"fold-(\d+)_repeat-\d+", record.path.name)
    if fold is None:
        raise UserError(f"{record.path}: is no run of an experiment.")
    setting = Setting(record.config.model, record.path.parents[1].name.rpartition("-")[2])
    return setting, RunKey(record.method, int(fold[1]), record.config.seed)


def _traces(variants: Variants, setting: Setting) -> list[tuple[Trace, bool]]:
    """Return the votes of every retraced run, and whether it came to the bits that the run itself wrote down."""
    traces = []
    for record in variants.of(setting, variants.exact).values():
        if (path := variants.votes_of(record)).exists():
            trace = read_trace(path)
            exact = [cast.hypothetical for cast in trace.casts.get(variants.exact, ())]
            traces.append((trace, exact == record.hypothetical()[: len(exact)]))
    return traces


def _votes(traces: Sequence[tuple[Trace, bool]], exact: str, method: str) -> Row:
    asked = Method.parse(method).with_every_vote.name
    there = [(trace, same) for trace, same in traces if {exact, asked} <= set(trace.casts)]
    found: list[VoteAgreement] = [vote_agreement(trace, exact, method) for trace, _ in there]
    row: Row = {"traced": len(found), "to_the_bit": sum(same for _, same in there)}
    row["steps"] = sum(one.steps for one in found)
    for name in ("share", "kappa", "held", "correlation"):
        row |= _columns(name, over_runs([getattr(one, name) for one in found]))
    return row


def _curves(variants: Variants, setting: Setting, method: str) -> Row:
    exact, cheaper = variants.of(setting, variants.exact), variants.of(setting, method)
    found = [curve_agreement(exact[place], cheaper[place]) for place in exact if place in cheaper]
    row: Row = {"pairs": len(found)}
    row |= _columns("curve_correlation", over_runs([together for together, _ in found]))
    return row | _columns("curve_difference", over_runs([apart for _, apart in found]))


def _scores(found: Comparison | None, domains: Sequence[str]) -> Row:
    row: Row = {"subjects": found.subjects if found else 0}
    for domain in domains:
        row |= _columns(f"dsc_{domain}", found.domains.get(domain, _NOTHING) if found else _NOTHING)
    return row


def _columns(name: str, found: Estimate) -> Row:
    return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
