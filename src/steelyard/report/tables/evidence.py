"""Results, comparisons and findings: as files, and as tables of a page."""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from steelyard.errors import UserError
from steelyard.files.atomic import remove, write_bytes
from steelyard.report.data.metrics import METRICS
from steelyard.report.data.results import Results
from steelyard.report.data.timings import Timings
from steelyard.report.statistics.bootstrap import UNKNOWN, Estimate
from steelyard.report.statistics.comparisons import Comparison, ComparisonSettings
from steelyard.report.statistics.findings import SettingFinding, findings_of, probability, with_interval
from steelyard.report.tables.paper_tables import LAYOUTS, NO_NUMBER, TABLE_S1, TABLE_S2, make_table
from steelyard.report.tables.summary import summarise, summary_csv
from steelyard.report.tables.table import NOTATIONS, PageTable, PaperTable, as_markdown

_COMPARISONS, _FINDINGS = "comparisons.csv", "verdict.txt"
_NOTE = (
    "Paired differences, summed over domains, with 95 % intervals over subjects and repeats; p: signed-rank or "
    "bootstrap, the larger, after Holm's correction. GAIN-σ: decrease in spread over repeats, p of a permutation test, "
    "corrected. A step's time is relative to that of the method it is compared with."
)


def write_evidence(results: Results, folder: Path, *, settings: ComparisonSettings | None = None) -> list[Path]:
    """Write what results show; the same results give the same bytes.

    Args:
        results: All rows.
        folder: Where to write.
        settings: What is compared, and how.

    Returns:
        The files of `write_tables` and `write_findings`.

    Raises:
        UserError: There is no baseline to compare with (the tables are then written), or the folder cannot be written.
    """
    settings = settings or ComparisonSettings()
    tables = write_tables(results, folder, baseline=settings.baseline)
    findings = write_findings(findings_of(results, settings), folder)
    return sorted([*tables, *findings])


def write_tables(results: Results, folder: Path, *, baseline: str | None = None) -> list[Path]:
    """Write `table-1`, `table-s1` and `table-s2` as .txt, .csv, .md and .tex, and `summary.csv` with their numbers.

    Tables without rows are left out. Without a baseline they lack the gains alone.
    """
    texts = {"summary.csv": summary_csv(summarise(results, baseline=baseline))}
    for layout in LAYOUTS:
        table = make_table(results, layout, baseline=baseline)
        if table.groups:
            for suffix, write in NOTATIONS.items():
                texts[f"{table.name}.{suffix}"] = write(table)
    return _write(folder, texts)


def write_findings(findings: Sequence[SettingFinding], folder: Path) -> list[Path]:
    """Write `comparisons.csv` and `verdict.txt`; without any finding, remove what an earlier call has written."""
    if not findings:
        remove(folder / _COMPARISONS)
        remove(folder / _FINDINGS)
        return []
    comparisons: list[Comparison] = []
    for finding in findings:
        comparisons += finding.comparisons
    return _write(folder, {_COMPARISONS: comparisons_csv(comparisons), _FINDINGS: findings_text(findings)})


def _write(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    paths = []
    for name, text in sorted(texts.items()):
        write_bytes(folder / name, text.encode())
        paths.append(folder / name)
    return paths


def findings_text(findings: Sequence[SettingFinding]) -> str:
    """Return the answers, each followed by its comparisons, and what the methods' names mean."""
    paragraphs = []
    for finding in findings:
        paragraphs.append("\n- ".join([finding.overall, *finding.sentences]))
    methods = _method_lines(findings)
    if methods:
        paragraphs.append("\n- ".join(["Methods:", *methods]))
    return "\n\n".join(paragraphs) + "\n"


def comparisons_csv(comparisons: Sequence[Comparison]) -> str:
    """Return the numbers of comparisons as CSV, to six significant digits; what is not known is empty."""
    if not comparisons:
        return ""
    domains: dict[str, None] = {}  # a set that keeps its order
    for comparison in comparisons:
        domains |= dict.fromkeys(comparison.domains)
    rows = [_csv_row(comparison, domains) for comparison in comparisons]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _csv_row(comparison: Comparison, domains: Mapping[str, None]) -> dict[str, str]:
    row: dict[str, object] = {
        "model": comparison.setting.model,
        "availability": comparison.setting.availability,
        "metric": comparison.metric,
        "method": comparison.method,
        "against": comparison.against,
        "subjects": comparison.subjects,
        "folds": comparison.folds,
        "pairs": comparison.pairs,
    }
    row |= _estimate_columns("total", comparison.total)
    for domain in domains:
        row |= _estimate_columns(domain, comparison.domains.get(domain, UNKNOWN))
    row |= {
        "signed_rank_p": comparison.ranks.p,
        "p": comparison.p,
        "family": comparison.family,
        "corrected_p": comparison.corrected,
        "rank_biserial": comparison.ranks.rank_biserial,
        "dz": comparison.dz,
        "outcome": comparison.outcome,
    }
    row |= _estimate_columns("gain_sd", comparison.spread or UNKNOWN)
    row |= {"gain_sd_corrected_p": comparison.spread_corrected, "gain_sd_outcome": comparison.spread_outcome}
    return {name: _csv_cell(value) for name, value in row.items()}


def _estimate_columns(name: str, estimate: Estimate) -> dict[str, object]:
    return {
        name: estimate.value,
        f"{name}_low": estimate.low,
        f"{name}_high": estimate.high,
        f"{name}_p": estimate.p,
    }


def _csv_cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    if math.isnan(value):
        return ""
    return f"{value:.6g}"


def tables_page(results: Results, timings: Timings) -> str:
    """Return all tables as Markdown.

    Args:
        results: All rows.
        timings: How long steps took; the last column of the comparisons follows from them, everything else from the
            results alone.
    """
    try:
        findings = findings_of(results)
    except UserError as error:
        fault = str(error).removeprefix(f"{results.source}: ")  # the page is the same wherever the folder lies
        findings, conclusion = (), [f"Methods are not compared: {fault}"]
    else:
        conclusion = [finding.overall for finding in findings]
    parts = ["# Conclusion", *conclusion]
    for layout in LAYOUTS:
        table = make_table(results, layout)
        if table.groups:
            parts += [f"# Table {table.name.removeprefix('table-').upper()}", as_markdown(table).strip()]
    for comparisons in comparison_tables(findings, timings):
        parts += [f"# {comparisons.title}", _page_table_markdown(comparisons)]
    parts += _sentences(findings)
    return "\n\n".join(parts) + "\n"


def result_tables(results: Results) -> Iterator[PageTable]:
    """Yield the paper's tables with readable names, one for each setting; table S2 has all columns of table 1."""
    for title, layout in (("Every method", TABLE_S2), ("Training on one domain", TABLE_S1)):
        table = make_table(results, replace(layout, paper_names=False))
        for setting, rows in table.groups:
            # A note on one setting begins with its name.
            other_settings = tuple(f"{name}:" for name, _ in table.groups if name != setting)
            notes = [note for note in table.notes if not note.startswith(other_settings)]
            yield PageTable(
                title=f"{title}, {setting}",
                headings=table.headings,
                rows=rows,
                note=" ".join((table.caption, *notes)),
            )


def comparison_tables(findings: Sequence[SettingFinding], timings: Timings) -> Iterator[PageTable]:
    """Yield what each setting's methods gain, with intervals and tests, and what a step of them takes."""
    for finding in findings:
        if not finding.comparisons:
            continue
        first = finding.comparisons[0]
        metric = METRICS[first.metric]
        by_domain = [f"{metric}, {name}" for name in first.domains]
        yield PageTable(
            title=f"Gain and cost, {finding.setting}",
            headings=(
                *("method", "against", f"{metric}, all domains", *by_domain),
                *("subjects", "runs", "p", "dz", "outcome", "GAIN-σ", "p of GAIN-σ", "time of a step"),
            ),
            rows=[_comparison_row(comparison, timings) for comparison in finding.comparisons],
            note=_NOTE,
        )


def _comparison_row(comparison: Comparison, timings: Timings) -> list[str]:
    cells = [comparison.method, comparison.against, with_interval(comparison.total)]
    cells += map(with_interval, comparison.domains.values())
    cells += [str(comparison.subjects), str(comparison.pairs)]
    cells += [_p(comparison.p, comparison.corrected), _number(comparison.dz, "+.2f"), comparison.outcome]
    if comparison.spread is None:
        cells += [NO_NUMBER, NO_NUMBER]
    else:
        cells += [with_interval(comparison.spread), _p(comparison.spread.p, comparison.spread_corrected)]
    ratio = timings.ratio(comparison.setting, comparison.method, comparison.against)
    cells.append(_number(ratio, ".2f", unit=" ×"))
    return cells


def _p(uncorrected: float, corrected: float) -> str:
    if math.isnan(uncorrected):
        return NO_NUMBER
    return probability(corrected).removeprefix("p ").removeprefix("= ")


def _number(value: float, form: str, *, unit: str = "") -> str:
    if math.isnan(value):
        return NO_NUMBER
    return f"{value:{form}}{unit}"


def _sentences(findings: Sequence[SettingFinding]) -> list[str]:
    """Return every comparison in a sentence, and what the methods' names mean."""
    parts = []
    for finding in findings:
        parts += [f"# Comparisons in words, {finding.setting}", _bullets(finding.sentences)]
    methods = _method_lines(findings)
    if methods:
        parts += ["# Methods", _bullets(methods)]
    return parts


def _method_lines(findings: Sequence[SettingFinding]) -> list[str]:
    """Return the explanation of every method that some setting has, each once."""
    lines: dict[str, None] = {}  # a set that keeps its order
    for finding in findings:
        lines |= dict.fromkeys(finding.methods)
    return list(lines)


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _page_table_markdown(table: PageTable) -> str:
    rows = tuple(map(tuple, table.rows))
    groups = ((table.title, rows),)
    notation = PaperTable(name="", caption=table.note, headings=tuple(table.headings), groups=groups)
    return as_markdown(notation).strip()
