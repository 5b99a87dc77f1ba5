"""The paper's tables 1, S1 and S2, of any results."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from steelyard.imaging.runs.method import PAPER, Method
from steelyard.report.data.kinds import METRICS, column_suffixes, is_single
from steelyard.report.data.published import published
from steelyard.report.data.results import Results
from steelyard.report.tables.summary import GAIN_METRIC, PAPER_DOMAINS, Line, summarise

NOTHING = "–"
"""A cell with no number."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which rows and columns a table shows.

    Args:
        name: What it is called, in messages and file names.
        caption: What it shows.
        metrics: In this order, each in every domain.
        single: Whether its rows are the methods that train on one domain, or those that train on all.
        gains: Whether it has GAIN-μ and GAIN-σ, after the first metric.
        decimals: Of every number.
    """

    name: str
    caption: str
    metrics: tuple[str, ...]
    single: bool = False
    gains: bool = True
    decimals: int = 3


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


@dataclass(frozen=True, kw_only=True)
class Table:
    """Cells, ready to be written in any notation.

    Args:
        name: What it is called.
        caption: What it shows.
        headings: One per column.
        groups: A title and its rows, for each setting.
        notes: What a reader must know: missing runs, undefined metrics, where the paper's numbers are from.
    """

    name: str
    caption: str
    headings: tuple[str, ...]
    groups: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]
    notes: tuple[str, ...] = ()


def make_table(results: Results, layout: Layout, *, baseline: str | None = None) -> Table:
    """Return one of the paper's tables, with the paper's numbers beside ours where it has some.

    Args:
        results: All rows.
        layout: Which table.
        baseline: What GAIN-μ and GAIN-σ are over; F50-T50, or `equal`, if not given.
    """
    lines = [line for line in summarise(results, baseline=baseline) if is_single(line.method) == layout.single]
    metrics = [metric for metric in layout.metrics if metric in results.metrics]
    columns = [
        (title, key, any(_has(line, key) for line in lines))
        for title, key in _columns(layout, metrics, results.domains)
    ]
    headings = ["method", "runs"]
    for title, _, paired in columns:
        headings += [title, f"{title} (paper)"] if paired else [title]
    groups = [
        (str(setting), tuple(_row(line, columns, layout.decimals) for line in lines if line.setting == setting))
        for setting in results.settings
    ]
    named = baseline or next(filter(None, map(results.baseline, results.settings)), "a baseline that was not run")
    return Table(
        name=layout.name,
        caption=layout.caption.format(baseline=named),
        headings=tuple(headings),
        groups=tuple((title, rows) for title, rows in groups if rows),
        notes=(*_notes(results, metrics, layout, baseline), *_paper_notes(lines)),
    )


def _row(line: Line, columns: Sequence[tuple[str, str, bool]], decimals: int) -> tuple[str, ...]:
    cells = [line.method, f"{line.runs}/{line.expected}"]
    for _, key, paired in columns:
        cells.append(_cell(line.numbers, key, decimals))
        if paired:
            cells.append(_cell(line.paper.numbers if line.paper else {}, key, decimals))
    return tuple(cells)


def _columns(layout: Layout, metrics: Sequence[str], domains: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield each column's title and the name of its number."""
    for metric in metrics:
        for domain, suffix in column_suffixes(domains).items():
            yield f"{METRICS[metric]}-{suffix}", f"{metric}_{domain}"
        if layout.gains and metric == GAIN_METRIC:
            yield from (("GAIN-μ", "gain_mean"), ("GAIN-σ", "gain_sd"))


def _has(line: Line, key: str) -> bool:
    return line.paper is not None and not math.isnan(line.paper.numbers.get(key, math.nan))


def _cell(numbers: dict[str, float], key: str, decimals: int) -> str:
    value, deviation = (numbers.get(name, math.nan) for name in (key, f"{key}_sd"))
    if math.isnan(value):
        return NOTHING
    text = f"{value:.{decimals}f}"
    if key.startswith("gain_"):
        return text.removeprefix("-") if float(text) == 0 else text
    return f"{text} ± {NOTHING if math.isnan(deviation) else f'{deviation:.{decimals}f}'}"


def _notes(results: Results, metrics: Sequence[str], layout: Layout, baseline: str | None) -> Iterator[str]:
    for setting in results.settings:
        if missing := results.missing_runs(setting):
            yield f"{setting}: {len(missing)} runs are missing: {'; '.join(map(str, missing))}."
        if lacking := results.incomplete_runs(setting):
            yield f"{setting}: {len(lacking)} runs lack test subjects or domains: {'; '.join(map(str, lacking))}."
        if layout.gains and results.baseline(setting, baseline) is None:
            yield f"{setting}: the baseline was not run, so there is no GAIN."
        for metric in metrics:
            if undefined := sum(math.isnan(row.metrics[metric]) for row in results.of(setting)):
                yield f"{setting}: {METRICS[metric]} is not defined in {undefined} rows; its means leave them out."
        run_here = {Method.read(name) for name in results.methods(setting)}
        paper = [method for method in PAPER if method.is_single == layout.single]
        absent = [method.paper_name for method in paper if method not in run_here]
        if results.domains == PAPER_DOMAINS and any(published(setting, name) for name in absent):
            yield f"{setting}: not run here: {', '.join(absent)}."


def _paper_notes(lines: Sequence[Line]) -> Iterator[str]:
    papers = [line.paper for line in lines if line.paper]
    if papers:
        yield "paper: Sicilia et al., ISBI 2021, on other subjects (20) than these."
    if hidden := sorted({f"{row.model} ({row.availability})" for row in papers if not row.printed}):
        yield f"{', '.join(hidden)}: the paper's numbers stand in its source as comments and were not printed."
