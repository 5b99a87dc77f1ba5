"""How long a grid will take: from the runs that are finished, else from a few steps."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from time import monotonic

import torch
from lightning.fabric import Fabric

from steelyard.experiments.units import Timing, Unit
from steelyard.imaging.segmentation.data import LabelledSlices
from steelyard.imaging.segmentation.methods import make_probe
from steelyard.imaging.segmentation.run import EPOCHS
from steelyard.imaging.segmentation.sampling import DomainSlices
from steelyard.imaging.segmentation.trainee import Trainee
from steelyard.imaging.segmentation.training import fit, steps_per_epoch
from steelyard.imaging.writing import as_csv, write_text

TIMINGS = "timings.csv"
Row = dict[str, object]
Kind = tuple[str, str, int]


def kind_of(unit: Unit) -> Kind:
    """Return what a step's cost depends on: the network, how it votes if it does, and the number of domains."""
    return unit.config.model, str(make_probe(unit.config.method)), len(unit.config.trained)


def add_timing(out: Path, unit: Unit, timing: Timing) -> None:
    """Put a finished run into timings.csv, the one table that differs from time to time."""
    if not timing.steps:  # an earlier process trained it, and took its time along
        return
    measured: Row = {
        "steps": timing.steps,
        "seconds_per_step": round(timing.training / timing.steps, 6),
        "evaluation_seconds": round(timing.evaluation, 3),
    }
    rows = [row for row in read_timings(out) if not _is(row, unit)]
    write_text(out / TIMINGS, as_csv([*rows, unit.identity | measured]))


def read_timings(out: Path) -> list[Row]:
    """Return the rows of timings.csv; none if there is no such table."""
    try:
        with (out / TIMINGS).open(encoding="utf-8", newline="") as stream:
            return [dict(row) for row in csv.DictReader(stream)]
    except (OSError, ValueError, csv.Error):
        return []


def _is(row: Row, unit: Unit) -> bool:
    return all(str(row.get(name)) == str(value) for name, value in unit.identity.items())


@dataclass(frozen=True)
class Forecast:
    """Predicts how long runs take.

    Args:
        slices: What is learned from.
        step: Seconds of a step, by kind of run.
        evaluation: Seconds that judging takes, by network.
    """

    slices: LabelledSlices
    step: dict[Kind, float] = field(default_factory=dict)
    evaluation: dict[str, float] = field(default_factory=dict)
    _steps: dict[tuple[object, ...], int] = field(default_factory=dict)

    def learn(self, out: Path, units: Sequence[Unit]) -> None:
        """Take over what finished runs took."""
        paces: dict[Kind, list[float]] = {}
        judged: dict[str, list[float]] = {}
        named = {tuple(map(str, unit.identity.values())): unit for unit in units}
        for row in read_timings(out):
            unit = named.get(tuple(str(value) for value in row.values())[:5])
            if unit is not None:
                paces.setdefault(kind_of(unit), []).append(float(str(row["seconds_per_step"])))
                judged.setdefault(unit.config.model, []).append(float(str(row["evaluation_seconds"])))
        self.step.update({kind: fmean(values) for kind, values in paces.items()})
        self.evaluation.update({model: fmean(values) for model, values in judged.items()})

    def measure(self, units: Iterable[Unit]) -> None:
        """Time a few steps of every kind of run that nothing is known of."""
        for unit in units:
            if kind_of(unit) not in self.step:
                self.step[kind_of(unit)] = time_steps(unit, self.slices)

    def seconds(self, unit: Unit) -> float | None:
        """Return what is left of a run: at most, as it may stop early; none as long as nothing is known of any run."""
        if unit.done:
            return 0.0
        pace = self._pace(kind_of(unit))
        if pace is None:
            return None
        left = max(0, unit.config.epochs - epochs_done(unit))
        return left * self.steps(unit) * pace + self.evaluation.get(unit.config.model, 0.0)

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
        return max(sum(known) / workers, max(known, default=0.0))


def epochs_done(unit: Unit) -> int:
    """Return how many epochs of a run are on disk."""
    try:
        return max(0, (unit.path / EPOCHS).read_bytes().count(b"\n") - 1)
    except OSError:
        return 0


def time_steps(unit: Unit, slices: LabelledSlices) -> float:
    """Return the seconds of one training step, after a few to warm up, on as few slices as make one step a domain."""
    config = replace(unit.config, epochs=2, stop_after=2)
    torch.set_num_threads(config.threads)
    whole = slices.part(unit.split, "train", config.trained)
    size = config.batch_size
    pool = {name: DomainSlices(one.images[:size], one.masks[:size], one.owners[:size]) for name, one in whole.items()}
    steps = steps_per_epoch(pool, config)
    epochs = fit(Trainee(config, Fabric(accelerator=unit.accelerator, devices=1), steps=steps), pool, {})
    next(epochs)
    started = monotonic()
    next(epochs)
    return (monotonic() - started) / steps
