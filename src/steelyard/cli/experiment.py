"""`steelyard experiment`: a grid of runs."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from steelyard.cli.command import Command, default, say
from steelyard.imaging.networks.accelerator import Accelerator

if TYPE_CHECKING:
    from steelyard.experiments.experiment import Execution
    from steelyard.experiments.grids import GridConfig


@dataclass(frozen=True)
class Experiment(Command):
    """Train and judge a grid of runs, such as the paper's.

    The grid is models × availability × methods × folds × repeats.
    Give the command again to resume an experiment that was stopped, with any number of workers: the results are the
    same. OUT/results.csv has every metric of every run, test subject and domain. Runs that are in it count as done,
    even if their folders were removed.
    """

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DESIGN")]
    """The design: paper (for GPUs), desk or glioma (for two cores) or smoke (minutes)."""
    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """The output folder of `steelyard preprocess`."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """The experiment folder: new, or of an experiment that was stopped."""
    models: Annotated[tuple[str, ...], default("the design's")] = ()
    """Only these networks."""
    methods: Annotated[tuple[str, ...], default("the design's")] = ()
    """Only these methods, or others than the design's: equal, greedy-25, conservative-25+first-order, …; the paper's
    names (F50-T50, Ours-G-25) are read, too."""
    availability: Annotated[tuple[str, ...], default("the design's")] = ()
    """Only these: all, or the number of training subjects whose FLAIR is learned from, such as 8F."""
    folds: Annotated[int | None, default("the design's number")] = None
    """The number of parts that the subjects are divided into; each is the test fold once."""
    test_folds: Annotated[tuple[int, ...], default("all")] = ()
    """Only these test folds, from 0."""
    repeats: Annotated[tuple[int, ...], default("the design's")] = ()
    """Only these repeats, from 0; a repeat is a seed."""
    domains: Annotated[tuple[str, ...], default("the design's, flair t1")] = ()
    """The domains to train on and to test, such as flair@SITE-A flair@SITE-B t1."""
    validate: Annotated[int | None, default("the design's number; else as many as test")] = None
    """How many subjects validate."""
    split_seed: int = 0
    """Decides who is in which fold."""
    set: Annotated[tuple[str, ...], default("none", metavar="NAME=VALUE…")] = ()
    """Any setting of the training as NAME=VALUE, such as epochs=10."""
    workers: Annotated[int | None, default("1, or as many as a Ray cluster has cores and GPUs for")] = None
    """The number of runs at a time, each in a process of its own."""
    threads: int = 1
    """CPU threads of each run; a part of its config, because results depend on it in the last bits."""
    ray: Annotated[str | None, default("processes of this machine")] = None
    """Run on the Ray cluster at this address; `auto` is this machine's, `local` starts one here."""
    accelerator: Accelerator = "cpu"
    """What runs are trained on. auto: cuda if this machine has it, otherwise cpu. cuda and mps are untested."""
    dry_run: bool = False
    """Print what would run and an estimate of the time, from a timing trial of seconds per method; write nothing."""

    def run(self) -> int:
        """Run what is left of the experiment, then write its results, tables and report."""
        from steelyard.cli.progress import GridProgress
        from steelyard.experiments.experiment import open_experiment

        if self.dry_run:
            return self._estimate()
        with open_experiment(self._grid(), data=self.data, out=self.out, execution=self._execution()) as experiment:
            say(_announce(len(experiment.units), experiment.done))
            with GridProgress(experiment) as progress:
                for report in experiment.run():
                    progress.show(report)
            self._conclude()
        for report in experiment.failed:
            say(f"failed twice: {report.unit.key}: {report.message}")
        return 2 if experiment.failed else 0

    def _conclude(self) -> None:
        """Write what follows from the finished runs alone: results, tables, figures, the report."""
        from steelyard.experiments.results import write_results
        from steelyard.imaging.runs.experiment_folder import REPORT, RESULTS
        from steelyard.report.html.experiment_report import conclude

        runs = write_results(self.out)
        say(f"{self.out / RESULTS} has every metric of {runs} runs, per test subject and domain")
        if runs:
            for sentence in conclude(self.out, self.data, trusted=self.models):
                say(sentence)
            say(f"look at {self.out / REPORT}; tables and figures are beside it")

    def _estimate(self) -> int:
        from steelyard.experiments.experiment import estimate_experiment

        estimate = estimate_experiment(self._grid(), data=self.data, out=self.out, execution=self._execution())
        say(_announce(estimate.units, estimate.done))
        for block in estimate.blocks:
            say(f"{block.name}: {block.units} runs of {block.steps} steps, about {_duration(block.seconds)} each")
        say(
            f"about {_duration(estimate.seconds)} with {estimate.workers} workers of {self.threads} threads, "
            "if no run stops early; start-up and report are not included"
        )
        return 0

    def _execution(self) -> "Execution":
        from steelyard.experiments.experiment import Execution

        return Execution(workers=self.workers, threads=self.threads, ray=self.ray, accelerator=self.accelerator)

    def _grid(self) -> "GridConfig":
        from steelyard.experiments.grids import GridChanges, choose_grid

        changes = GridChanges(
            models=self.models,
            methods=self.methods,
            availability=self.availability,
            folds=self.folds,
            test_folds=self.test_folds,
            repeats=self.repeats,
            domains=self.domains,
            validate=self.validate,
            split_seed=self.split_seed,
            threads=self.threads,
            settings=self.set,
        )
        return choose_grid(self.name, changes)


def _announce(units: int, done: int) -> str:
    return f"{units} runs in all, {done} done, {units - done} to do"


def _duration(seconds: float) -> timedelta:
    return timedelta(seconds=round(seconds))
