"""`steelyard report`: what runs found, on one page."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from steelyard.cli.command import Command, say
from steelyard.errors import UserError


@dataclass(frozen=True)
class Report(Command):
    """Put what runs found on one self-contained HTML page: answer, tables, figures, subjects, settings.

    With --data the page shows scans of the test subjects: keep it where the scans may be.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run directories, or folders that hold some; the folder of an experiment gives its tables and statistics, too."""
    data: Path | None = None
    """The derivatives that `steelyard preprocess` left; without them there are no scans on the page."""
    out: Path = Path("report.html")
    """The page; a file that is there is replaced only if it is a page of ours."""
    figures: Path | None = None
    """A folder for the figures as files, SVG and PNG; those that are there are replaced only if they are ours."""
    subjects: int = 6
    """At most so many test subjects are in the viewer; each takes about half a megabyte of the page."""
    methods: tuple[str, ...] = ()
    """Whose predictions the viewer shows; F50-T50's and the best other's if not said."""
    model: str | None = None
    """The network's import path, if it is not one of ours: needed, because it is code."""

    def run(self) -> int:
        """Read, predict, draw, write."""
        from steelyard.files.atomic import write_text
        from steelyard.files.destinations import check_file, check_folder
        from steelyard.files.pages import MARK
        from steelyard.report.data.runs import by_method, read_runs
        from steelyard.report.html.assembly import Scans, assemble
        from steelyard.report.html.page import render_report
        from steelyard.report.statistics.conclusion import is_experiment, report_on

        if not self.runs:
            raise UserError("name at least one run directory.")
        if self.subjects < 1:
            raise UserError(f"subjects must be at least 1; got {self.subjects}.")
        check_file(self.out, mark=MARK)
        if self.figures is not None:
            check_folder(self.figures)
        scans = None
        if self.data is not None:
            scans = Scans(
                data=self.data,
                subjects=self.subjects,
                methods=self.methods,
                trusted=() if self.model is None else (self.model,),
            )
        if len(self.runs) == 1 and is_experiment(self.runs[0]):
            report = report_on(self.runs[0], scans)
        else:
            records = read_runs(self.runs)
            methods = by_method(records)
            lead = f"{_count(len(records), 'run')} of {_count(len(methods), 'method')}: {', '.join(methods)}."
            report = assemble(records, scans=scans, title="One network for several domains", lead=lead)
        if self.figures is not None:
            for plate in report.figures:
                plate.check(self.figures)
        write_text(self.out, text := render_report(report))
        if self.figures is not None:
            for plate in report.figures:
                plate.save(self.figures)
        say(f"{self.out} is the report, {len(text) / 1e6:.1f} MB{'; it shows scans' if self.data else ''}")
        return 0


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
