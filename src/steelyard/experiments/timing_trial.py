"""How long the parts of a run take, from a little of each on a network that nothing is kept of."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import torch
from lightning.fabric import Fabric

from steelyard.experiments.units import Unit
from steelyard.imaging.evaluate.evaluation import evaluate
from steelyard.imaging.networks.build import build_network
from steelyard.imaging.train.data import LabelledSlices, read_prepared
from steelyard.imaging.train.run_writer import RunWriter
from steelyard.imaging.train.sampling import DomainSlices, Pool
from steelyard.imaging.train.trainee import Trainee
from steelyard.imaging.train.training import fit, steps_per_epoch, validate_on

_STEPS, _SECONDS = 3, 0.5  # that are timed at least, after some to warm up
_ENDLESS = 100_000  # epochs


def time_step(unit: Unit, slices: LabelledSlices) -> float:
    """Return the seconds of one training step; of a method that votes now and then, votes in due proportion."""
    trainee, pool = _begin(unit, slices)
    probe = trainee.balancer.probe
    least = _STEPS if probe is None else max(_STEPS, probe.every)
    epochs = fit(trainee, pool, {})
    next(epochs)
    steps, seconds = 0, 0.0
    while steps < least or seconds < _SECONDS:
        record = next(epochs)
        steps += len(record.steps)
        seconds += record.seconds
    return seconds / steps


def time_validation(unit: Unit, slices: LabelledSlices) -> float:
    """Return the seconds of an epoch besides its steps: a pass over the validation subjects and a checkpoint."""
    trainee, pool = _begin(unit, slices)
    judged = slices.part(unit.split, "validate", unit.config.trained)
    record = next(fit(trainee, pool, {}))
    with TemporaryDirectory() as folder:
        started = monotonic()
        validate_on(trainee, judged)
        RunWriter(Path(folder)).record(trainee, record)
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


def _begin(unit: Unit, slices: LabelledSlices) -> tuple[Trainee, Pool]:
    """Return an untrained network, and as few slices as make one step a domain."""
    config = replace(unit.config, epochs=_ENDLESS, stop_after=_ENDLESS)
    torch.set_num_threads(config.threads)
    whole = slices.part(unit.split, "train", config.trained)
    size = config.batch_size
    pool = {name: DomainSlices(one.images[:size], one.masks[:size], one.owners[:size]) for name, one in whole.items()}
    fabric = Fabric(accelerator=unit.accelerator, devices=1)
    return Trainee(config, fabric, steps=steps_per_epoch(pool, config)), pool
