"""The runs of a grid, each an independent piece of work that may be done anywhere, any number of times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from time import monotonic

import torch
from lightning.fabric import Fabric

from steelyard.errors import UserError
from steelyard.experiments.grids import GridConfig
from steelyard.files.writing import refuse_links, write_bytes
from steelyard.imaging.datasets.bids import Dataset
from steelyard.imaging.datasets.domains import contrast_of
from steelyard.imaging.evaluate.judging import judge_test_subjects
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.runs.run_folder import METRICS, RunFolder
from steelyard.imaging.runs.slice_settings import SliceChoice
from steelyard.imaging.runs.split import Split, split_subjects, withhold
from steelyard.imaging.train.data import LabelledSlices, load_labelled, read_prepared
from steelyard.imaging.train.launch import Assignment, rehearse, train

RUNS, CACHE = "runs", "slices"


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One run: train, then judge the test subjects.

    Args:
        config: What is trained.
        split: On whom.
        availability: Its name, such as `8F` or `all`.
        fold: Whose turn it is to test.
        data: The preprocessed dataset.
        out: The folder of the experiment.
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
    def identity(self) -> dict[str, object]:
        """What the tables call the run."""
        return {
            "model": self.config.model,
            "availability": self.availability,
            "method": self.config.method.name,
            "fold": self.fold,
            "repeat": self.config.seed,
        }

    @property
    def path(self) -> Path:
        """The run directory."""
        return run_path(self.out, self.identity)

    @property
    def name(self) -> str:
        """The run in a few words."""
        return (
            f"{self.config.model} {self.availability} {self.config.method.name} "
            f"fold {self.fold} repeat {self.config.seed}"
        )

    @property
    def done(self) -> bool:
        """Whether it is trained and judged."""
        return is_done(self.path)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long a run took in the process that finished it.

    Args:
        epochs: Those that this process trained; an earlier one may have trained others.
        steps: Of these epochs.
        training: Seconds for the steps alone.
        validation: Seconds for the rest of the training: setting out, validation, checkpoints.
        evaluation: Seconds for judging.
    """

    epochs: int
    steps: int
    training: float
    validation: float
    evaluation: float


def read_slices(grid: GridConfig, data: Path, out: Path | None = None) -> LabelledSlices:
    """Return the slices that a grid learns from; a folder that is there keeps them for the workers."""
    cache = out / CACHE if out is not None and out.is_dir() else None
    return load_labelled(read_prepared(data), grid.training.slices, domains=grid.training.domains, cache=cache)


def keep_slices(scratch: Path, out: Path) -> None:
    """Move slices that were read before the experiment had a folder into it."""
    for path in sorted((scratch / CACHE).glob("*")):
        write_bytes(out / CACHE / path.name, path.read_bytes(), within=out)
        path.unlink()


def plan(grid: GridConfig, slices: LabelledSlices, *, data: Path, out: Path, accelerator: str = "cpu") -> list[Unit]:
    """Return every run of a grid.

    Raises:
        UserError: The data do not allow the design, or a run directory holds another run.
    """
    splits: dict[tuple[int, int | None], Split] = {}
    units = []
    for cell in grid.cells():
        place = (cell.fold, cell.availability)
        if place not in splits:
            splits[place] = split_for(grid, slices, fold=cell.fold, available=cell.availability)
        units.append(
            Unit(
                config=replace(grid.training, model=cell.model, method=grid.parse(cell.method), seed=cell.repeat),
                split=splits[place],
                availability=grid.name_of(cell.availability),
                fold=cell.fold,
                data=data,
                out=out,
                accelerator=accelerator,
            )
        )
    for unit in units:
        refuse_links(unit.path, within=unit.out)
        RunFolder(unit.path).check_same(unit.config, unit.split, slices.digests)
    return units


def check_networks(units: Sequence[Unit], slices: LabelledSlices) -> None:
    """Make sure that every network of a grid can be built and takes the slices; write nothing.

    Raises:
        UserError: One cannot.
    """
    first = {unit.config.model: unit for unit in reversed(units)}
    for unit in first.values():
        rehearse(Assignment(config=unit.config, split=unit.split, slices=slices, out=unit.path))


def do_unit(unit: Unit) -> Timing:
    """Do a run, or what is left of it; a run that is done is left alone.

    Raises:
        UserError: The run cannot be trained or judged.
    """
    refuse_links(unit.path, within=unit.out)
    torch.set_num_threads(unit.config.threads)
    config = unit.config
    slices = _slices(unit.data, config.slices, config.domains, unit.out / CACHE)
    fabric = Fabric(accelerator=unit.accelerator, devices=1)
    started = monotonic()
    assignment = Assignment(config=config, split=unit.split, slices=slices, out=unit.path)
    epochs = [(len(epoch.steps), epoch.seconds) for epoch in train(assignment, fabric)]
    trained = monotonic()
    if not (unit.path / METRICS).exists():
        judge_test_subjects(RunFolder(unit.path), _dataset(unit.data), model=config.model)
    training = sum(seconds for _, seconds in epochs)
    return Timing(
        epochs=len(epochs),
        steps=sum(steps for steps, _ in epochs),
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
    scarce = [domain for name, domain in slices.domains.items() if contrast_of(name) == grid.scarce]
    owners = {owner for domain in scarce for owner in domain.owners}
    try:
        return withhold(split, grid.scarce, keep=available, owners=sorted(owners), seed=grid.split_seed)
    except UserError as error:
        raise UserError(f"availability {grid.name_of(available)}, fold {fold}: {error}") from error


def run_path(out: Path, run: Mapping[str, object]) -> Path:
    """Return the run directory of what the tables call by model, availability, method, fold and repeat."""
    block = f"{_as_name(str(run['model']))}-{run['availability']}"
    return out / RUNS / block / _as_name(str(run["method"])) / f"fold-{run['fold']}_repeat-{run['repeat']}"


def is_done(path: Path) -> bool:
    """Whether the run in a directory is trained and judged."""
    return RunFolder(path).finished and (path / METRICS).exists()


@lru_cache(maxsize=1)
def _dataset(data: Path) -> Dataset:
    return read_prepared(data)


@lru_cache(maxsize=1)
def _slices(data: Path, choice: SliceChoice, domains: tuple[str, ...], cache: Path) -> LabelledSlices:
    """Read the slices once a process, whatever the number of runs."""
    return load_labelled(_dataset(data), choice, domains=domains, cache=cache)


def _as_name(text: str) -> str:
    """Return a text as a name that every file system takes.

    >>> _as_name("monai:BasicUNet")
    'monai_BasicUNet'
    """
    return "".join(letter if letter.isalnum() or letter in "-.@" else "_" for letter in text)
