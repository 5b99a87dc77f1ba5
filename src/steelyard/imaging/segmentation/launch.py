"""From data and a config to a finished run directory, in one process or several."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from lightning.fabric import Fabric
from torch.multiprocessing.spawn import ProcessRaisedException

from steelyard.errors import UserError
from steelyard.imaging.segmentation.config import TrainingConfig
from steelyard.imaging.segmentation.data import LabelledSlices
from steelyard.imaging.segmentation.run import RunDirectory
from steelyard.imaging.segmentation.split import Split
from steelyard.imaging.segmentation.trainee import Trainee
from steelyard.imaging.segmentation.training import EpochRecord, fit, steps_per_epoch

Watch = Callable[[Iterator[EpochRecord]], None]


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """One run to train.

    Args:
        config: What it is.
        split: Who trains, validates, tests.
        slices: The data.
        out: The run directory.
    """

    config: TrainingConfig
    split: Split
    slices: LabelledSlices
    out: Path


def train(assignment: Assignment, fabric: Fabric | None = None) -> Iterator[EpochRecord]:
    """Train a run, or what is left of it, and yield each epoch once it is on disk.

    Raises:
        UserError: The folder holds another run, or the loss is not finite any more.
    """
    fabric = fabric or Fabric(accelerator="cpu", devices=1)
    run = RunDirectory(assignment.out)
    with run.claim():
        run.begin(assignment.config, assignment.split, assignment.slices.digests)
        if not run.finished:
            yield from _epochs(assignment, fabric)


def train_in_processes(assignment: Assignment, fabric: Fabric, watch: Watch) -> None:
    """Train a run in as many processes as the fabric has devices, each on its share of every batch.

    Args:
        assignment: The run.
        fabric: Launches the processes; its strategy spawns them.
        watch: Consumes the epochs, in the first process.

    Raises:
        UserError: As in `train`.
    """
    run = RunDirectory(assignment.out)
    with run.claim():
        run.begin(assignment.config, assignment.split, assignment.slices.digests)
        if run.finished:
            return
        try:
            fabric.launch(partial(_work, assignment=assignment, watch=watch))
        except ProcessRaisedException as error:
            mark = f"{UserError.__module__}.{UserError.__qualname__}: "
            said = [line for line in str(error).splitlines() if line.startswith(mark)]
            if not said:
                raise
            raise UserError(said[-1].removeprefix(mark)) from None


def _work(fabric: Fabric, assignment: Assignment, watch: Watch) -> None:
    epochs = _epochs(assignment, fabric)
    if fabric.is_global_zero:
        watch(epochs)
    else:
        for _ in epochs:
            pass


def _epochs(assignment: Assignment, fabric: Fabric) -> Iterator[EpochRecord]:
    config = assignment.config
    torch.set_num_threads(config.threads)
    run = RunDirectory(assignment.out)
    learned = assignment.slices.part(assignment.split, "train", config.trained)
    judged = assignment.slices.part(assignment.split, "validate", config.trained)
    trainee = Trainee(config, fabric, steps=steps_per_epoch(learned, config))
    run.resume(trainee, may_write=fabric.is_global_zero)
    for record in fit(trainee, learned, judged):
        if fabric.is_global_zero:
            run.record(trainee, record)
        yield record
    if fabric.is_global_zero:
        run.conclude(trainee)
