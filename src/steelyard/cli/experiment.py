"""`steelyard experiment`: a grid of runs."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import tyro

from steelyard.cli.command import Command, say

if TYPE_CHECKING:
    from steelyard.experiments.estimate import Forecast
    from steelyard.experiments.executors import Crew, News
    from steelyard.experiments.grids import GridConfig
    from steelyard.experiments.units import Unit
    from steelyard.imaging.train.data import LabelledSlices


@dataclass(frozen=True)
class Experiment(Command):
    """Train and judge a grid of models × availability × methods × folds × repeats.

    An experiment that was stopped, however it was stopped, goes on where it was if the command is given again, with any
    number of workers, to the same results. OUT/results.csv has every metric of every run, test subject and domain.
    """

    name: Annotated[str, tyro.conf.Positional]
    """The design: paper (for GPUs), desk (for two cores) or smoke (minutes)."""
    data: Annotated[Path, tyro.conf.Positional]
    """The derivatives that `steelyard preprocess` left."""
    out: Annotated[Path, tyro.conf.Positional]
    """The folder for the experiment; new, or of one that was stopped."""
    models: tuple[str, ...] = ()
    """Only these networks."""
    methods: tuple[str, ...] = ()
    """Only these methods, or others than the design's."""
    availability: tuple[str, ...] = ()
    """Only these: all, or the number of training subjects whose FLAIR is learned from, such as 8F."""
    folds: int | None = None
    """Into how many parts the subjects are dealt, of which each takes its turn to test; the design's if not said."""
    turns: tuple[int, ...] = ()
    """Only these folds' turns, from 0."""
    repeats: tuple[int, ...] = ()
    """Only these repeats, from 0; a repeat is a seed."""
    domains: tuple[str, ...] = ()
    """What the networks must serve, such as flair@SITE-A flair@SITE-B t1."""
    validate: int | None = None
    """How many subjects validate; the design's if not said."""
    split_seed: int = 0
    """Settles who is in which fold."""
    set: tuple[str, ...] = ()
    """Any setting of the training as NAME=VALUE, such as epochs=10."""
    workers: int | None = None
    """How many runs at a time, each in a process of its own; 1 if not said, or what a Ray cluster has cores and
    GPUs for."""
    threads: int = 1
    """CPU threads of each run; a part of its config, because bits depend on it."""
    ray: str | None = None
    """Run on the Ray cluster at this address; `auto` is this machine's, `local` starts one here."""
    accelerator: str = "cpu"
    """cpu, cuda, mps or auto."""
    dry_run: bool = False
    """Say what would run and how long it would take, from a rehearsal of seconds a method, and write nothing."""

    def run(self) -> int:
        """Plan, run, put together."""
        grid = self._grid()
        if self.dry_run:
            return self._foretell(grid)
        with TemporaryDirectory(prefix="steelyard-") as scratch:
            return self._run(grid, Path(scratch))

    def _run(self, grid: "GridConfig", scratch: Path) -> int:
        """Check everything that can fail before the first file is written, then work.

        Args:
            grid: What to run.
            scratch: Keeps the slices until the experiment has a folder.
        """
        from steelyard.experiments.scheduler import check_design, claim
        from steelyard.experiments.units import check_networks, keep_slices, plan, read_slices

        is_new = self._check_out()
        slices = read_slices(grid, self.data, scratch if is_new else self.out)
        units = plan(grid, slices, data=self.data.resolve(), out=self.out.resolve(), accelerator=self.accelerator)
        left = [unit for unit in units if not unit.done]
        check_networks(left, slices)
        crew = self._crew() if left else None
        try:
            with claim(self.out):
                check_design(self.out, grid, slices)
                keep_slices(scratch, self.out)
                say(_announce(units))
                failed = self._work(units, slices, crew)
                if crew is not None:
                    crew.close()  # before the report, which needs the memory; closing twice does no harm
                self._conclude()
        finally:
            if crew is not None:
                crew.close()
        for news in failed:
            say(f"failed twice: {news.unit.name}: {news.outcome}")
        return 2 if failed else 0

    def _check_out(self) -> bool:
        """Refuse a folder or device that cannot be used; tell whether the experiment is new."""
        from steelyard.cli.train import open_fabric
        from steelyard.experiments.scheduler import DESIGN, check_folder
        from steelyard.files.pages import MARK
        from steelyard.files.writing import check_file

        check_folder(self.out)
        if (self.out / "report.html").exists():
            check_file(self.out / "report.html", mark=MARK)
        if self.ray is None:
            open_fabric(self.accelerator, 1)
        return not (self.out / DESIGN).exists()

    def _conclude(self) -> None:
        """Write what follows from the finished runs alone: results, tables, figures, the report."""
        from steelyard.experiments.results import RESULTS, write_results
        from steelyard.report.html.experiment_report import conclude

        runs = write_results(self.out)
        say(f"{self.out / RESULTS} has every metric of {runs} runs, per test subject and domain")
        if runs:
            for sentence in conclude(self.out, self.data, trusted=self.models):
                say(sentence)
            say(f"look at {self.out / 'report.html'}; tables and figures are beside it")

    def _work(self, units: "list[Unit]", slices: "LabelledSlices", crew: "Crew | None") -> "list[News]":
        from steelyard.cli.grid_progress import GridProgress
        from steelyard.experiments.estimate import Forecast, add_timing
        from steelyard.experiments.scheduler import run_units, write_failures

        failed: list[News] = []
        forecast = Forecast(slices)
        left = [unit for unit in units if not unit.done]
        write_failures(self.out, failed)
        if crew is None:
            return []
        forecast.learn(self.out, units)
        with GridProgress(units, forecast, crew) as progress:
            for news in run_units(left, crew):
                if news is not None:
                    if isinstance(news.outcome, str):
                        failed.append(news)
                    else:
                        add_timing(self.out, news.unit, news.outcome)
                        forecast.learn(self.out, units)
                    write_failures(self.out, failed)
                progress.show(news)
        return failed

    def _crew(self) -> "Crew":
        from steelyard.experiments.executors import LocalCrew, RayCrew

        if self.ray is not None:
            return RayCrew(self.ray, workers=self.workers, threads=self.threads, accelerator=self.accelerator)
        workers = 1 if self.workers is None else self.workers
        return LocalCrew(workers, threads=self.threads, accelerator=self.accelerator)

    def _foretell(self, grid: "GridConfig") -> int:
        from steelyard.experiments.estimate import Forecast
        from steelyard.experiments.scheduler import check_design, check_folder
        from steelyard.experiments.units import plan, read_slices

        check_folder(self.out)
        workers = self._crew_size()
        slices = read_slices(grid, self.data)
        units = plan(grid, slices, data=self.data.resolve(), out=self.out.resolve(), accelerator=self.accelerator)
        check_design(self.out, grid, slices, write=False)
        say(_announce(units))
        left = [unit for unit in units if not unit.done]
        forecast = Forecast(slices)
        forecast.learn(self.out, units)
        forecast.measure(left)
        for line in _schedule(left, forecast):
            say(line)
        seconds = forecast.total(left, workers=workers) or 0.0
        say(
            f"about {timedelta(seconds=round(seconds))} with {workers} workers of {self.threads} threads, "
            "if no run stops early; start-up and report come on top"
        )
        return 0

    def _crew_size(self) -> int:
        """Return how many runs would be done at a time; a Ray cluster is asked."""
        crew = self._crew()
        try:
            return crew.size
        finally:
            crew.close()

    def _grid(self) -> "GridConfig":
        from steelyard.experiments.grids import design_named, read_availability
        from steelyard.imaging.runs.method import Method
        from steelyard.imaging.runs.settings import with_settings

        design = design_named(self.name)
        domains = self.domains or design.training.domains
        methods = self.methods or design.methods
        first = Method.parse(methods[0], domains)
        training = replace(design.training, threads=self.threads, domains=domains, method=first)
        return replace(
            design,
            training=with_settings(training, self.set),
            models=self.models or design.models,
            methods=methods,
            single_domain_models=(self.models or design.models) if self.methods else design.single_domain_models,
            availability=tuple(read_availability(one, scarce=design.scarce) for one in self.availability)
            or design.availability,
            folds=design.folds if self.folds is None else self.folds,
            turns=self.turns or design.turns,
            repeats=self.repeats or design.repeats,
            validate=design.validate if self.validate is None else self.validate,
            split_seed=self.split_seed,
        )


def _announce(units: "list[Unit]") -> str:
    done = sum(unit.done for unit in units)
    return f"{len(units)} runs in all, {done} done, {len(units) - done} to do"


def _schedule(units: "list[Unit]", forecast: "Forecast") -> Iterator[str]:
    """Yield a line per block and method."""
    rows = Counter((unit.config.model, unit.availability, unit.config.method.name) for unit in units)
    first = {(unit.config.model, unit.availability, unit.config.method.name): unit for unit in reversed(units)}
    for row, number in rows.items():
        each = forecast.seconds(first[row]) or 0.0
        steps = forecast.steps(first[row]) * first[row].config.epochs
        yield f"{' '.join(row)}: {number} runs of {steps} steps, about {timedelta(seconds=round(each))} each"
