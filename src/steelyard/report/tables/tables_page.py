"""All tables of an experiment in one Markdown file: the conclusion, the paper's tables, comparisons and times."""

from collections.abc import Sequence

from steelyard.errors import UserError
from steelyard.report.data.results import Results
from steelyard.report.data.timings import Timings
from steelyard.report.statistics.findings import Finding, findings_of
from steelyard.report.tables.evidence import comparison_tables
from steelyard.report.tables.paper_tables import LAYOUTS, make_table
from steelyard.report.tables.table import PageTable, PaperTable, as_markdown


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
        parts += [f"# {comparisons.title}", _markdown(comparisons)]
    parts += _sentences(findings)
    return "\n\n".join(parts) + "\n"


def _sentences(findings: Sequence[Finding]) -> list[str]:
    """Return every comparison in a sentence, and what the methods' names mean."""
    parts = []
    methods: dict[str, None] = {}  # a set that keeps its order
    for finding in findings:
        parts += [f"# Comparisons in words, {finding.setting}", _bullets(finding.sentences)]
        methods |= dict.fromkeys(finding.methods)
    if methods:
        parts += ["# Methods", _bullets(list(methods))]
    return parts


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _markdown(table: PageTable) -> str:
    rows = tuple(map(tuple, table.rows))
    groups = ((table.title, rows),)
    notation = PaperTable(name="", caption=table.note, headings=tuple(table.headings), groups=groups)
    return as_markdown(notation).strip()
