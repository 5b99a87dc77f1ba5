"""The design of an experiment: a grid of units. Named designs to start from."""

import re
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from steelyard.errors import UserError
from steelyard.experiments import configs
from steelyard.files.checks import check_choice
from steelyard.imaging.runs.config import TrainingConfig, with_settings
from steelyard.imaging.runs.method import PAPER, Method

_MOST_FOLDS = 1000  # every fold adds units; more would fill the memory before the first one runs


@dataclass(frozen=True, kw_only=True)
class GridConfig:
    """Models × availabilities × methods × folds × repeats; the defaults are the paper's.

    Args:
        training: What all units have in common; model, method and seed are set for each unit.
        models: The networks.
        methods: How the domains are weighed; names of methods are accepted, too.
        single_domain_models: The networks that `NAME-only` methods are run with, at the first availability: in the
            paper the U-Net, with everyone's scans.
        availability: How many training subjects' scans of the scarce contrast are learned from; `None` for all.
        scarce: The contrast that `availability` is about.
        folds: The number of parts that the subjects are divided into; each is the test fold once.
        test_folds: Only these folds are tested on; by default every fold.
        repeats: The seeds; the units of one fold and repeat share split, initial weights and order of the data.
        validate: How many of the other subjects validate; by default as many as test.
        split_seed: Decides who is in which fold, and whose scarce scans are learned from.
    """

    training: TrainingConfig
    models: tuple[str, ...] = ("unet", "lightweight")
    methods: tuple[Method, ...] = PAPER
    single_domain_models: tuple[str, ...] = ("unet",)
    availability: tuple[int | None, ...] = (None, 8)
    scarce: str = "flair"
    folds: int = 5
    test_folds: tuple[int, ...] | None = None
    repeats: tuple[int, ...] = (0, 1, 2, 3, 4)
    validate: int | None = None
    split_seed: int = 0

    def __post_init__(self) -> None:
        self._check_folds()
        # The dataclass is frozen.
        object.__setattr__(self, "methods", tuple(self._parse(method) for method in self.methods))
        for name in ("models", "availability", "repeats"):
            _check_choices(name, getattr(self, name))
        _check_choices("methods", tuple(method.name for method in self.methods))
        for number in self.availability:
            if number is not None and number < 1:
                raise UserError(f"availability must be all or at least 1; got {number}.")
        for cell in self.cells():  # a config checks itself
            replace(self.training, model=cell.model, method=cell.method, seed=cell.repeat)

    def _check_folds(self) -> None:
        if self.folds < 2:
            raise UserError(f"folds must be at least 2, or nobody is left for the test; got {self.folds}.")
        if self.folds > _MOST_FOLDS:
            raise UserError(f"folds must be at most {_MOST_FOLDS}; got {self.folds}.")
        if self.test_folds is None:
            return
        _check_choices("test_folds", self.test_folds)
        for fold in self.test_folds:
            if not 0 <= fold < self.folds:
                raise UserError(f"fold must lie within 0 to {self.folds - 1}; got {fold}.")

    def cells(self) -> "list[Cell]":
        """Return the grid, block by block; within a block repeat by repeat, so that early results are balanced."""
        test_folds = self.test_folds
        if test_folds is None:
            test_folds = tuple(range(self.folds))
        cells = []
        for model, number in product(self.models, self.availability):
            methods = [method for method in self.methods if self._includes(model, method, number)]
            for repeat, fold, method in product(self.repeats, test_folds, methods):
                cells.append(Cell(model=model, availability=number, method=method, fold=fold, repeat=repeat))
        return cells

    def _parse(self, method: Method | str) -> Method:
        if isinstance(method, Method):
            return method
        return Method.parse(method, self.training.domains)

    def _includes(self, model: str, method: Method, number: int | None) -> bool:
        """Whether a method is run with a network at an availability."""
        if not method.is_single:
            return True
        return model in self.single_domain_models and number == self.availability[0]

    def name_of(self, number: int | None) -> str:
        """Return an availability as the paper writes it.

        >>> paper().name_of(8), paper().name_of(None)
        ('8F', 'all')
        """
        if number is None:
            return "all"
        return f"{number}{self.scarce[0].upper()}"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One unit of the grid."""

    model: str
    availability: int | None
    method: Method
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
    match = re.fullmatch(r"([0-9]{1,6})([A-Z]?)", text)
    if match is None:
        raise UserError(f"availability must be all, or a number such as 8{letter}; got {text!r}.")
    if match[2] not in ("", letter):
        raise UserError(f"availability {text}: only {scarce} scans can be made scarce; write {match[1]}{letter}.")
    return int(match[1])


def _check_choices(name: str, values: tuple[object, ...]) -> None:
    if not values or len(set(values)) < len(values):
        raise UserError(f"{name} must name at least one, and none twice; got {values}.")


def paper() -> GridConfig:
    """The paper's experiment: both networks, 12F and 8F, 5 folds × 5 repeats, 9 methods and the single-domain rows."""
    return GridConfig(training=configs.paper())


def desk() -> GridConfig:
    """The paper's design with small networks on small planes, for two cores."""
    return GridConfig(training=configs.desk())


def glioma() -> GridConfig:
    """Patients with glioma, the U-Net of width 8, two repeats; `--set options.norm=instance` for the other network."""
    names = ("equal", "greedy-25", "conservative-25", "evidence", "fixed-25-75", "fixed-75-25", "flair-only", "t1-only")
    return GridConfig(
        training=configs.glioma(),
        models=("unet",),
        methods=tuple(map(Method.parse, names)),
        availability=(None,),
        repeats=(0, 1),
    )


def smoke() -> GridConfig:
    """Every kind of method on 3 folds; a unit takes seconds and learns next to nothing."""
    return GridConfig(
        training=configs.smoke(),
        models=("unet",),
        methods=tuple(map(Method.parse, ("equal", "shift-conservative", "conservative-25", "flair-only"))),
        availability=(None, 2),
        folds=3,
        repeats=(0,),
        validate=1,
    )


DESIGNS = {"paper": paper, "desk": desk, "glioma": glioma, "smoke": smoke}
"""The designs, by name."""


def design_named(name: str) -> GridConfig:
    """Return the design of this name.

    Raises:
        UserError: There is none.
    """
    check_choice("design", name, tuple(DESIGNS))
    return DESIGNS[name]()


@dataclass(frozen=True, kw_only=True)
class GridChanges:
    """What a user changes of a design; what is empty or `None` stays as in the design.

    Args:
        models: Only these networks.
        methods: Names of methods; single-domain methods among them are run with all networks.
        availability: `all`, or numbers such as `8F`.
        folds: The number of parts that the subjects are divided into.
        test_folds: Only these test folds.
        repeats: Only these seeds.
        domains: The domains to train on and to test.
        validate: How many subjects validate.
        split_seed: Decides who is in which fold.
        threads: CPU threads of each unit.
        settings: Settings of the training as `NAME=VALUE`.
    """

    models: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    availability: tuple[str, ...] = ()
    folds: int | None = None
    test_folds: tuple[int, ...] = ()
    repeats: tuple[int, ...] = ()
    domains: tuple[str, ...] = ()
    validate: int | None = None
    split_seed: int = 0
    threads: int = 1
    settings: tuple[str, ...] = ()


def choose_grid(name: str, changes: GridChanges) -> GridConfig:
    """Return a named design with changes.

    Raises:
        UserError: There is no such design, or a change makes no sense.
    """
    design = design_named(name)
    fields: dict[str, Any] = {"split_seed": changes.split_seed}
    for field in ("models", "test_folds", "repeats", "folds", "validate"):
        value = getattr(changes, field)
        if value not in ((), None):
            fields[field] = value
    if changes.availability:
        numbers = [read_availability(text, scarce=design.scarce) for text in changes.availability]
        fields["availability"] = tuple(numbers)
    domains = changes.domains or design.training.domains
    if changes.methods:
        fields["methods"] = tuple(Method.parse(method, domains) for method in changes.methods)
        # Single-domain methods that are asked for are run with all networks.
        fields["single_domain_models"] = changes.models or design.models
    training = replace(design.training, threads=changes.threads, domains=domains)
    return replace(design, training=with_settings(training, changes.settings), **fields)
