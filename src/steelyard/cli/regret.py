"""`steelyard regret`: methods over many small problems."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from steelyard.cli.command import Command, default, say
from steelyard.errors import UserError

if TYPE_CHECKING:
    from steelyard.experiments.problems.problem import Folders
    from steelyard.experiments.regret.campaign import TrialReport
    from steelyard.experiments.regret.groups import Block
    from steelyard.experiments.regret.trial import Trial

_PICTURE = "in_short.png"
_CACHE = "cache"  # the folder in OUT for what is simulated once


@dataclass(frozen=True)
class Regret(Command):
    """Compare methods on small problems: when do learned weights pay?

    Small networks are trained on problems with several domains.
    Give the command again to resume: trials that have a row in OUT/results.csv are not done again. OUT/summary.md and
    OUT/report.html have gains over equal weights, the regret to the best of a sweep, costs, and what the audit said.
    """

    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """The folder for the results: new, or that of an earlier call."""
    problems: tuple[str, ...] = ("digits", "wine")
    """Which problems: digits, digits-norm, wine, phantoms; with --data also reviews-4, reviews-12, reviews-16, heart;
    or `package.module:Class` for one of your own: its code runs, so trust it."""
    methods: Annotated[tuple[str, ...], default("all that docs/regret.md compares")] = ()
    """Which methods, such as equal evidence sweep; `equal@3` has three times the learning rate. The others are compared
    with `equal`, so do not leave it out."""
    variants: Annotated[tuple[str, ...], default("all that a problem has")] = ()
    """Which variants, such as plain noisy."""
    optimizers: tuple[str, ...] = ("sgd", "adamw")
    """Which optimizers: sgd, adamw."""
    seeds: tuple[int, int] = (1000, 1005)
    """The first seed, and the first that is left out."""
    steps: Annotated[int | None, default("the problem's own number")] = None
    """How long each network is trained."""
    group: Annotated[str, default("none")] = ""
    """All trials of a group, choosing, confirming or drift. It takes the place of --problems, --variants, --optimizers,
    --seeds and --steps."""
    smallest: bool = False
    """The smallest form of the suite, about a minute: digits, plain and noisy, few seeds and steps."""
    data: Annotated[Path | None, default("none")] = None
    """The folder of data for reviews and heart disease."""
    workers: int = 1
    """How many processes share the work, each with one thread."""

    def run(self) -> int:
        """Do what is left, and write tables and report; the exit code is 2 if a trial failed."""
        from steelyard.cli.progress import track
        from steelyard.experiments.regret.campaign import run_trials
        from steelyard.experiments.regret.results import RESULTS, read_results, trials_to_do

        self._check_out()
        trials = list(self._trials())
        waiting = trials_to_do(trials, read_results(self.out / RESULTS))
        say(f"{len(trials)} trials, {len(trials) - len(waiting)} of them done")
        failed: list[TrialReport] = []
        reports = run_trials(waiting, self.out, folders=self._folders(), workers=self.workers)
        track(_watch(reports, failed), total=len(waiting), title="Trials")
        self._conclude()
        for report in failed:
            say(f"failed: {report.trial}: {report.message}")
        return 2 if failed else 0

    def _conclude(self) -> None:
        """Write what follows from the results alone."""
        from steelyard.cli.regret_report import REPORT, regret_report, short_figure
        from steelyard.experiments.regret.page import SUMMARY, summary_page
        from steelyard.experiments.regret.results import RESULTS, read_results
        from steelyard.files.atomic import write_bytes, write_text
        from steelyard.report.figures.figure import figures_page
        from steelyard.report.html.page import render_report

        results = list(read_results(self.out / RESULTS).values())
        if not results:
            return
        write_text(self.out / SUMMARY, summary_page(results))
        write_text(self.out / REPORT, render_report(regret_report(results)))
        write_bytes(self.out / _PICTURE, figures_page([short_figure(results)]))
        say(f"{len(results)} trials; look at {self.out / REPORT}, or at {self.out / SUMMARY}")

    def _check_out(self) -> None:
        """Refuse a folder that holds something else."""
        from steelyard.cli.regret_report import REPORT
        from steelyard.experiments.regret.results import RESULTS
        from steelyard.files.destinations import check_file, check_folder
        from steelyard.files.pages import MARK

        check_folder(self.out)
        check_file(self.out / REPORT, mark=MARK)
        if not self.out.exists() or (self.out / RESULTS).exists():
            return
        for path in self.out.iterdir():
            if path.name != _CACHE and not path.name.startswith("."):
                raise UserError(f"{self.out}: is not empty and has no {RESULTS}; nothing was written.")

    def _folders(self) -> "Folders":
        from steelyard.experiments.problems.problem import Folders

        return Folders(data=self.data, cache=self.out / _CACHE)

    def _trials(self) -> "Iterator[Trial]":
        from steelyard.experiments.regret.methods import COMPARED

        for block in self._blocks():
            yield from block.trials(self.methods or COMPARED, self._folders())

    def _blocks(self) -> "tuple[Block, ...]":
        from steelyard.experiments.regret.groups import GROUPS, SMALLEST, Block
        from steelyard.files.checks import check_choice

        if self.smallest and self.group:
            raise UserError("--smallest and --group exclude each other.")
        if self.smallest:
            steps = SMALLEST.steps if self.steps is None else self.steps
            return (replace(SMALLEST, steps=steps),)
        if self.group:
            check_choice("group", self.group, tuple(GROUPS))
            return GROUPS[self.group]
        blocks = []
        for problem in self.problems:
            block = Block(
                problem=problem,
                seeds=self.seeds,
                optimizers=self.optimizers,
                variants=self.variants,
                steps=self.steps,
            )
            blocks.append(block)
        return tuple(blocks)


def _watch(reports: "Iterator[TrialReport]", failed: "list[TrialReport]") -> Iterator[str]:
    """Yield what the progress shows, and collect the failures."""
    for report in reports:
        if report.result is None:
            failed.append(report)
            yield f"{report.trial}: failed, {report.message}"
        else:
            yield f"{report.trial}: {report.result.score:.3f} in {report.result.seconds:.1f} s"
