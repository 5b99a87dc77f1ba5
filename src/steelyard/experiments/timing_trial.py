"""A timing trial: how long the parts of a unit take, measured on an untrained network."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import torch

from steelyard.experiments.single_run import open_fabric
from steelyard.experiments.units import Unit
from steelyard.imaging.datasets.prepared import read_prepared
from steelyard.imaging.evaluate.evaluation import evaluate
from steelyard.imaging.networks.build import build_network
from steelyard.imaging.train.data import LabelledSlices
from steelyard.imaging.train.run_writer import RunWriter
from steelyard.imaging.train.sampling import DomainSlices, SlicesByDomain
from steelyard.imaging.train.training import fit, steps_per_epoch, validate_on
from steelyard.imaging.train.training_state import TrainingState

_FEWEST_STEPS, _SHORTEST = 3, 0.5  # steps and seconds that are timed at least, after an epoch to warm up
_ENDLESS = 100_000  # epochs, so that the trial decides when to stop


def time_step(unit: Unit, slices: LabelledSlices) -> float:
    """Return the mean seconds of a training step; a method that votes on every n-th step is timed for n steps."""
    training_state, pool = _start(unit, slices)
    probe = training_state.balancer.probe
    fewest = _FEWEST_STEPS
    if probe is not None:
        fewest = max(fewest, probe.every)
    epochs = fit(training_state, pool, {})
    next(epochs)  # warms up
    steps, seconds = 0, 0.0
    while steps < fewest or seconds < _SHORTEST:
        record = next(epochs)
        steps += len(record.steps)
        seconds += record.seconds
    return seconds / steps


def time_validation(unit: Unit, slices: LabelledSlices) -> float:
    """Return the seconds of an epoch besides its steps: a pass over the validation subjects and a checkpoint."""
    training_state, pool = _start(unit, slices)
    judged = slices.part(unit.split, "validate", unit.config.trained)
    record = next(fit(training_state, pool, {}))
    with TemporaryDirectory() as folder:
        started = monotonic()
        validate_on(training_state, judged)
        RunWriter(Path(folder)).record(training_state, record)
        return monotonic() - started


def time_judging(unit: Unit) -> float:
    """Return the seconds that judging one test subject takes."""
    config = unit.config
    torch.set_num_threads(config.threads)
    dataset = read_prepared(unit.data)
    network = build_network(config.model, width=config.width, options=config.options).eval()
    started = monotonic()
    list(evaluate(network, dataset, config=config, parts={unit.split.test[0]: "test"}))
    return monotonic() - started


def _start(unit: Unit, slices: LabelledSlices) -> tuple[TrainingState, SlicesByDomain]:
    """Return an untrained network, and one batch of slices per domain."""
    config = replace(unit.config, epochs=_ENDLESS, stop_after=_ENDLESS)
    torch.set_num_threads(config.threads)
    whole = slices.part(unit.split, "train", config.trained)
    size = config.batch_size
    pool = {}
    for name, domain in whole.items():
        pool[name] = DomainSlices(domain.images[:size], domain.masks[:size], domain.owners[:size])
    fabric = open_fabric(unit.accelerator, 1)
    return TrainingState(config, fabric, steps=steps_per_epoch(pool, config)), pool
