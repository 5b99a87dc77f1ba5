"""`steelyard report`: the results of runs on one page."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from steelyard.cli.command import Command, default, say
from steelyard.errors import UserError

if TYPE_CHECKING:
    from steelyard.report.html.assembly import Scans


@dataclass(frozen=True)
class Report(Command):
    """Put the results of runs on one self-contained HTML page.

    It shows the answer, tables, figures, subjects and settings.
    With --data the page shows scans of the test subjects: keep it where the scans may be.
    """

    runs: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…", help_behavior_hint="(required)")
    ]
    """Run folders, or folders that hold some; the folder of an experiment gives its tables and statistics, too."""
    data: Annotated[Path | None, default("none, so no scans are shown")] = None
    """The output folder of `steelyard preprocess`."""
    out: Path = Path("report.html")
    """The page; an existing file is replaced only if steelyard wrote it."""
    figures: Annotated[Path | None, default("none")] = None
    """A folder for the figures as files, SVG and PNG; existing files are replaced only if steelyard wrote them."""
    subjects: int = 6
    """The maximum number of test subjects in the viewer; each takes about half a megabyte of the page."""
    methods: Annotated[tuple[str, ...], default("equal weights and the best other method")] = ()
    """Whose predictions the viewer shows."""
    model: Annotated[str | None, default("none; steelyard's own networks need no path")] = None
    """The import path of a network that is not steelyard's own: its code runs, so trust it."""

    def run(self) -> int:
        """Read, predict, draw, write."""
        from steelyard.files.atomic import write_text
        from steelyard.report.html.experiment_report import report_on_paths
        from steelyard.report.html.page import render_report

        self._check()
        page = report_on_paths(self.runs, self._scans())
        if self.figures is not None:
            for figure in page.all_figures:
                figure.check(self.figures)
        text = render_report(page)
        write_text(self.out, text)
        if self.figures is not None:
            for figure in page.all_figures:
                figure.save(self.figures)
        note = "; it shows scans" if self.data else ""
        say(f"{self.out} is the report, {len(text) / 1e6:.1f} MB{note}")
        return 0

    def _check(self) -> None:
        from steelyard.files.destinations import check_file, check_folder
        from steelyard.files.pages import MARK

        if not self.runs:
            raise UserError("name at least one run folder.")
        if self.subjects < 1:
            raise UserError(f"subjects must be at least 1; got {self.subjects}.")
        check_file(self.out, mark=MARK)
        if self.figures is not None:
            check_folder(self.figures)

    def _scans(self) -> "Scans | None":
        from steelyard.report.html.assembly import Scans

        if self.data is None:
            return None
        trusted = () if self.model is None else (self.model,)
        return Scans(data=self.data, subjects=self.subjects, methods=self.methods, trusted=trusted)
