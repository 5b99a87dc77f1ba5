"""From data and a config to a finished run directory."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from lightning.fabric import Fabric

from steelyard.imaging.segmentation.config import TrainingConfig
from steelyard.imaging.segmentation.data import LabelledSlices
from steelyard.imaging.segmentation.run import RunDirectory
from steelyard.imaging.segmentation.split import Split
from steelyard.imaging.segmentation.trainee import Trainee
from steelyard.imaging.segmentation.training import EpochRecord, fit, steps_per_epoch


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
    config, split = assignment.config, assignment.split
    fabric = fabric or Fabric(accelerator="cpu", devices=1)
    torch.set_num_threads(config.threads)
    run = RunDirectory(assignment.out)
    learned = assignment.slices.part(split, "train", config.trained)
    judged = assignment.slices.part(split, "validate", config.trained)
    with run.claim():
        run.begin(config, split, assignment.slices.digests)
        if run.finished:
            return
        trainee = Trainee(config, fabric, steps=steps_per_epoch(learned, config))
        run.resume(trainee)
        for record in fit(trainee, learned, judged):
            run.record(trainee, record)
            yield record
        run.conclude(trainee)
