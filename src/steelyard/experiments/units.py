"""The units of a grid: each is one run that any process may do, any number of times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from time import monotonic

import torch

from steelyard.errors import UserError
from steelyard.experiments.grids import GridConfig
from steelyard.experiments.single_run import open_fabric
from steelyard.files.atomic import write_bytes
from steelyard.files.checks import parse_number, parse_whole
from steelyard.files.destinations import refuse_links
from steelyard.files.records import read_loose_rows
from steelyard.imaging.datasets.domains import contrast_of
from steelyard.imaging.datasets.prepared import read_prepared
from steelyard.imaging.datasets.subjects import Dataset
from steelyard.imaging.evaluate.evaluation import evaluate_test_subjects
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.runs.experiment_folder import SLICES, UnitKey
from steelyard.imaging.runs.run_folder import EPOCHS, METRICS, RunFolder
from steelyard.imaging.runs.slice_settings import SliceChoice
from steelyard.imaging.runs.split import Split, split_subjects, withhold
from steelyard.imaging.train.data import LabelledSlices, load_labelled
from steelyard.imaging.train.launch import TrainingJob, check_job, train


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One run: train, then judge the test subjects.

    Args:
        config: What is trained.
        split: On whom.
        availability: Its name, such as `8F` or `all`.
        fold: The test fold.
        data: The preprocessed dataset.
        out: The experiment folder.
        accelerator: What it is trained on.
    """

    config: TrainingConfig
    split: Split
    availability: str
    fold: int
    data: Path
    out: Path
    accelerator: str = "cpu"

    @property
    def key(self) -> UnitKey:
        """What identifies the unit within the experiment."""
        return UnitKey(
            model=self.config.model,
            availability=self.availability,
            method=self.config.method,
            fold=self.fold,
            repeat=self.config.seed,
        )

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.out / self.key.folder


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long a unit took in the process that finished it.

    Args:
        epochs: Those that this process trained; an earlier one may have trained others.
        steps: Of these epochs.
        training: Seconds for the steps alone.
        validation: Seconds for the rest of the training: preparation, validation, checkpoints.
        evaluation: Seconds for judging.
    """

    epochs: int
    steps: int
    training: float
    validation: float
    evaluation: float


def read_slices(grid: GridConfig, data: Path, out: Path | None = None) -> LabelledSlices:
    """Return the slices that a grid learns from, and keep them for the workers if the experiment has a folder."""
    cache = None
    if out is not None and out.is_dir():
        cache = out / SLICES
    return load_labelled(read_prepared(data), grid.training.slices, domains=grid.training.domains, cache=cache)


def move_slices(scratch: Path, out: Path) -> None:
    """Move slices that were read before the experiment had a folder into it."""
    for path in sorted((scratch / SLICES).glob("*")):
        write_bytes(out / SLICES / path.name, path.read_bytes(), within=out)
        path.unlink()


def plan(grid: GridConfig, slices: LabelledSlices, *, data: Path, out: Path, accelerator: str = "cpu") -> list[Unit]:
    """Return every unit of a grid.

    Raises:
        UserError: The data do not allow the design, or a run folder holds another run.
    """
    splits: dict[tuple[int, int | None], Split] = {}
    units = []
    for cell in grid.cells():
        key = (cell.fold, cell.availability)
        if key not in splits:
            splits[key] = split_for(grid, slices, fold=cell.fold, available=cell.availability)
        unit = Unit(
            config=replace(grid.training, model=cell.model, method=cell.method, seed=cell.repeat),
            split=splits[key],
            availability=grid.name_of(cell.availability),
            fold=cell.fold,
            data=data,
            out=out,
            accelerator=accelerator,
        )
        units.append(unit)
    for unit in units:
        refuse_links(unit.path, within=unit.out)
        RunFolder(unit.path).check_same(unit.config, unit.split, slices.digests)
    return units


def check_networks(units: Sequence[Unit], slices: LabelledSlices) -> None:
    """Make sure that every network of a grid can be built and takes the slices; write nothing.

    Raises:
        UserError: A network cannot be built, or cannot take the slices.
    """
    checked = set()
    for unit in units:
        if unit.config.model not in checked:
            check_job(TrainingJob(config=unit.config, split=unit.split, slices=slices, out=unit.path))
            checked.add(unit.config.model)


def do_unit(unit: Unit) -> Timing:
    """Do a unit, or what is left of it; a unit that is done is left alone.

    Raises:
        UserError: The run cannot be trained or judged.
    """
    refuse_links(unit.path, within=unit.out)
    torch.set_num_threads(unit.config.threads)
    config = unit.config
    slices = _slices(unit.data, config.slices, config.domains, unit.out / SLICES)
    fabric = open_fabric(unit.accelerator, 1)
    started = monotonic()
    job = TrainingJob(config=config, split=unit.split, slices=slices, out=unit.path)
    epochs, steps, training = 0, 0, 0.0
    for epoch in train(job, fabric):
        epochs += 1
        steps += len(epoch.steps)
        training += epoch.seconds
    trained = monotonic()
    if not (unit.path / METRICS).exists():
        evaluate_test_subjects(RunFolder(unit.path), _dataset(unit.data), model=config.model)
    return Timing(
        epochs=epochs,
        steps=steps,
        training=training,
        validation=trained - started - training,
        evaluation=monotonic() - trained,
    )


def split_for(grid: GridConfig, slices: LabelledSlices, *, fold: int, available: int | None = None) -> Split:
    """Return who trains, validates and tests, and whose scarce scans are withheld.

    Raises:
        UserError: There are too few subjects.
    """
    split = split_subjects(slices.subjects, folds=grid.folds, fold=fold, validate=grid.validate, seed=grid.split_seed)
    if available is None:
        return split
    owners: set[str] = set()
    for name, domain in slices.domains.items():
        if contrast_of(name) == grid.scarce:
            owners.update(domain.owners)
    try:
        return withhold(split, grid.scarce, keep=available, owners=sorted(owners), seed=grid.split_seed)
    except UserError as error:
        raise UserError(f"availability {grid.name_of(available)}, fold {fold}: {error}") from error


def is_done(path: Path) -> bool:
    """Whether a run folder holds a run that is trained and judged."""
    return RunFolder(path).finished and (path / METRICS).exists()


@dataclass(frozen=True)
class LastEpoch:
    """The last epoch that a run has finished.

    Args:
        epoch: Its number, from 0.
        losses: Of training, by domain.
    """

    epoch: int
    losses: Mapping[str, float]


def read_last_epoch(run: Path) -> LastEpoch | None:
    """Read the last epoch of a run that may be training; `None` if there is none, or its row is half written."""
    try:
        rows = read_loose_rows(run / EPOCHS)
        if not rows:
            return None
        losses = {}
        for name, text in rows[-1].items():
            if name.startswith("loss_") and text:
                losses[name.removeprefix("loss_")] = parse_number(name, text)
        return LastEpoch(parse_whole("epoch", rows[-1].get("epoch", "")), losses)
    except UserError:
        return None


@lru_cache(maxsize=1)
def _dataset(data: Path) -> Dataset:
    return read_prepared(data)


@lru_cache(maxsize=1)
def _slices(data: Path, choice: SliceChoice, domains: tuple[str, ...], cache: Path) -> LabelledSlices:
    """Read the slices once per process, whatever the number of units."""
    return load_labelled(_dataset(data), choice, domains=domains, cache=cache)
