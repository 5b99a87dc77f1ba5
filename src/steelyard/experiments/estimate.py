"""How long units take: from those that are finished, else from a timing trial."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from steelyard.errors import UserError
from steelyard.experiments.timing_trial import time_judging, time_step, time_validation
from steelyard.experiments.units import Timing, Unit
from steelyard.files.regular_files import open_regular
from steelyard.imaging.runs.experiment_folder import TIMINGS, RunTiming, UnitKey, read_timings, write_timings
from steelyard.imaging.runs.run_folder import EPOCHS
from steelyard.imaging.train.data import LabelledSlices
from steelyard.imaging.train.method_parts import make_probe
from steelyard.imaging.train.training import steps_per_epoch

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
    timings = _read_timings(out)
    timings.pop(unit.key, None)  # the newest row is the last
    timings[unit.key] = RunTiming(
        steps=timing.steps,
        seconds_per_step=round(timing.training / timing.steps, 6),
        validation_seconds=round(timing.validation / timing.epochs, 6),
        evaluation_seconds=round(timing.evaluation, 3),
    )
    write_timings(out / TIMINGS, timings)


def _read_timings(out: Path) -> dict[UnitKey, RunTiming]:
    """Return the times of finished units; none if there is no such table, or it is damaged."""
    try:
        return read_timings(out / TIMINGS)
    except UserError:
        return {}


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
        """Take the times of finished units from timings.csv."""
        step: dict[Kind, list[float]] = defaultdict(list)
        validation: dict[tuple[str, int], list[float]] = defaultdict(list)
        judging: dict[str, list[float]] = defaultdict(list)
        timings = _read_timings(out)
        for unit in units:
            timing = timings.get(unit.key)
            if timing is None:
                continue
            step[step_kind(unit)].append(timing.seconds_per_step)
            validation[validation_kind(unit)].append(timing.validation_seconds)
            judging[unit.config.model].append(timing.evaluation_seconds / len(unit.split.test))
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
