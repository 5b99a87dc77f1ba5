"""What an experiment is: a grid of runs, and named ones to start from."""

import re
from dataclasses import dataclass, replace

from steelyard.errors import UserError
from steelyard.experiments import configs as profiles
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.runs.method import PAPER, Method

_MOST_FOLDS = 1000  # each is trained for; more would fill memory with runs that nobody waits for


@dataclass(frozen=True, kw_only=True)
class GridConfig:
    """Models × availabilities × methods × folds × repeats; the defaults are the paper's.

    Args:
        training: What all runs have in common; model, method and seed are each run's own.
        models: The networks.
        methods: How the domains are weighed.
        single_domain_models: The networks that `NAME-only` methods are run with, at the first availability: the
            paper's are, with the U-Net and everyone's scans.
        availability: How many training subjects' scans of the scarce contrast are learned from; `None` for all.
        scarce: The contrast that `availability` is about.
        folds: Into how many parts the subjects are dealt; each takes its turn as the test subjects.
        turns: Which folds' turns are run; every fold's if not given.
        repeats: The seeds; the runs of one fold and repeat share split, initial weights and order of the data.
        validate: How many of the other subjects validate; as many as test if not given.
        split_seed: Settles who is in which fold, and whose scarce scans are learned from.
    """

    training: TrainingConfig
    models: tuple[str, ...] = ("unet", "lightweight")
    methods: tuple[str, ...] = tuple(method.name for method in PAPER)
    single_domain_models: tuple[str, ...] = ("unet",)
    availability: tuple[int | None, ...] = (None, 8)
    scarce: str = "flair"
    folds: int = 5
    turns: tuple[int, ...] | None = None
    repeats: tuple[int, ...] = (0, 1, 2, 3, 4)
    validate: int | None = None
    split_seed: int = 0

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise UserError(f"folds must be at least 2, or nobody is left for the test; got {self.folds}.")
        if self.folds > _MOST_FOLDS:
            raise UserError(f"folds must be at most {_MOST_FOLDS}; got {self.folds}.")
        for turn in self.turns or ():
            if not 0 <= turn < self.folds:
                raise UserError(f"fold must lie within 0 to {self.folds - 1}; got {turn}.")
        for name in ("models", "methods", "availability", "turns", "repeats"):
            held = getattr(self, name)
            if held is not None and (not held or len(set(held)) < len(held)):
                raise UserError(f"{name} must name at least one, and none twice; got {held}.")
        for number in self.availability:
            if number is not None and number < 1:
                raise UserError(f"availability must be all or at least 1; got {number}.")
        for cell in self.cells():
            replace(self.training, model=cell.model, method=self.parse(cell.method), seed=cell.repeat)

    def cells(self) -> "list[Cell]":
        """Return the grid, block by block; within a block repeat by repeat, so that early results are balanced."""
        turns = range(self.folds) if self.turns is None else self.turns
        return [
            Cell(model=model, availability=number, method=method, fold=fold, repeat=repeat)
            for model in self.models
            for number in self.availability
            for repeat in self.repeats
            for fold in turns
            for method in self.methods
            if self._wanted(model, method, number)
        ]

    def _wanted(self, model: str, method: str, number: int | None) -> bool:
        if not self.parse(method).is_single:
            return True
        return model in self.single_domain_models and number == self.availability[0]

    def parse(self, method: str) -> Method:
        """Return the method of a name; refuse one that cannot weigh the grid's domains."""
        return Method.parse(method, self.training.domains)

    def name_of(self, number: int | None) -> str:
        """Return an availability as the paper writes it.

        >>> paper().name_of(8), paper().name_of(None)
        ('8F', 'all')
        """
        return "all" if number is None else f"{number}{self.scarce[0].upper()}"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run's place in the grid."""

    model: str
    availability: int | None
    method: str
    fold: int
    repeat: int


def read_availability(text: str, *, scarce: str = "flair") -> int | None:
    """Return the number that `8F` or `all` names.

    Args:
        text: `all`, or a number, with the first letter of the scarce contrast or without.
        scarce: The contrast that is made scarce.

    Raises:
        UserError: It is neither, or has the letter of another contrast.

    >>> read_availability("8F"), read_availability("all")
    (8, None)
    """
    if text == "all":
        return None
    letter = scarce[0].upper()
    found = re.fullmatch(r"([0-9]{1,6})([A-Z]?)", text)
    if found is None:
        raise UserError(f"availability must be all, or a number such as 8{letter}; got {text!r}.")
    if found[2] not in ("", letter):
        raise UserError(f"availability {text}: only {scarce} scans can be made scarce; write {found[1]}{letter}.")
    return int(found[1])


def paper() -> GridConfig:
    """The paper's experiment: both networks, 12F and 8F, 5 folds × 5 repeats, 9 methods and the single-domain rows."""
    return GridConfig(training=profiles.paper())


def desk() -> GridConfig:
    """The paper's design with small networks on small planes: for two cores; `--dry-run` says how long."""
    return GridConfig(training=profiles.desk())


def smoke() -> GridConfig:
    """Every kind of method on 3 folds, in seconds a run; it learns next to nothing."""
    return GridConfig(
        training=profiles.smoke(),
        models=("unet",),
        methods=("equal", "shift-conservative", "conservative-25", "flair-only"),
        availability=(None, 2),
        folds=3,
        repeats=(0,),
        validate=1,
    )


DESIGNS = {"paper": paper, "desk": desk, "smoke": smoke}
"""By name."""


def design_named(name: str) -> GridConfig:
    """Return a design, or say which there are."""
    if name not in DESIGNS:
        raise UserError(f"experiment must be one of {', '.join(DESIGNS)}; got {name}.")
    return DESIGNS[name]()
