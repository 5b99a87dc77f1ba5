"""The paper's tables 1, S1 and S2, of any results."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from steelyard.imaging.runs.method import PAPER, Method
from steelyard.report.data.metrics import METRICS
from steelyard.report.data.names import canonical_method, column_suffixes
from steelyard.report.data.results import Results, RunKey, Setting
from steelyard.report.tables.summary import GAIN_METRIC, PAPER_DOMAINS, Line, published, summarise
from steelyard.report.tables.table import PaperTable

NO_NUMBER = "–"
"""A cell with no number."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which rows and columns a table shows.

    Args:
        name: Of the table, in messages and file names.
        caption: What it shows.
        metrics: In this order, each in every domain.
        single: Whether its rows are the methods that train on one domain, or those that train on all.
        gains: Whether it has GAIN-μ and GAIN-σ, after the first metric.
        decimals: Of every number.
        paper_names: Whether methods have the paper's names (`F50-T50`), if domains are the paper's, or the readable
            ones (`equal`).
    """

    name: str
    caption: str
    metrics: tuple[str, ...]
    single: bool = False
    gains: bool = True
    decimals: int = 3
    paper_names: bool = True

    def method_name(self, method: str) -> str:
        """Return a method's name in this table."""
        if self.paper_names:
            return Method.parse_or_unknown(method).paper_name
        return method

    def holds(self, method: str) -> bool:
        """Whether a method belongs in this table."""
        return Method.parse_or_unknown(method).is_single == self.single


@dataclass(frozen=True)
class _Column:
    """A column of numbers: its title, the number's name, and whether the paper's stands beside it."""

    title: str
    key: str
    paired: bool


_GAINS = (
    "GAIN-μ is the sum over domains of the increase in mean DSC over {baseline}, GAIN-σ that of the decrease in s.d."
)
_SPREAD = "s.d. over the repeats of a fold, averaged over folds."
TABLE_1 = Layout(name="table-1", caption=f"Mean DSC and {_SPREAD} {_GAINS}", metrics=("dsc",))
TABLE_S1 = Layout(
    name="table-s1",
    caption=f"Training on a single domain: means and {_SPREAD}",
    metrics=("dsc", "auc"),
    single=True,
    gains=False,
    decimals=4,
)
TABLE_S2 = Layout(name="table-s2", caption=f"Means and {_SPREAD} {_GAINS}", metrics=("dsc", "auc"))
LAYOUTS = (TABLE_1, TABLE_S1, TABLE_S2)
"""The paper's tables."""


def make_table(results: Results, layout: Layout, *, baseline: str | None = None) -> PaperTable:
    """Return one of the paper's tables, with the paper's numbers beside ours where it has some.

    Args:
        results: All rows.
        layout: Which table.
        baseline: The method that GAIN-μ and GAIN-σ are over; `equal` by default.
    """
    if results.domains != PAPER_DOMAINS:
        layout = replace(layout, paper_names=False)  # F50-T50 names FLAIR and T1
    lines = [line for line in summarise(results, baseline=baseline) if layout.holds(line.method)]
    columns = _columns(results, layout, lines)
    headings = ["method", "runs"]
    for column in columns:
        headings.append(column.title)
        if column.paired:
            headings.append(f"{column.title} (paper)")
    groups = []
    for setting in results.settings:
        rows = tuple(_row(line, columns, layout) for line in lines if line.setting == setting)
        if rows:
            groups.append((str(setting), rows))
    return PaperTable(
        name=layout.name,
        caption=layout.caption.format(baseline=_baseline_name(results, layout, baseline)),
        headings=tuple(headings),
        groups=tuple(groups),
        notes=(*_notes(results, layout, baseline), *_paper_notes(lines), *_method_notes(lines, layout)),
    )


def _baseline_name(results: Results, layout: Layout, baseline: str | None) -> str:
    if baseline:
        return layout.method_name(canonical_method(baseline))
    for setting in results.settings:
        name = results.baseline(setting)
        if name is not None:
            return layout.method_name(name)
    return "a baseline that was not run"


def _columns(results: Results, layout: Layout, lines: Sequence[Line]) -> list[_Column]:
    titles_and_keys = []
    for metric in _metrics(results, layout):
        for domain, suffix in column_suffixes(results.domains).items():
            titles_and_keys.append((f"{METRICS[metric]}-{suffix}", f"{metric}_{domain}"))
        if layout.gains and metric == GAIN_METRIC:
            titles_and_keys += [("GAIN-μ", "gain_mean"), ("GAIN-σ", "gain_sd")]
    columns = []
    for title, key in titles_and_keys:
        numbers = [line.paper_numbers.get(key, math.nan) for line in lines]
        columns.append(_Column(title, key, paired=not all(map(math.isnan, numbers))))
    return columns


def _metrics(results: Results, layout: Layout) -> list[str]:
    return [metric for metric in layout.metrics if metric in results.metrics]


def _row(line: Line, columns: Sequence[_Column], layout: Layout) -> tuple[str, ...]:
    cells = [layout.method_name(line.method), f"{line.runs}/{line.expected}"]
    for column in columns:
        cells.append(_cell(line.numbers, column.key, layout.decimals))
        if column.paired:
            cells.append(_cell(line.paper_numbers, column.key, layout.decimals))
    return tuple(cells)


def _cell(numbers: dict[str, float], key: str, decimals: int) -> str:
    value = numbers.get(key, math.nan)
    if math.isnan(value):
        return NO_NUMBER
    text = f"{value:.{decimals}f}"
    if key.startswith("gain_"):
        if float(text) == 0:
            return text.removeprefix("-")
        return text
    deviation = numbers.get(f"{key}_sd", math.nan)
    if math.isnan(deviation):
        return f"{text} ± {NO_NUMBER}"
    return f"{text} ± {deviation:.{decimals}f}"


def _notes(results: Results, layout: Layout, baseline: str | None) -> Iterator[str]:
    """Yield what a reader must know of each setting."""
    for setting in results.settings:
        if missing := results.missing_runs(setting):
            yield f"{setting}: {len(missing)} runs are missing: {_listed(missing, layout)}."
        if incomplete := results.incomplete_runs(setting):
            listed = _listed(incomplete, layout)
            yield f"{setting}: {len(incomplete)} runs lack test subjects or domains: {listed}."
        if layout.gains and results.baseline(setting, baseline) is None:
            yield f"{setting}: the baseline was not run, so there is no GAIN."
        yield from _undefined_notes(results, layout, setting)
        if absent := _absent_methods(results, layout, setting):
            yield f"{setting}: not run here: {', '.join(map(layout.method_name, absent))}."


def _listed(runs: Sequence[RunKey], layout: Layout) -> str:
    return "; ".join(f"{layout.method_name(run.method)}, fold {run.fold}, repeat {run.repeat}" for run in runs)


def _undefined_notes(results: Results, layout: Layout, setting: Setting) -> Iterator[str]:
    for metric in _metrics(results, layout):
        undefined = sum(math.isnan(row.metrics[metric]) for row in results.of(setting))
        if undefined:
            yield f"{setting}: {METRICS[metric]} is not defined in {undefined} rows; its means leave them out."


def _absent_methods(results: Results, layout: Layout, setting: Setting) -> list[str]:
    """Return the paper's methods that were not run, if the paper has a number of any of them in this setting."""
    if results.domains != PAPER_DOMAINS:
        return []
    methods = results.methods(setting)
    absent = []
    for method in PAPER:
        if layout.holds(method.name) and method.name not in methods:
            absent.append(method.name)
    if any(published(setting, name) for name in absent):
        return absent
    return []


def _paper_notes(lines: Sequence[Line]) -> Iterator[str]:
    rows = [line.paper for line in lines if line.paper]
    if rows:
        yield "paper: Sicilia et al., ISBI 2021, on other subjects (20) than these."
    unprinted = set()
    for row in rows:
        if not row.printed:
            unprinted.add(f"{row.model} ({row.availability})")
    if unprinted:
        names = ", ".join(sorted(unprinted))
        yield f"{names}: the paper's numbers stand in its source as comments and were not printed."


def _method_notes(lines: Sequence[Line], layout: Layout) -> Iterator[str]:
    """Yield one note that explains the name of every method in the table."""
    parts = []
    for name in dict.fromkeys(line.method for line in lines):
        description = Method.parse_or_unknown(name).description
        shown_name = layout.method_name(name)
        if description and shown_name == name:
            parts.append(f"{name}: {description}")
        elif description:
            parts.append(f"{shown_name} is {name}: {description}")
    if parts:
        yield f"Methods. {'. '.join(parts)}."
