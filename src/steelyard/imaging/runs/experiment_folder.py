"""The experiment folder: the names of its files, the key columns of its tables, and where each run lies.

| name | content |
| --- | --- |
| experiment.json | the settings and splits that all runs share |
| results.csv | every metric of every run, test subject and domain |
| timings.csv | how long each run took |
| failures.csv | which runs failed, and why |
| runs/MODEL-AVAILABILITY/METHOD/fold-F_repeat-R/ | one run folder each |
| slices/ | slices that were cut once for all runs |
| votes/ | the votes of runs that were retraced |
| agreement.json, agreement.csv, agreement.md | how far cheaper votes agree with exact ones |
| curves.csv.gz | losses and weights of every run and epoch |
| tables.md, figures.png | all tables, and all figures, on one page |
| tables/, figures/, report.html | the report |

What a repository keeps of an experiment: experiment.json, results.csv, curves.csv.gz, tables.md and figures.png.
"""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from steelyard.errors import UserError
from steelyard.files.atomic import remove, write_text
from steelyard.files.checks import brief, is_name, parse_number, parse_whole
from steelyard.files.records import as_csv, read_loose_rows, read_rows
from steelyard.imaging.networks.build import NAMES
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.runs.method import Method

DESIGN, RESULTS, TIMINGS, FAILURES = "experiment.json", "results.csv", "timings.csv", "failures.csv"
RUNS, SLICES, VOTES = "runs", "slices", "votes"
TABLES, FIGURES, REPORT = "tables", "figures", "report.html"
TABLES_PAGE, FIGURES_PAGE = "tables.md", "figures.png"
AGREEMENT, AGREEMENT_TABLE, AGREEMENT_PAGE = "agreement.json", "agreement.csv", "agreement.md"

KEYS = ("model", "availability", "method", "fold", "repeat")
"""The columns that identify a run in every table."""

RUN_PATTERN = f"{RUNS}/*/*/fold-*_repeat-*"
"""Matches the run folders within an experiment folder."""

_RUN_NAME = re.compile(r"fold-([0-9]+)_repeat-([0-9]+)")
_SHORTEST = 1e-9  # seconds; no training step is shorter
_LONGEST = 1e12  # seconds; no run takes so long


@dataclass(frozen=True, kw_only=True)
class UnitKey:
    """What identifies a run within an experiment.

    Args:
        model: The network.
        availability: How much data it was trained on: `all`, or `8F` for eight subjects with a FLAIR scan.
        method: How the domains were weighed.
        fold: The test fold, from 0.
        repeat: The seed.
    """

    model: str
    availability: str
    method: Method
    fold: int
    repeat: int

    @classmethod
    def parse(cls, cells: Mapping[str, str], *, place: str) -> "UnitKey":
        """Return the key in a row of a table; any name of a method is read.

        Args:
            cells: The row, by column.
            place: Where the row stands, for messages.

        Raises:
            UserError: A cell is missing or impossible.

        >>> row = dict(zip(KEYS, ("unet", "8F", "Ours-C-25", "0", "3"), strict=True))
        >>> str(UnitKey.parse(row, place="results.csv, line 2"))
        'unet 8F conservative-25 fold 0 repeat 3'
        """
        for column in ("model", "availability", "method"):
            text = cells.get(column, "")
            if not text:
                raise UserError(f"{place}: {column} is empty.")
            if not is_name(text):
                raise UserError(f"{place}: {column} must be of at most 255 printable characters; got {brief(text)}.")
        return cls(
            model=cells["model"],
            availability=cells["availability"],
            method=Method.parse_or_unknown(cells["method"]),
            fold=parse_whole(f"{place}: fold", cells.get("fold", "")),
            repeat=parse_whole(f"{place}: repeat", cells.get("repeat", "")),
        )

    @classmethod
    def of_run(cls, path: Path, config: TrainingConfig) -> "UnitKey":
        """Return the key of a run, from its folder's path and its config.

        The names of folders do not suffice: they replace characters that a file system may not take.

        Raises:
            UserError: The folder does not lie in an experiment.
        """
        match = _RUN_NAME.fullmatch(path.name)
        if match is None:
            raise UserError(f"{path}: is not a run of an experiment.")
        availability = path.absolute().parents[1].name.rpartition("-")[2]
        return cls(
            model=config.model,
            availability=availability,
            method=config.method,
            fold=int(match[1]),
            repeat=config.seed,
        )

    @property
    def row(self) -> dict[str, str]:
        """The cells of the key columns."""
        cells = (self.model, self.availability, self.method.name, str(self.fold), str(self.repeat))
        return dict(zip(KEYS, cells, strict=True))

    @property
    def folder(self) -> Path:
        """The run folder, relative to the experiment folder.

        >>> key = UnitKey(model="monai:UNet", availability="all", method=Method.parse("equal"), fold=1, repeat=0)
        >>> key.folder.as_posix()
        'runs/monai_UNet-all/equal/fold-1_repeat-0'
        """
        setting = f"{as_folder_name(self.model)}-{self.availability}"
        run_name = f"fold-{self.fold}_repeat-{self.repeat}"
        return Path(RUNS, setting, as_folder_name(self.method.name), run_name)

    @property
    def order(self) -> tuple[object, ...]:
        """A key that sorts runs as tables show them: built-in networks first, much data before little."""
        number = self.availability.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
        subjects = math.inf  # `all` and other names come before any number
        if number.isascii() and number.isdecimal():
            subjects = int(number)
        return (model_order(self.model), -subjects, self.method.order, self.fold, self.repeat)

    def __str__(self) -> str:
        return f"{self.model} {self.availability} {self.method.name} fold {self.fold} repeat {self.repeat}"


@dataclass(frozen=True, kw_only=True)
class RunTiming:
    """How long a run took.

    Args:
        steps: How many training steps were timed.
        seconds_per_step: Of the training steps alone.
        validation_seconds: What an epoch took besides its steps.
        evaluation_seconds: What the test subjects took.
    """

    steps: int
    seconds_per_step: float
    validation_seconds: float
    evaluation_seconds: float


_TIMING_COLUMNS = tuple(column.name for column in fields(RunTiming))


def read_timings(path: Path) -> dict[UnitKey, RunTiming]:
    """Read a table of timings, which has `KEYS` and the fields of `RunTiming` as columns.

    Raises:
        UserError: The file cannot be read or is not such a table, with the line where there is one.
    """
    timings: dict[UnitKey, RunTiming] = {}
    for line, cells in read_rows(path, (*KEYS, *_TIMING_COLUMNS)):
        key = UnitKey.parse(cells, place=line)
        if key in timings:
            raise UserError(f"{line}: {key} is there twice.")
        timings[key] = RunTiming(
            steps=parse_whole(f"{line}: steps", cells["steps"]),
            seconds_per_step=_parse_step_time(line, cells["seconds_per_step"]),
            validation_seconds=_parse_seconds(line, "validation_seconds", cells),
            evaluation_seconds=_parse_seconds(line, "evaluation_seconds", cells),
        )
    return timings


def write_timings(path: Path, timings: Mapping[UnitKey, RunTiming]) -> None:
    """Write a table of timings."""
    write_text(path, as_csv([key.row | asdict(timing) for key, timing in timings.items()]))


def read_failures(path: Path) -> dict[UnitKey, str]:
    """Return the message of each run that failed; empty if there is no such table. Damaged rows are left out."""
    try:
        rows = read_loose_rows(path)
    except UserError:
        return {}
    failures: dict[UnitKey, str] = {}
    for cells in rows:
        with suppress(UserError):
            failures[UnitKey.parse(cells, place=str(path))] = cells.get("message", "")
    return failures


def write_failures(path: Path, failures: Mapping[UnitKey, str]) -> None:
    """Write the table of failures in the order of the design; no file if there are none."""
    rows = []
    for key in sorted(failures, key=lambda key: key.order):
        rows.append(key.row | {"message": failures[key]})
    if rows:
        write_text(path, as_csv(rows))
    else:
        remove(path)


def as_folder_name(text: str) -> str:
    """Return a text as a name that every file system takes.

    >>> as_folder_name("monai:BasicUNet")
    'monai_BasicUNet'
    """
    return "".join(letter if letter.isalnum() or letter in "-.@" else "_" for letter in text)


def is_run_name(name: str) -> bool:
    """Whether a folder has the name of a run of an experiment, such as `fold-0_repeat-1`."""
    return _RUN_NAME.fullmatch(name) is not None


def model_order(model: str) -> tuple[int, str]:
    """Return a key that sorts the built-in networks first, in the paper's order, and others by name."""
    built_in = list(NAMES)
    if model in built_in:
        return (built_in.index(model), model)
    return (len(built_in), model)


def _parse_step_time(place: str, text: str) -> float:
    try:
        seconds = parse_number("seconds_per_step", text)
    except UserError:
        seconds = math.nan
    if not _SHORTEST <= seconds < _LONGEST:
        raise UserError(f"{place}: seconds_per_step must be a number above 0; got {brief(text)}.")
    return seconds


def _parse_seconds(place: str, column: str, cells: Mapping[str, str]) -> float:
    """Return a time of at least 0."""
    text = cells[column]
    seconds = parse_number(f"{place}: {column}", text)
    if not 0 <= seconds < _LONGEST:  # an empty cell is NaN, which is refused as well
        raise UserError(f"{place}: {column} must be a number of at least 0; got {brief(text)}.")
    return seconds
