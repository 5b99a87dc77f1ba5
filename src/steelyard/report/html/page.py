"""The report: one self-contained page of pieces that others have made."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from steelyard.files.pages import render
from steelyard.report.figures.plate import Plate, css_variables


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table that can be sorted by any column.

    Args:
        title: Above it.
        headings: Of its columns.
        rows: Its cells, as they are shown; a column whose cells start with numbers is sorted by them.
        note: Below it.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture that is there already.

    Args:
        title: Above it.
        caption: Below it.
        content: The file.
        kind: `png` or `jpeg`.
        link: Where to see more.
    """

    title: str
    caption: str
    content: bytes
    kind: str = "png"
    link: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that the page shows, in its order.

    Args:
        title: Of the page.
        lead: What it is about, in a sentence.
        answer: What came out, first of all.
        tables: The results.
        figures: The pictures of the results.
        pictures: Further pictures.
        subjects: What `steelyard.report.html.viewer.pack_subject` returns, for the interactive viewer.
        subjects_note: Who is shown, and who is not.
        scores: The results of each subject.
        settings: Configuration and versions.
        commands: How to do the same with one's own data.
        failures: What went wrong, and what to do about it.
    """

    title: str
    lead: str
    answer: Sequence[str]
    tables: Sequence[Table] = ()
    figures: Sequence[Plate] = ()
    pictures: Sequence[Picture] = ()
    subjects: Sequence[Mapping[str, Any]] = ()
    subjects_note: str = ""
    scores: Sequence[Table] = ()
    settings: Sequence[Table] = ()
    commands: Sequence[str] = field(default=())
    failures: Sequence[str] = ()


def render_report(report: Report) -> str:
    """Return the page: it asks nothing of any network, and whatever a name holds is text."""
    script = files(__package__).joinpath("templates", "report.js").read_text(encoding="utf-8")
    return render(
        "report",
        package=__package__,
        report=report,
        policy=_policy(script),
        script=Markup(script),  # noqa: S704, ours
        figures=[_drawn(plate) for plate in report.figures],
        pictures=[vars(picture) | {"content": b64encode(picture.content).decode()} for picture in report.pictures],
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


def _drawn(plate: Plate) -> dict[str, Any]:
    # matplotlib escapes the text in an SVG, and the rest of it is its own.
    panels = [Markup(panel) for panel in plate.inline()]  # noqa: S704
    return {"name": plate.name, "title": plate.title, "caption": plate.caption, "panels": panels, "size": plate.size}
