"""`steelyard agreement`: how far cheaper votes differ from exact ones."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from steelyard.cli.command import Command, default, say
from steelyard.errors import UserError

if TYPE_CHECKING:
    from steelyard.experiments.compared_votes import VoteTrace
    from steelyard.report.tables.agreement import Row, Variants

MARK = "agreement"
"""Marks the place for the tables on a page."""


@dataclass(frozen=True)
class Agreement(Command):
    """Compare cheaper votes with exact ones on your data.

    Takes an experiment with a method that votes exactly and cheaper variants of it, such as conservative-25 and
    conservative-25+first-order+every-4. Votes are compared at the same weights: some of the exact runs are trained once
    more, bit-identical, and the cheaper probes are asked at every step. Curves of λ and scores are compared between
    paired runs.
    """

    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """The experiment folder; agreement.json, .csv and .md go into it, and the votes of retraced runs."""
    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """The preprocessed dataset of the experiment."""
    exact: Annotated[str | None, default("the only one with cheaper variants")] = None
    """The method with exact votes, if several have cheaper variants."""
    traced: int = 5
    """In how many of its runs, of each model and availability, votes are compared; earlier comparisons are kept."""
    epochs: Annotated[int | None, default("all")] = None
    """Only this many epochs of a run."""
    page: Annotated[Path | None, default("none")] = None
    """A Markdown page to write the tables into, between the lines that mark them."""

    def run(self) -> int:
        """Retrace, compare, write, print."""
        from steelyard.cli.progress import track
        from steelyard.experiments.compared_votes import missing_traces, trace_votes
        from steelyard.imaging.runs.experiment_folder import AGREEMENT, VOTES
        from steelyard.report.tables.agreement import agreement_rows, as_markdown, read_variants

        self._check()
        variants = read_variants(self.out, self.exact)
        methods = variants.probed_methods()
        traces = missing_traces(self._traces(variants), (variants.exact, *methods))
        lines = trace_votes(self.out, self.data, traces, methods)
        track(lines, total=sum(trace.epochs for trace in traces), title="Retracing")
        rows = agreement_rows(variants)
        self._write(rows)
        sys.stdout.write(as_markdown(rows))
        if any(row["to_the_bit"] != row["traced"] for row in rows):
            say("a retraced run departs from what it was: it was trained on another kind of machine or another version")
        say(f"{self.out / AGREEMENT} has the numbers, {self.out / VOTES} every vote")
        return 0

    def _check(self) -> None:
        from steelyard.files.destinations import check_file, check_folder, refuse_links
        from steelyard.files.marked_page import check_page
        from steelyard.imaging.runs.experiment_folder import AGREEMENT, AGREEMENT_PAGE, AGREEMENT_TABLE, RUNS, SLICES

        check_folder(self.out)
        if not (self.out / RUNS).is_dir():
            raise UserError(f"{self.out}: there is no run folder in it; `steelyard experiment` makes such a folder.")
        # Each file is recognised by a text near its beginning.
        check_file(self.out / AGREEMENT, mark='{\n  "rows": [')
        check_file(self.out / AGREEMENT_TABLE, mark="model,availability,")
        check_file(self.out / AGREEMENT_PAGE, mark=", against ")
        refuse_links(self.out / SLICES, within=self.out)
        for name in ("traced", "epochs"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise UserError(f"--{name} must be at least 1; got {number}.")
        if self.page is not None:
            check_page(self.page, MARK)

    def _traces(self, variants: "Variants") -> "list[VoteTrace]":
        """Return the runs of exact votes that are to be compared."""
        from steelyard.experiments.compared_votes import VoteTrace

        traces = []
        for setting in variants.settings:
            records = list(variants.of(setting, variants.exact).values())
            for record in records[: self.traced]:
                epochs = len(record.epochs)
                if self.epochs is not None:
                    epochs = min(epochs, self.epochs)
                traces.append(VoteTrace(run=record.path, epochs=epochs, file=variants.votes_of(record)))
        return traces

    def _write(self, rows: "list[Row]") -> None:
        from steelyard.files.atomic import write_text
        from steelyard.files.marked_page import with_measured
        from steelyard.files.records import as_csv, write_json
        from steelyard.imaging.runs.experiment_folder import AGREEMENT, AGREEMENT_PAGE, AGREEMENT_TABLE
        from steelyard.report.tables.agreement import as_json, as_markdown

        table, text = as_json(rows), as_markdown(rows)
        write_json(self.out / AGREEMENT, {"rows": table})
        write_text(self.out / AGREEMENT_TABLE, as_csv(table))
        write_text(self.out / AGREEMENT_PAGE, text)
        if self.page is not None:
            write_text(self.page, with_measured(self.page.read_text(encoding="utf-8"), MARK, f"\n{text}"))
