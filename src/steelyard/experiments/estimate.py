"""How long a grid will take: from the runs that are finished, else from a rehearsal."""

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
from steelyard.imaging.runs.run_folder import EPOCHS
from steelyard.imaging.train.data import LabelledSlices
from steelyard.imaging.train.training import steps_per_epoch
from steelyard.imaging.train.weighing import make_probe

TIMINGS = "timings.csv"
_COLUMNS = (*KEYS, "steps", "seconds_per_step", "validation_seconds", "evaluation_seconds")
_LONGEST = 1e6  # seconds; a step, a validation or a judgement that takes days is a slip of somebody's
_FOREVER = 1e10  # seconds, three hundred years: what a forecast says at most
Row = dict[str, object]
Kind = tuple[str, str, int]
K = TypeVar("K", bound=Hashable)


def kind_of(unit: Unit) -> Kind:
    """Return what a step's cost depends on: the network, how it votes if it does, and the number of domains."""
    return unit.config.model, str(make_probe(unit.config.method)), len(unit.config.trained)


def validated_as(unit: Unit) -> tuple[str, int]:
    """Return what the cost of validation depends on: the network and the number of domains."""
    return unit.config.model, len(unit.config.trained)


def add_timing(out: Path, unit: Unit, timing: Timing) -> None:
    """Put a finished run into timings.csv, the one table that differs from time to time."""
    if not timing.steps:  # an earlier process trained it, and took its time along
        return
    measured: Row = {
        "steps": timing.steps,
        "seconds_per_step": round(timing.training / timing.steps, 6),
        "validation_seconds": round(timing.validation / timing.epochs, 6),
        "evaluation_seconds": round(timing.evaluation, 3),
    }
    rows = [row for row in read_timings(out) if not _is(row, unit)]
    table = [{name: row.get(name, "") for name in _COLUMNS} for row in (*rows, unit.identity | measured)]
    write_text(out / TIMINGS, as_csv(table))


def read_timings(out: Path) -> list[Row]:
    """Return the rows of timings.csv; none if there is no such table."""
    try:
        return [dict(row) for row in read_loose_rows(out / TIMINGS)]
    except UserError:
        return []


def _numbers(row: Row, names: Sequence[str]) -> list[float] | None:
    """Return the seconds in some columns; none if one holds no time that a run could take."""
    try:
        seconds = [parse_number(name, str(row.get(name, ""))) for name in names]
    except UserError:
        return None
    return seconds if all(0 <= value <= _LONGEST for value in seconds) else None


def _is(row: Row, unit: Unit) -> bool:
    return all(str(row.get(name)) == str(value) for name, value in unit.identity.items())


@dataclass(frozen=True)
class Forecast:
    """Predicts how long runs take.

    Args:
        slices: What is learned from.
        step: Seconds of a step, by kind of run.
        validation: Seconds that an epoch takes besides its steps, by network and number of domains.
        judging: Seconds that a test subject takes, by network.
    """

    slices: LabelledSlices
    step: dict[Kind, float] = field(default_factory=dict)
    validation: dict[tuple[str, int], float] = field(default_factory=dict)
    judging: dict[str, float] = field(default_factory=dict)
    _steps: dict[tuple[object, ...], int] = field(default_factory=dict)

    def learn(self, out: Path, units: Sequence[Unit]) -> None:
        """Take over what finished runs took; rows without `validation_seconds`, as older ones are, tell too little."""
        step: dict[Kind, list[float]] = defaultdict(list)
        validation: dict[tuple[str, int], list[float]] = defaultdict(list)
        judging: dict[str, list[float]] = defaultdict(list)
        named = {tuple(map(str, unit.identity.values())): unit for unit in units}
        for row in read_timings(out):
            unit = named.get(tuple(str(row.get(name)) for name in KEYS))
            took = _numbers(row, ("seconds_per_step", "validation_seconds", "evaluation_seconds"))
            if unit is not None and took is not None:
                step[kind_of(unit)].append(took[0])
                validation[validated_as(unit)].append(took[1])
                judging[unit.config.model].append(took[2] / len(unit.split.test))
        self.step.update(_means(step))
        self.validation.update(_means(validation))
        self.judging.update(_means(judging))

    def measure(self, units: Iterable[Unit]) -> None:
        """Rehearse whatever nothing is known of."""
        for unit in units:
            if kind_of(unit) not in self.step:
                self.step[kind_of(unit)] = time_step(unit, self.slices)
            if validated_as(unit) not in self.validation:
                self.validation[validated_as(unit)] = time_validation(unit, self.slices)
            if unit.config.model not in self.judging:
                self.judging[unit.config.model] = time_judging(unit)

    def seconds(self, unit: Unit) -> float | None:
        """Return what is left of a run: at most, as it may stop early; none as long as nothing is known of any run."""
        if unit.done:
            return 0.0
        pace = self._pace(kind_of(unit))
        if pace is None:
            return None
        left = max(0, unit.config.epochs - epochs_done(unit))
        epoch = self.steps(unit) * pace + _known(self.validation, validated_as(unit))
        seconds = left * epoch + len(unit.split.test) * _known(self.judging, unit.config.model)
        return min(seconds, _FOREVER)

    def _pace(self, kind: Kind) -> float | None:
        """Return the seconds of a step; of a kind that is not known yet, those of the kinds most like it."""
        alike = [pace for other, pace in self.step.items() if other[1] == kind[1]] or list(self.step.values())
        return self.step.get(kind, fmean(alike) if alike else None)

    def steps(self, unit: Unit) -> int:
        """Return how many steps an epoch of a run has."""
        place = (unit.fold, unit.availability, unit.config.trained)
        if place not in self._steps:
            pool = self.slices.part(unit.split, "train", unit.config.trained)
            self._steps[place] = steps_per_epoch(pool, unit.config)
        return self._steps[place]

    def total(self, units: Sequence[Unit], *, workers: int) -> float | None:
        """Return the seconds that workers need for what is left of some runs; none as long as nothing is known."""
        each = [self.seconds(unit) for unit in units]
        known = [seconds for seconds in each if seconds is not None]
        if len(known) < len(each):
            return None
        return min(max(sum(known) / workers, max(known, default=0.0)), _FOREVER)


def _means(found: Mapping[K, Sequence[float]]) -> dict[K, float]:
    return {key: fmean(values) for key, values in found.items()}


def _known(table: Mapping[K, float], key: K) -> float:
    """Return what is known of a key, else of the others."""
    return table.get(key, fmean(table.values()) if table else 0.0)


def epochs_done(unit: Unit) -> int:
    """Return how many epochs of a run are on disk."""
    try:
        with open_regular(unit.path / EPOCHS) as stream:
            return max(0, stream.read().count(b"\n") - 1)
    except OSError:
        return 0
