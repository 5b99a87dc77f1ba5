"""A table as text, CSV, Markdown or LaTeX; the same table gives the same bytes."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from steelyard.report.tables.paper_tables import Table

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    "±": r"$\pm$",
    "μ": r"$\mu$",
    "σ": r"$\sigma$",
    "−": r"$-$",
    "–": "--",
    "×": r"$\times$",
}


def as_text(table: Table) -> str:
    """Return a table for a terminal, in aligned columns."""
    widths = [max(map(len, column)) for column in zip(*_all_rows(table), strict=True)]

    def aligned(cells: tuple[str, ...]) -> str:
        first, *others = zip(cells, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()

    lines = [table.caption, ""]
    for title, rows in table.groups:
        lines += [title, aligned(table.headings), *map(aligned, rows), ""]
    return "\n".join([*lines, *table.notes]).rstrip() + "\n"


def as_csv(table: Table) -> str:
    """Return the cells as CSV, with the setting as the first column; for full precision see `summary_csv`."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(["setting", *table.headings])
    writer.writerows([title, *row] for title, rows in table.groups for row in rows)
    return written.getvalue()


def as_markdown(table: Table) -> str:
    """Return a table as Markdown, one for each setting."""
    lines = [_markdown(table.caption), ""]
    for title, rows in table.groups:
        lines += [f"**{_markdown(title)}**", "", _piped(table.headings)]
        lines += [_piped(("---", *("---:" for _ in table.headings[1:])), escaped=True), *map(_piped, rows), ""]
    lines += [f"- {_markdown(note)}" for note in table.notes]
    return "\n".join(lines).rstrip() + "\n"


def as_latex(table: Table) -> str:
    r"""Return a table as LaTeX that needs no package; notes stand below it as plain paragraphs."""
    columns = f"l{'c' * (len(table.headings) - 1)}"
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{escape_latex(table.caption)}}}"]
    lines += [rf"\label{{tab:{table.name}}}", rf"\begin{{tabular}}{{{columns}}}", r"\hline"]
    for title, rows in table.groups:
        lines.append(rf"\multicolumn{{{len(table.headings)}}}{{l}}{{\textbf{{{escape_latex(title)}}}}} \\")
        lines += [_ampersands(table.headings), r"\hline", *map(_ampersands, rows), r"\hline"]
    lines += [r"\end{tabular}", *(rf"\par {escape_latex(note)}" for note in table.notes), r"\end{table}"]
    return "\n".join(lines) + "\n"


NOTATIONS: Mapping[str, Callable[[Table], str]] = MappingProxyType(
    {"txt": as_text, "csv": as_csv, "md": as_markdown, "tex": as_latex}
)
"""Every notation by the suffix of its files."""


def escape_latex(text: str) -> str:
    r"""Return text that LaTeX prints as it is.

    >>> escape_latex("my_method 50 %")
    'my\\_method 50 \\%'
    """
    return "".join(_LATEX.get(character, character) for character in text)


def _all_rows(table: Table) -> Iterator[tuple[str, ...]]:
    yield table.headings
    for _, rows in table.groups:
        yield from rows


def _markdown(text: str) -> str:
    for character in "\\|*_`<>[]":
        text = text.replace(character, f"\\{character}")
    return text


def _piped(cells: tuple[str, ...], *, escaped: bool = False) -> str:
    return f"| {' | '.join(cells if escaped else map(_markdown, cells))} |"


def _ampersands(cells: tuple[str, ...]) -> str:
    return " & ".join(_in_math(cell) for cell in cells) + r" \\"


def _in_math(cell: str) -> str:
    """Escape a cell; a number's minus is a minus, not a hyphen."""
    return f"$-${cell[1:]}" if cell.startswith("-") and cell[1:2].isdigit() else escape_latex(cell)
