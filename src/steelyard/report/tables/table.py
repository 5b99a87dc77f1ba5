"""Tables for a page, and tables as text, CSV, Markdown or LaTeX; the same table gives the same bytes."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

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


@dataclass(frozen=True, kw_only=True)
class PageTable:
    """A table of a page, which can be sorted by any column.

    Args:
        title: Above it.
        headings: Of its columns.
        rows: Its cells; a column whose cells start with numbers is sorted by them.
        note: Below it.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table in the form of the paper's, ready to be written in any notation.

    Args:
        name: Of its files.
        caption: What it shows.
        headings: One per column.
        groups: A title and its rows, for each setting.
        notes: What a reader must know: missing runs, undefined metrics, the source of the paper's numbers.
    """

    name: str
    caption: str
    headings: tuple[str, ...]
    groups: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]
    notes: tuple[str, ...] = ()


def as_text(table: PaperTable) -> str:
    """Return a table for a terminal, in aligned columns."""
    widths = [max(map(len, column)) for column in zip(*_all_rows(table), strict=True)]
    lines = [table.caption, ""]
    for title, rows in table.groups:
        lines.append(title)
        for cells in (table.headings, *rows):
            lines.append(_aligned(cells, widths))
        lines.append("")
    return "\n".join([*lines, *table.notes]).rstrip() + "\n"


def as_csv(table: PaperTable) -> str:
    """Return the cells as CSV, with the setting as the first column; for full precision see `summary_csv`."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(["setting", *table.headings])
    for title, rows in table.groups:
        for row in rows:
            writer.writerow([title, *row])
    return written.getvalue()


def as_markdown(table: PaperTable) -> str:
    """Return a table as Markdown, one for each setting."""
    lines = [_markdown(table.caption), ""]
    for title, rows in table.groups:
        numbers = len(table.headings) - 1  # every column but the first is aligned to the right
        lines += [f"**{_markdown(title)}**", "", _piped(table.headings), f"| --- |{' ---: |' * numbers}"]
        lines += [*map(_piped, rows), ""]
    lines += [f"- {_markdown(note)}" for note in table.notes]
    return "\n".join(lines).rstrip() + "\n"


def as_latex(table: PaperTable) -> str:
    r"""Return a table as LaTeX that needs no package; notes stand below it as plain paragraphs."""
    columns = f"l{'c' * (len(table.headings) - 1)}"
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{escape_latex(table.caption)}}}"]
    lines += [rf"\label{{tab:{table.name}}}", rf"\begin{{tabular}}{{{columns}}}", r"\hline"]
    for title, rows in table.groups:
        lines.append(rf"\multicolumn{{{len(table.headings)}}}{{l}}{{\textbf{{{escape_latex(title)}}}}} \\")
        lines += [_ampersands(table.headings), r"\hline", *map(_ampersands, rows), r"\hline"]
    lines += [r"\end{tabular}", *(rf"\par {escape_latex(note)}" for note in table.notes), r"\end{table}"]
    return "\n".join(lines) + "\n"


NOTATIONS: Mapping[str, Callable[[PaperTable], str]] = MappingProxyType(
    {"txt": as_text, "csv": as_csv, "md": as_markdown, "tex": as_latex}
)
"""Every notation by the suffix of its files."""


def escape_latex(text: str) -> str:
    r"""Return text that LaTeX prints as it is.

    >>> escape_latex("my_method 50 %")
    'my\\_method 50 \\%'
    """
    return "".join(_LATEX.get(character, character) for character in text)


def _aligned(cells: tuple[str, ...], widths: list[int]) -> str:
    """Return a line of text: the first column aligned to the left, numbers to the right."""
    parts = [cells[0].ljust(widths[0])]
    for cell, width in zip(cells[1:], widths[1:], strict=True):
        parts.append(cell.rjust(width))
    return "  ".join(parts).rstrip()


def _all_rows(table: PaperTable) -> Iterator[tuple[str, ...]]:
    yield table.headings
    for _, rows in table.groups:
        yield from rows


def _markdown(text: str) -> str:
    for character in "\\|*_`<>[]":
        text = text.replace(character, f"\\{character}")
    return text


def _piped(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(map(_markdown, cells))} |"


def _ampersands(cells: tuple[str, ...]) -> str:
    return " & ".join(map(_latex_cell, cells)) + r" \\"


def _latex_cell(cell: str) -> str:
    """Escape a cell; a number's minus is a minus, not a hyphen."""
    if cell.startswith("-") and cell[1:2].isdigit():
        return f"$-${cell[1:]}"
    return escape_latex(cell)
