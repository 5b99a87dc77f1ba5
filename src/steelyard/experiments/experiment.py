"""An experiment in its folder: check, lock, run what is left, estimate how long it takes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from steelyard.errors import UserError, reason
from steelyard.experiments.estimate import BlockEstimate, Forecast, add_timing, estimate_blocks
from steelyard.experiments.executor import Executor, UnitReport, run_units
from steelyard.experiments.grids import GridConfig
from steelyard.experiments.local_executor import LocalExecutor
from steelyard.experiments.ray_executor import RayExecutor
from steelyard.experiments.results import units_to_do, update_failures
from steelyard.experiments.single_run import open_fabric
from steelyard.experiments.units import (
    Unit,
    check_networks,
    move_slices,
    plan,
    read_slices,
    split_for,
)
from steelyard.files.destinations import check_file, check_folder, refuse_links
from steelyard.files.locks import lock_folder
from steelyard.files.pages import MARK
from steelyard.files.records import read_json, write_json
from steelyard.imaging.runs.experiment_folder import DESIGN, REPORT, RUNS, SLICES
from steelyard.imaging.runs.run_folder import refuse_difference
from steelyard.imaging.train.data import LabelledSlices


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Where the units of an experiment are done.

    Args:
        workers: The number of units at a time; by default 1, or as many as a Ray cluster has room for.
        threads: CPU threads of each unit.
        ray: The address of a Ray cluster; `None` for processes of this machine.
        accelerator: What units are trained on.
    """

    workers: int | None = None
    threads: int = 1
    ray: str | None = None
    accelerator: str = "cpu"

    def check(self) -> None:
        """Make sure that this machine has the accelerator; a cluster may have another.

        Raises:
            UserError: It has not.
        """
        if self.ray is None:
            open_fabric(self.accelerator, 1)

    def start(self) -> Executor:
        """Return an executor, ready for units.

        Raises:
            UserError: There are too few cores, or the cluster cannot be reached.
        """
        if self.ray is not None:
            return RayExecutor(self.ray, workers=self.workers, threads=self.threads, accelerator=self.accelerator)
        workers = 1 if self.workers is None else self.workers
        return LocalExecutor(workers, threads=self.threads, accelerator=self.accelerator)


@dataclass(kw_only=True)
class Experiment:
    """An experiment whose folder is locked.

    Args:
        out: The folder.
        units: All units of the grid.
        waiting: The units that are not done, by run folder.
        forecast: Estimates how long units take.
        executor: Does the units; `None` if none is waiting.

    Attributes:
        failed: The units that failed in this call.
    """

    out: Path
    units: Sequence[Unit]
    waiting: dict[Path, Unit]
    forecast: Forecast
    executor: Executor | None
    failed: list[UnitReport] = field(default_factory=list)

    @property
    def done(self) -> int:
        """The number of units that are done or failed."""
        return len(self.units) - len(self.waiting)

    @property
    def busy(self) -> Sequence[Unit]:
        """The units that are being done."""
        if self.executor is None:
            return ()
        return self.executor.busy

    def seconds_left(self) -> float | None:
        """Estimate how long the rest takes; `None` as long as no unit has been timed."""
        if self.executor is None:
            return 0.0
        return self.forecast.total(list(self.waiting.values()), workers=self.executor.size)

    def run(self) -> Iterator[UnitReport | None]:
        """Do the waiting units; yield a report for each, and `None` now and then.

        Timings and failures are written as units end.
        """
        update_failures(self.out, [])
        if self.executor is None:
            return
        self.forecast.learn(self.out, self.units)
        for report in run_units(list(self.waiting.values()), self.executor):
            if report is not None:
                self._record(report)
            yield report
        self.executor.close()  # the report that follows needs the memory; closing twice does no harm

    def _record(self, report: UnitReport) -> None:
        del self.waiting[report.unit.path]
        if report.timing is None:
            self.failed.append(report)
        else:
            add_timing(self.out, report.unit, report.timing)
            self.forecast.learn(self.out, self.units)
        update_failures(self.out, self.failed)


@contextmanager
def open_experiment(grid: GridConfig, *, data: Path, out: Path, execution: Execution) -> Iterator[Experiment]:
    """Check everything that can fail, then lock the folder and write the design.

    Raises:
        UserError: The folder, the data, a network or the executor cannot be used. Nothing was written.
    """
    _check_out(out)
    execution.check()
    with TemporaryDirectory(prefix="steelyard-") as folder:
        scratch = Path(folder)
        # Slices that are read now are kept in the scratch folder until all checks are passed.
        has_slices = (out / SLICES).is_dir()
        slices = read_slices(grid, data, out if has_slices else scratch)
        units = plan(grid, slices, data=data.resolve(), out=out.resolve(), accelerator=execution.accelerator)
        _check_design(out, grid, slices)
        waiting = units_to_do(out.resolve(), units, slices)
        check_networks(waiting, slices)
        executor = execution.start() if waiting else None
        try:
            with _locked(out):
                _write_design(out, grid, slices)
                move_slices(scratch, out)
                yield Experiment(
                    out=out,
                    units=units,
                    waiting={unit.path: unit for unit in waiting},
                    forecast=Forecast(slices),
                    executor=executor,
                )
        finally:
            if executor is not None:
                executor.close()


@dataclass(frozen=True, kw_only=True)
class ExperimentEstimate:
    """How long an experiment takes.

    Args:
        units: The number of units of the grid.
        done: Of these, the number that are done.
        blocks: What is left, by model, availability and method.
        workers: The number of units at a time.
        seconds: The total, if no run stops early.
    """

    units: int
    done: int
    blocks: Sequence[BlockEstimate]
    workers: int
    seconds: float


def estimate_experiment(grid: GridConfig, *, data: Path, out: Path, execution: Execution) -> ExperimentEstimate:
    """Estimate how long an experiment takes, from its finished units and a timing trial of the others; write nothing.

    Raises:
        UserError: The folder, the data, a network or the executor cannot be used.
    """
    check_experiment_folder(out)
    execution.check()
    executor = execution.start()
    workers = executor.size
    executor.close()
    slices = read_slices(grid, data)
    units = plan(grid, slices, data=data.resolve(), out=out.resolve(), accelerator=execution.accelerator)
    _check_design(out, grid, slices)
    waiting = units_to_do(out.resolve(), units, slices)
    check_networks(waiting, slices)
    forecast = Forecast(slices)
    forecast.learn(out, units)
    forecast.measure(waiting)
    return ExperimentEstimate(
        units=len(units),
        done=len(units) - len(waiting),
        blocks=estimate_blocks(waiting, forecast),
        workers=workers,
        seconds=forecast.total(waiting, workers=workers) or 0.0,
    )


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Lock the experiment folder, and make sure that it is still free or an experiment's."""
    with lock_folder(out):
        check_experiment_folder(out)
        yield


def _check_out(out: Path) -> None:
    check_experiment_folder(out)
    if (out / REPORT).exists():
        check_file(out / REPORT, mark=MARK)


def check_experiment_folder(out: Path) -> None:
    """Make sure that a folder is free, or an experiment's; change nothing.

    Raises:
        UserError: It holds something else, or cannot be written.
    """
    check_folder(out)
    if not out.exists():
        return
    try:
        names = {path.name for path in out.iterdir() if path.name[0] != "."}
    except OSError as error:
        raise UserError(f"{out}: {reason(error)}.") from error
    for name in (SLICES, RUNS):
        refuse_links(out / name, within=out)
    if names - {SLICES} and DESIGN not in names:
        raise UserError(f"{out}: is not empty and holds no experiment; nothing was written.")


def _check_design(out: Path, grid: GridConfig, slices: LabelledSlices) -> None:
    """Make sure that settings, splits and data are those that the experiment began with, if it has begun.

    Models, methods, availability, test folds and repeats are not compared: they may differ from call to call.

    Raises:
        UserError: The folder holds another experiment, and where it differs.
    """
    path = out / DESIGN
    if path.exists():
        refuse_difference(path, read_json(path), _design(grid, slices))


def _write_design(out: Path, grid: GridConfig, slices: LabelledSlices) -> None:
    """Write settings, splits and digests of the data, or make sure that they are those of the file."""
    _check_design(out, grid, slices)
    if not (out / DESIGN).exists():
        write_json(out / DESIGN, _design(grid, slices))


def _design(grid: GridConfig, slices: LabelledSlices) -> dict[str, Any]:
    design = grid.training.as_dict()
    for name in ("model", "method", "seed"):  # each unit has its own
        del design[name]
    for name in ("folds", "validate", "split_seed", "scarce"):
        design[name] = getattr(grid, name)
    splits = [split_for(grid, slices, fold=fold) for fold in range(grid.folds)]
    design["splits"] = [split.as_dict() for split in splits]
    design["digests"] = dict(slices.digests)
    return design
