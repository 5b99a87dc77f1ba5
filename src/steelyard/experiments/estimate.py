"""How long units take: from those that are finished, else from a timing trial."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from steelyard.errors import UserError
from steelyard.experiments.results import KEYS
from steelyard.experiments.timing_trial import time_judging, time_step, time_validation
from steelyard.experiments.units import Timing, Unit
from steelyard.files.checks import parse_number
from steelyard.files.records import read_loose_rows
from steelyard.files.regular_files import open_regular
from steelyard.files.writing import as_csv, write_text
from steelyard.imaging.runs.run import EPOCHS
from steelyard.imaging.train.data import LabelledSlices
from steelyard.imaging.train.training import steps_per_epoch
from steelyard.imaging.train.weighing import make_probe

TIMINGS = "timings.csv"
_SECONDS = ("seconds_per_step", "validation_seconds", "evaluation_seconds")
_LONGEST = 1e6  # seconds; a step, a validation or a judgement that takes days is a mistake in the table
_FOREVER = 1e10  # seconds, three hundred years: the longest estimate
Kind = tuple[str, str, int]
K = TypeVar("K", bound=Hashable)


def step_kind(unit: Unit) -> Kind:
    """Return what the cost of a step depends on: the network, the probe and the number of domains."""
    return unit.config.model, str(make_probe(unit.config.method)), len(unit.config.trained)


def validation_kind(unit: Unit) -> tuple[str, int]:
    """Return what the cost of validation depends on: the network and the number of domains."""
    return unit.config.model, len(unit.config.trained)


def add_timing(out: Path, unit: Unit, timing: Timing) -> None:
    """Add a finished unit to timings.csv, the one table that differs from time to time."""
    if not timing.steps:  # an earlier process trained it, and its times are lost
        return
    row = unit.identity | {
        "steps": str(timing.steps),
        "seconds_per_step": str(round(timing.training / timing.steps, 6)),
        "validation_seconds": str(round(timing.validation / timing.epochs, 6)),
        "evaluation_seconds": str(round(timing.evaluation, 3)),
    }
    others = [other for other in read_timings(out) if _key(other) != _key(row)]
    write_text(out / TIMINGS, as_csv([*others, row]))


def read_timings(out: Path) -> list[dict[str, str]]:
    """Return the rows of timings.csv; none if there is no such table."""
    try:
        rows = read_loose_rows(out / TIMINGS)
    except UserError:
        return []
    columns = (*KEYS, "steps", *_SECONDS)
    return [{name: row.get(name, "") for name in columns} for row in rows]


def _key(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in KEYS)


def _read_seconds(row: Mapping[str, str]) -> list[float]:
    """Return the seconds of a step, a validation and a judgement.

    Raises:
        UserError: A cell does not hold a time that a unit could take.
    """
    seconds = [parse_number(name, row[name]) for name in _SECONDS]
    for name, value in zip(_SECONDS, seconds, strict=True):
        if not 0 <= value <= _LONGEST:
            raise UserError(f"{name} must lie within 0 and {_LONGEST:g}; got {value:g}.")
    return seconds


@dataclass(frozen=True)
class Forecast:
    """Estimates how long units take.

    Args:
        slices: What is learned from.
        step: Seconds of a step, by kind of step.
        validation: Seconds that an epoch takes besides its steps, by kind of validation.
        judging: Seconds that a test subject takes, by network.
    """

    slices: LabelledSlices
    step: dict[Kind, float] = field(default_factory=dict)
    validation: dict[tuple[str, int], float] = field(default_factory=dict)
    judging: dict[str, float] = field(default_factory=dict)
    _steps: dict[tuple[object, ...], int] = field(default_factory=dict)

    def learn(self, out: Path, units: Sequence[Unit]) -> None:
        """Take the times of finished units from timings.csv; rows without all three times are ignored."""
        step: dict[Kind, list[float]] = defaultdict(list)
        validation: dict[tuple[str, int], list[float]] = defaultdict(list)
        judging: dict[str, list[float]] = defaultdict(list)
        units_by_key = {_key(unit.identity): unit for unit in units}
        for row in read_timings(out):
            unit = units_by_key.get(_key(row))
            if unit is None:
                continue
            try:
                step_seconds, validation_seconds, evaluation_seconds = _read_seconds(row)
            except UserError:
                continue
            step[step_kind(unit)].append(step_seconds)
            validation[validation_kind(unit)].append(validation_seconds)
            judging[unit.config.model].append(evaluation_seconds / len(unit.split.test))
        self.step.update(_means(step))
        self.validation.update(_means(validation))
        self.judging.update(_means(judging))

    def measure(self, units: Iterable[Unit]) -> None:
        """Time a trial of every kind of unit that has not been timed."""
        for unit in units:
            if step_kind(unit) not in self.step:
                self.step[step_kind(unit)] = time_step(unit, self.slices)
            if validation_kind(unit) not in self.validation:
                self.validation[validation_kind(unit)] = time_validation(unit, self.slices)
            if unit.config.model not in self.judging:
                self.judging[unit.config.model] = time_judging(unit)

    def seconds(self, unit: Unit) -> float | None:
        """Return the longest that the rest of a unit takes; it may stop early. `None` if no unit has been timed."""
        step_seconds = self._step_seconds(step_kind(unit))
        if step_seconds is None:
            return None
        epochs_left = max(0, unit.config.epochs - epochs_done(unit))
        epoch_seconds = self.steps(unit) * step_seconds + _value_or_mean(self.validation, validation_kind(unit))
        judging_seconds = len(unit.split.test) * _value_or_mean(self.judging, unit.config.model)
        return min(epochs_left * epoch_seconds + judging_seconds, _FOREVER)

    def _step_seconds(self, kind: Kind) -> float | None:
        """Return the seconds of a step; of a kind that has not been timed, those of the kinds most like it."""
        if kind in self.step:
            return self.step[kind]
        same_probe = [seconds for (_, probe, _), seconds in self.step.items() if probe == kind[1]]
        alike = same_probe or list(self.step.values())
        if not alike:
            return None
        return fmean(alike)

    def steps(self, unit: Unit) -> int:
        """Return how many steps an epoch of a unit has."""
        key = (unit.fold, unit.availability, unit.config.trained)
        if key not in self._steps:
            pool = self.slices.part(unit.split, "train", unit.config.trained)
            self._steps[key] = steps_per_epoch(pool, unit.config)
        return self._steps[key]

    def total(self, units: Sequence[Unit], *, workers: int) -> float | None:
        """Return the seconds that workers need for the rest of some units; `None` if no unit has been timed."""
        total, longest = 0.0, 0.0
        for unit in units:
            seconds = self.seconds(unit)
            if seconds is None:
                return None
            total += seconds
            longest = max(longest, seconds)
        return min(max(total / workers, longest), _FOREVER)


@dataclass(frozen=True, kw_only=True)
class BlockEstimate:
    """How long the units of one model, availability and method take.

    Args:
        name: Model, availability and method.
        units: The number of units that are not done.
        steps: Training steps of each.
        seconds: Of each.
    """

    name: str
    units: int
    steps: int
    seconds: float


def estimate_blocks(units: Sequence[Unit], forecast: Forecast) -> list[BlockEstimate]:
    """Estimate how long units take, by model, availability and method."""
    by_block: dict[str, list[Unit]] = {}
    for unit in units:
        name = f"{unit.config.model} {unit.availability} {unit.config.method.name}"
        by_block.setdefault(name, []).append(unit)
    blocks = []
    for name, members in by_block.items():
        first = members[0]
        steps = forecast.steps(first) * first.config.epochs
        seconds = forecast.seconds(first) or 0.0
        blocks.append(BlockEstimate(name=name, units=len(members), steps=steps, seconds=seconds))
    return blocks


def _means(values_by_key: Mapping[K, Sequence[float]]) -> dict[K, float]:
    return {key: fmean(values) for key, values in values_by_key.items()}


def _value_or_mean(table: Mapping[K, float], key: K) -> float:
    """Return the value of a key; of a key that is not in the table, the mean of the others."""
    if key in table:
        return table[key]
    if not table:
        return 0.0
    return fmean(table.values())


def epochs_done(unit: Unit) -> int:
    """Return how many epochs of a unit are on disk."""
    try:
        with open_regular(unit.path / EPOCHS) as stream:
            lines = stream.read().count(b"\n")
    except OSError:
        return 0
    return max(0, lines - 1)  # without the header
