"""`python -m steelyard.experiments.trials OUT`: compare methods on small problems."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Annotated

import tyro

from steelyard.errors import UserError, one_line
from steelyard.experiments.trials.campaign import TrialReport, run_trials
from steelyard.experiments.trials.groups import GROUPS, Block
from steelyard.experiments.trials.page import SUMMARY, summary_page
from steelyard.experiments.trials.results import RESULTS, read_results, trials_to_do
from steelyard.experiments.trials.trial import OPTIMIZERS, Trial
from steelyard.files.atomic import write_text
from steelyard.files.checks import check_choice
from steelyard.processes.stopping import end_on_signals


@dataclass(frozen=True)
class Trials:
    """Train small networks on problems with several domains, and compare methods with equal weights.

    Trials that have a row in OUT/results.csv are not done again. OUT/summary.md has the tables.
    """

    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """The folder for the results."""
    methods: tuple[str, ...] = ("equal", "evidence")
    """Which methods; `equal` is what the others are compared with. For example `evidence:caution=1,judge=task`."""
    group: str = ""
    """All trials of a group, `choosing`, `confirming` or `drift`, instead of the five options that follow."""
    problems: tuple[str, ...] = ("digits",)
    """Which problems."""
    variants: tuple[str, ...] = ()
    """Which variants; default all that a problem has."""
    optimizers: tuple[str, ...] = OPTIMIZERS
    """Which optimizers."""
    seeds: tuple[int, int] = (1000, 1001)
    """The first seed, and the first that is left out."""
    steps: int | None = None
    """How long each network is trained; default the problem's own number."""
    data: Path | None = None
    """The folder of data for reviews and heart disease."""
    workers: int = 1
    """How many processes share the work, each with one thread."""

    def run(self) -> int:
        """Do what is left, and write the tables; the exit code is 2 if a trial failed."""
        trials = list(self._trials())
        total = len(trials_to_do(trials, read_results(self.out / RESULTS)))
        started, failed = monotonic(), 0
        for done, report in enumerate(run_trials(trials, self.out, data=self.data, workers=self.workers), start=1):
            failed += report.result is None
            left = (monotonic() - started) / done * (total - done)
            _say(f"{_describe(report)} ({done} of {total}, about {left:.0f} s left)")
        results = read_results(self.out / RESULTS)
        if results:
            write_text(self.out / SUMMARY, summary_page(list(results.values())))
            _say(f"{len(results)} trials; look at {self.out / SUMMARY}")
        return 2 if failed else 0

    def _trials(self) -> Iterator[Trial]:
        if self.group:
            check_choice("group", self.group, tuple(GROUPS))
        for block in GROUPS.get(self.group, self._blocks()):
            yield from block.trials(self.methods, self.data)

    def _blocks(self) -> tuple[Block, ...]:
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


def _describe(report: TrialReport) -> str:
    if report.result is None:
        return f"{report.trial}: failed, {report.message}"
    return f"{report.trial}: {report.result.score:.3f} in {report.result.seconds:.1f} s"


def _say(line: str) -> None:
    sys.stderr.write(f"{one_line(line)}\n")


def main() -> int:
    """Run the command and return its exit code: 0, or 2 with one line on stderr for a user's mistake."""
    end_on_signals()
    command = tyro.cli(Trials, prog="python -m steelyard.experiments.trials")
    try:
        return command.run()
    except UserError as error:
        _say(f"trials: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
