"""`steelyard train`: one network for several domains."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from steelyard.cli.command import Command, default, say
from steelyard.imaging.networks.accelerator import Accelerator

if TYPE_CHECKING:
    from steelyard.imaging.train.launch import TrainingJob
    from steelyard.imaging.train.records import EpochRecord


@dataclass(frozen=True)
class Train(Command):
    """Train one network for several domains on a preprocessed dataset.

    Give the command again to resume a run that was stopped. The run folder holds everything: config.json,
    split.json, environment.json, epochs.csv, steps.csv with λ, hypothetical losses and vote of every step, audit.json
    of methods that vote, best and last weights (safetensors), and the metrics of `steelyard evaluate`.
    """

    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """The output folder of `steelyard preprocess`."""
    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """The folder for the run: new, or of a run that was stopped."""
    experiment: str = "standard"
    """The config to start from: paper (for a GPU), standard (two cores), desk, glioma or demo (minutes), smoke
    (seconds)."""
    method: Annotated[str | None, default("the config's; equal in all")] = None
    """How the domains are weighed: equal, fixed-10-90, greedy-25, conservative-25 (any window), shift-greedy, dwa,
    flair-only, …; the paper's names (F50-T50, Ours-C-25) are read, too."""
    model: Annotated[str | None, default("the config's; unet in all")] = None
    """unet, lightweight, monai:BasicUNet or package.module:callable."""
    width: Annotated[int | None, default("the config's; 16 in standard")] = None
    """Features at the network's first level."""
    epochs: Annotated[int | None, default("the config's; 60 in standard")] = None
    """The maximum number of epochs; with a one-cycle schedule, the exact number."""
    seed: int = 0
    """Decides initial weights, the order of the data and its augmentation."""
    folds: int = 5
    """The number of parts that the subjects are divided into; one of them is the test fold."""
    fold: int = 0
    """The test fold, from 0."""
    validate: Annotated[int | None, default("as many as test")] = None
    """How many of the other subjects validate."""
    split_seed: int = 0
    """Decides who is in which fold."""
    threads: int = 1
    """CPU threads; a part of the config, because results depend on it in the last bits."""
    set: Annotated[tuple[str, ...], default("none", metavar="NAME=VALUE…")] = ()
    """Any other setting as NAME=VALUE, such as learning_rate=0.001 slices.frame.pixel_mm=1.2 options.dropout=0.1."""
    accelerator: Accelerator = "auto"
    """What the network is trained on. auto: cuda if this machine has it, otherwise cpu; a run that is resumed stays on
    what it was trained on. cuda is untested. mps cannot take the votes of learned weights."""
    devices: int = 1
    """The number of processes that share every batch."""
    tensorboard: bool = False
    """Write TensorBoard logs into the run folder as well."""
    cache: Annotated[Path | None, default("none")] = None
    """A folder that keeps the slices between runs."""

    def run(self) -> int:
        """Read, split, train, say where the result is."""
        from steelyard.experiments.single_run import train_run
        from steelyard.imaging.networks.accelerator import choose_accelerator

        choose_accelerator(self.accelerator)  # before data are read, which may take long
        job = self.job()
        say(_announce(job))
        logs = self.run_folder / "tensorboard" if self.tensorboard else None
        watch = _Watch(job.config.epochs, logs)
        train_run(job, watch, accelerator=self.accelerator, logs=logs)
        say(f"{self.run_folder} is trained; steelyard evaluate {self.run_folder} {self.data} judges it")
        return 0

    def job(self) -> "TrainingJob":
        """Return the run that the options describe."""
        from steelyard.experiments.single_run import SplitChoice, choose_config, prepare_job

        names = ("method", "model", "width", "epochs", "seed", "threads", "devices")
        changes = {name: getattr(self, name) for name in names}
        config = choose_config(self.experiment, self.set, changes)
        choice = SplitChoice(folds=self.folds, fold=self.fold, validate=self.validate, seed=self.split_seed)
        return prepare_job(config, self.data, self.run_folder, choice, cache=self.cache)


@dataclass(frozen=True)
class _Watch:
    """Shows the epochs as they come; a class, so that it can be sent to another process."""

    epochs: int
    logs: Path | None

    def __call__(self, records: "Iterator[EpochRecord]") -> None:
        from steelyard.cli.progress import track

        if self.logs is not None:
            from steelyard.imaging.train.records import log_to_tensorboard

            records = log_to_tensorboard(records, self.logs)
        track((_describe(record) for record in records), total=self.epochs, title="Training")


def _describe(record: "EpochRecord") -> str:
    """Return an epoch in one line; without validation subjects, with the training losses."""
    kind, losses = "training", record.losses
    if record.validation:
        kind, losses = "validation", record.validation
    listed = ", ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
    weights = ", ".join(f"{weight:.2f}" for weight in record.steps[-1].weights.values())
    return f"epoch {record.epoch + 1}: {kind} {listed}; weights {weights}"


def _announce(job: "TrainingJob") -> str:
    config, split = job.config, job.split
    counts = ", ".join(f"{len(domain)} of {name}" for name, domain in job.slices.domains.items())
    return (
        f"{config.method.name}, {config.model} of width {config.width}: {len(split.train)} subjects to train, "
        f"{len(split.validate)} to validate, {len(split.test)} to test; {counts} slices in all"
    )
