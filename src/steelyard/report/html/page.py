"""The report: one self-contained page of tables, figures, pictures and subjects."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from steelyard.files.pages import render
from steelyard.report.figures.figure import ReportFigure, css_variables
from steelyard.report.tables.table import PageTable


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture from a file.

    Args:
        title: Above it.
        caption: Below it.
        content: The bytes of the file.
        kind: `png` or `jpeg`.
        link: To a page with more.
    """

    title: str
    caption: str
    content: bytes
    kind: str = "png"
    link: str = ""


@dataclass(frozen=True, kw_only=True)
class AuditPart:
    """The audit of one run.

    Args:
        title: Which run it is.
        flags: For each flag what it says, and the evidence.
        without_flags: What to say where there are none.
        table: What was measured about each domain.
        figure: The transfer matrix.
    """

    title: str
    flags: Sequence[tuple[str, str]]
    without_flags: str
    table: PageTable
    figure: ReportFigure


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything on the page, in its order.

    Args:
        title: Of the page.
        lead: What it is about, in a sentence.
        answer: The result in a few sentences.
        tables: The results.
        figures: The pictures of the results.
        pictures: Further pictures.
        audits: Who helped whom.
        subjects: What `steelyard.report.html.viewer.pack_subject` returns, for the interactive viewer.
        subjects_note: Which subjects the viewer shows.
        scores: The results of each subject.
        settings: Configuration and versions.
        commands: How to do the same with one's own data.
        failures: What went wrong, and how to mend it.
    """

    title: str
    lead: str
    answer: Sequence[str]
    tables: Sequence[PageTable] = ()
    figures: Sequence[ReportFigure] = ()
    pictures: Sequence[Picture] = ()
    audits: Sequence[AuditPart] = ()
    subjects: Sequence[Mapping[str, Any]] = ()
    subjects_note: str = ""
    scores: Sequence[PageTable] = ()
    settings: Sequence[PageTable] = ()
    commands: Sequence[str] = field(default=())
    failures: Sequence[str] = ()

    @property
    def all_figures(self) -> list[ReportFigure]:
        """The figures, and those of the audits."""
        return [*self.figures, *(audit.figure for audit in self.audits)]


def render_report(report: Report) -> str:
    """Return the page: it loads nothing from a network, and names are shown as text, whatever they hold."""
    script = files(__package__).joinpath("templates", "report.js").read_text(encoding="utf-8")
    return render(
        "report",
        package=__package__,
        report=report,
        policy=_policy(script),
        script=Markup(script),  # noqa: S704, a file of this package
        figures=[_figure_values(figure) for figure in report.figures],
        audits=[vars(audit) | {"figure": _figure_values(audit.figure)} for audit in report.audits],
        pictures=[_picture_values(picture) for picture in report.pictures],
        light=css_variables(dark=False),
        dark=css_variables(dark=True),
        failures=report.failures,
    )


def _policy(script: str) -> str:
    """Return what the browser may do: run this one script, show what the page holds, and nothing else."""
    digest = b64encode(sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _figure_values(figure: ReportFigure) -> dict[str, Any]:
    """Return what the template needs of a figure."""
    # matplotlib escapes the text in an SVG, and the rest of it is its own.
    panels = [Markup(panel) for panel in figure.inline_panels()]  # noqa: S704
    return {
        "name": figure.name,
        "title": figure.title,
        "caption": figure.caption,
        "panels": panels,
        "size": figure.size,
    }


def _picture_values(picture: Picture) -> dict[str, Any]:
    """Return what the template needs of a picture."""
    return vars(picture) | {"content": b64encode(picture.content).decode()}
