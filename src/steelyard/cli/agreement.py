"""`steelyard agreement`: what cheaper votes lose against exact ones."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from steelyard.cli.command import Command, say
from steelyard.errors import UserError

if TYPE_CHECKING:
    from steelyard.report.data.runs import RunRecord
    from steelyard.report.tables.agreement import Row, Variants

MARK = "agreement"
"""Marks the place for the tables on a page."""

# The files, and what the beginning of each holds.
_MARKS = {"agreement.json": '{\n  "rows": [', "agreement.csv": "model,availability,", "agreement.md": ", against "}


@dataclass(frozen=True)
class Agreement(Command):
    """How far do cheaper votes agree with exact ones on my data, and what do they lose?

    Takes an experiment with a method that votes exactly and cheaper variants of it, such as Ours-C-25 and
    Ours-C-25+first-order+every-4. Votes are compared at the same weights: some of the exact runs are trained once more,
    to the same bits, with the cheaper probes asked at every step. Curves of λ and scores are compared between paired
    runs.
    """

    out: Annotated[Path, tyro.conf.Positional]
    """The folder of the experiment; agreement.json, .csv and .md go into it, and the votes of retraced runs."""
    data: Annotated[Path, tyro.conf.Positional]
    """The preprocessed dataset that it was run on."""
    exact: str | None = None
    """The method with exact votes, if several have cheaper variants."""
    traced: int = 5
    """In how many of its runs, of each model and availability, votes are compared; those that were once are kept."""
    epochs: int | None = None
    """Only in the first so many epochs of a run; in all if not said."""
    page: Path | None = None
    """A Markdown page to write the tables into, between the lines that mark them."""

    def run(self) -> int:
        """Retrace, compare, write, show."""
        from steelyard.cli.progress import track
        from steelyard.report.tables.agreement import agreement_rows, as_markdown, read_variants

        self._check()
        variants = read_variants(self.out, self.exact)
        left = [record for record in self._wanted(variants) if not self._is_traced(variants, record)]
        epochs = sum(self._epochs(record) for record in left)
        track((news for record in left for news in self._retraced(variants, record)), total=epochs, title="Retracing")
        rows = agreement_rows(variants)
        self._write(rows)
        sys.stdout.write(as_markdown(rows))
        if any(row["to_the_bit"] != row["traced"] for row in rows):
            say("a retraced run departs from what it was: it was trained on another kind of machine or another version")
        say(f"{self.out / 'agreement.json'} has the numbers, {self.out / 'votes'} every vote")
        return 0

    def _check(self) -> None:
        from steelyard.cli.marked_page import check_page
        from steelyard.experiments.units import CACHE
        from steelyard.files.writing import check_file, check_folder, refuse_links

        check_folder(self.out)
        for name, mark in _MARKS.items():
            check_file(self.out / name, mark=mark)
        refuse_links(self.out / CACHE, within=self.out)
        for name in ("traced", "epochs"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise UserError(f"--{name} must be at least 1; got {number}.")
        if self.page is not None:
            check_page(self.page, MARK)

    def _wanted(self, variants: "Variants") -> "list[RunRecord]":
        each = [list(variants.of(setting, variants.exact).values()) for setting in variants.settings]
        return [record for records in each for record in records[: self.traced]]

    def _epochs(self, record: "RunRecord") -> int:
        return min(len(record.epochs), self.epochs or len(record.epochs))

    def _is_traced(self, variants: "Variants", record: "RunRecord") -> bool:
        from steelyard.report.statistics.vote_agreement import read_trace

        path = variants.votes_of(record)
        if not path.exists():
            return False
        held = read_trace(path)
        return held.epochs >= self._epochs(record) and {variants.exact, *variants.probed_methods()} <= set(held.votes)

    def _retraced(self, variants: "Variants", record: "RunRecord") -> Iterator[str]:
        """Train a run again and keep its votes, once it is through."""
        from steelyard.experiments.compared_votes import Row as VoteRow
        from steelyard.experiments.compared_votes import retrace
        from steelyard.experiments.units import CACHE
        from steelyard.files.writing import as_csv, write_text
        from steelyard.imaging.runs.run_folder import RunFolder

        rows: list[VoteRow] = []
        run = RunFolder(record.path)
        found = retrace(run, self.data, variants.probed_methods(), epochs=self._epochs(record), cache=self.out / CACHE)
        for number, epoch in enumerate(found, start=1):
            rows += epoch
            yield f"{record.setting} {record.path.name}, epoch {number}"
        # also of fewer epochs, where it departs and stops early
        write_text(variants.votes_of(record), as_csv(rows), within=self.out)

    def _write(self, rows: "list[Row]") -> None:
        from steelyard.cli.marked_page import with_measured
        from steelyard.files.writing import as_csv, write_json, write_text
        from steelyard.report.tables.agreement import as_json, as_markdown

        held = as_json(rows)
        write_json(self.out / "agreement.json", {"rows": held})
        write_text(self.out / "agreement.csv", as_csv(held))
        write_text(self.out / "agreement.md", text := as_markdown(rows))
        if self.page is not None:
            write_text(self.page, with_measured(self.page.read_text(encoding="utf-8"), MARK, f"\n{text}"))
