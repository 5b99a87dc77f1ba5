"""`steelyard train`: one network for several domains."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from steelyard.cli.command import Command, say
from steelyard.errors import UserError
from steelyard.processes.children import blocked_signals

if TYPE_CHECKING:
    from steelyard.imaging.runs.config import TrainingConfig
    from steelyard.imaging.train.launch import Assignment
    from steelyard.imaging.train.training import EpochRecord


@dataclass(frozen=True)
class Train(Command):
    """Train one network on a preprocessed dataset: a model, a method, a split.

    A run that was stopped, however it was stopped, goes on where it was if the command is given again. The run
    directory holds everything: config.json, split.json, environment.json, epochs.csv, steps.csv with λ, hypothetical
    losses and vote of every step, best and last weights (safetensors), and what `steelyard evaluate` adds.
    """

    data: Annotated[Path, tyro.conf.Positional]
    """The derivatives that `steelyard preprocess` left."""
    run_directory: Annotated[Path, tyro.conf.Positional]
    """The folder for the run; new, or of a run that was stopped."""
    experiment: str = "standard"
    """The config to start from: paper (for a GPU), standard (two cores), desk or demo (minutes), smoke (seconds)."""
    method: str | None = None
    """equal, fixed-10-90 (any percentages), greedy-25, conservative-100 (any window), shift-greedy, flair-only, …"""
    model: str | None = None
    """unet, lightweight, monai:BasicUNet or package.module:callable."""
    width: int | None = None
    """Features at the network's first level."""
    epochs: int | None = None
    """At most so many; with a one-cycle schedule, exactly."""
    seed: int = 0
    """Settles initial weights, the order of the data and its changes."""
    folds: int = 5
    """Into how many parts the subjects are dealt; each takes its turn as the test subjects."""
    fold: int = 0
    """Whose turn it is."""
    validate: int | None = None
    """How many of the other subjects validate; as many as test if not said."""
    split_seed: int = 0
    """Settles who is in which fold."""
    threads: int = 1
    """Of the CPU; a part of the config, because bits depend on it."""
    set: tuple[str, ...] = ()
    """Any other setting as NAME=VALUE, such as learning_rate=0.001 slices.frame.pixel_mm=1.2 options.dropout=0.1."""
    accelerator: str = "cpu"
    """cpu, cuda, mps or auto."""
    devices: int = 1
    """How many processes share every batch."""
    tensorboard: bool = False
    """Write TensorBoard logs into the run directory, too."""
    cache: Path | None = None
    """A folder that keeps the slices between runs."""

    def run(self) -> int:
        """Read, split, train, say where the result is."""
        assignment = self.assign()
        say(_announce(assignment))
        self._train(assignment)
        say(f"{self.run_directory} is trained; steelyard evaluate {self.run_directory} {self.data} judges it")
        return 0

    def assign(self) -> "Assignment":
        """Read the data and say who trains what; nothing is written but the cache."""
        from steelyard.files.writing import check_folder
        from steelyard.imaging.runs.split import split_subjects
        from steelyard.imaging.train.data import load_labelled, read_prepared
        from steelyard.imaging.train.launch import Assignment

        check_folder(self.run_directory)
        if self.cache is not None:
            check_folder(self.cache)
        config = self._config()
        dataset = read_prepared(self.data)
        slices = load_labelled(dataset, config.slices, domains=config.domains, cache=self.cache)
        try:
            split = split_subjects(
                slices.subjects, folds=self.folds, fold=self.fold, validate=self.validate, seed=self.split_seed
            )
        except UserError as error:
            raise UserError(f"{self.data}: {error}") from error
        return Assignment(config=config, split=split, slices=slices, out=self.run_directory)

    def _train(self, assignment: "Assignment") -> None:
        from steelyard.files.writing import refuse_links
        from steelyard.imaging.train.launch import train, train_in_processes

        fabric = open_fabric(self.accelerator, self.devices)
        logs = self.run_directory / "tensorboard" if self.tensorboard else None
        if logs is not None:
            refuse_links(logs, within=self.run_directory)
        watch = _Watch(assignment.config.epochs, logs)
        if self.devices > 1:
            with blocked_signals():
                train_in_processes(assignment, fabric, watch)
        else:
            watch(train(assignment, fabric))

    def _config(self) -> "TrainingConfig":
        from steelyard.experiments.configs import profile_named
        from steelyard.imaging.runs.settings import with_settings

        given = {name: getattr(self, name) for name in ("model", "width", "epochs")}
        config = replace(
            profile_named(self.experiment),
            seed=self.seed,
            threads=self.threads,
            devices=self.devices,
            **{name: value for name, value in given.items() if value is not None},
        )
        method = () if self.method is None else (f"method={self.method}",)
        return with_settings(config, (*method, *self.set))


@dataclass(frozen=True)
class _Watch:
    """Shows the epochs as they come; a class, so that another process can be given it."""

    epochs: int
    tensorboard: Path | None

    def __call__(self, records: "Iterator[EpochRecord]") -> None:
        from steelyard.cli.progress import track

        if self.tensorboard is not None:
            from steelyard.imaging.train.tensorboard import logged

            records = logged(records, self.tensorboard)
        track((_told(record) for record in records), total=self.epochs, title="Training")


def _told(record: "EpochRecord") -> str:
    losses = record.validation or record.losses
    shown = ", ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
    weights = ", ".join(f"{weight:.2f}" for weight in record.steps[-1].weights.values())
    return f"epoch {record.epoch + 1}: {'validation' if record.validation else 'training'} {shown}; weights {weights}"


def _announce(assignment: "Assignment") -> str:
    config, split = assignment.config, assignment.split
    counts = ", ".join(f"{len(domain)} of {name}" for name, domain in assignment.slices.domains.items())
    return (
        f"{config.method.name}, {config.model} of width {config.width}: {len(split.train)} subjects to train, "
        f"{len(split.validate)} to validate, {len(split.test)} to test; {counts} slices in all"
    )


def open_fabric(accelerator: str, devices: int) -> Any:
    """Return what training runs on.

    Raises:
        UserError: This machine has no such device, or too few.
    """
    import warnings

    from lightning.fabric import Fabric

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Fabric(accelerator=accelerator, devices=devices, strategy="ddp_spawn" if devices > 1 else "auto")
    except (ValueError, RuntimeError, ImportError) as error:
        raise UserError(f"accelerator {accelerator}: {error}") from error
