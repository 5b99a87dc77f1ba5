"""The training loop."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from statistics import fmean
from time import monotonic
from typing import Any

import torch

from steelyard.errors import UserError
from steelyard.imaging.networks.losses import cross_entropy_minus_dice
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.train.sampling import Batch, BatchIndices, SlicesByDomain, draw_epoch
from steelyard.imaging.train.training_state import TrainingState


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """What one step did: each domain's loss and weight, the hypothetical losses, the vote or why there was none."""

    step: int
    losses: Mapping[str, float]
    weights: Mapping[str, float]
    hypothetical: Mapping[str, float]
    vote: str | None
    outcome: str


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """What one epoch did.

    Args:
        epoch: Its number, from 0.
        learning_rate: Of its first step.
        losses: Mean training loss by domain.
        validation: Validation loss by domain: the mean over subjects; empty without validation subjects.
        better: Whether its weights are the best so far.
        steps: Each step's record.
        seconds: What the steps took; validation comes on top.
    """

    epoch: int
    learning_rate: float
    losses: Mapping[str, float]
    validation: Mapping[str, float]
    better: bool
    steps: tuple[StepRecord, ...]
    seconds: float = field(default=0.0, compare=False)  # the one thing that differs from time to time


def steps_per_epoch(pool: SlicesByDomain, config: TrainingConfig) -> int:
    """Return how many mini-batches an epoch has."""
    return sum(1 for _ in _draws(pool, config, torch.Generator()))


def fit(training_state: TrainingState, train: SlicesByDomain, validate: SlicesByDomain) -> Iterator[EpochRecord]:
    """Train until there is nothing left to do, and yield one record per epoch.

    The order of the data and its changes follow from seed and epoch alone, so that a run that is continued is the run
    that was never stopped, and all methods of one seed see the same batches.
    """
    config, fabric = training_state.config, training_state.fabric
    while not training_state.finished:
        seed = config.seed * 1_000_003 + training_state.epoch
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        training_state.model.train()
        rate = training_state.learning_rate
        steps: list[StepRecord] = []
        started = monotonic()
        for draw in _draws(train, config, generator):
            batch = augment_batch(draw.gather(train), config, generator)
            batch = fabric.to_device(_part(batch, fabric.global_rank, fabric.world_size))
            loss = training_state.balancer(training_state.model, batch, training_state.optimizer)
            steps.append(record_step(training_state, len(steps)))
            _refuse_nonsense(steps[-1], draw, train, epoch=training_state.epoch)
            training_state.optimizer.zero_grad()
            fabric.backward(loss)
            training_state.optimizer.step()
            if training_state.cycle is not None:
                training_state.cycle.step()
        seconds = monotonic() - started
        validation = validate_on(training_state, validate)
        losses = {name: _mean_of(name, steps) for name in train}
        better = training_state.finish_epoch(_criterion(training_state, validation or losses))
        yield EpochRecord(
            epoch=training_state.epoch - 1,
            learning_rate=rate,
            losses=losses,
            validation=validation,
            better=better,
            steps=tuple(steps),
            seconds=seconds,
        )


def _criterion(training_state: TrainingState, losses: Mapping[str, float]) -> float:
    """Return the mean over domains that have a loss, the same for all processes."""
    mean = fmean([loss for loss in losses.values() if isfinite(loss)] or [float("inf")])
    shared: Any = training_state.fabric.all_reduce(torch.tensor(mean, dtype=torch.float64), reduce_op="mean")
    return float(shared)


def validate_on(training_state: TrainingState, pool: SlicesByDomain) -> dict[str, float]:
    """Return the loss of each domain: the mean over its subjects, one batch a subject."""
    training_state.model.eval()
    losses: dict[str, float] = {}
    with torch.no_grad():
        for name, slices in pool.items():
            each = {}
            for subject, pair in slices.by_subject().items():
                images, masks = training_state.fabric.to_device(pair)
                each[subject] = float(cross_entropy_minus_dice(training_state.model(images), masks))
                if not isfinite(each[subject]):
                    raise UserError(
                        f"epoch {training_state.epoch}: the validation loss of {subject} ({name}) is {each[subject]}; "
                        "the weights of the last good epoch are kept. A smaller learning rate may help."
                    )
            losses[name] = fmean(each.values())
    return losses


def _draws(pool: SlicesByDomain, config: TrainingConfig, generator: torch.Generator) -> Iterator[BatchIndices]:
    return draw_epoch(pool, batch_size=config.batch_size, mixing=config.mixing, generator=generator)


def augment_batch(batch: Batch, config: TrainingConfig, generator: torch.Generator) -> Batch:
    """Change all domains' slices in one go."""
    images, masks = (torch.cat(parts) for parts in zip(*batch.values(), strict=True))
    if config.augmentation is not None:
        images, masks = config.augmentation(images, masks, generator=generator)
    images = images.contiguous(memory_format=torch.channels_last)
    sizes = [len(pair[0]) for pair in batch.values()]
    return dict(zip(batch, zip(torch.split(images, sizes), torch.split(masks, sizes), strict=True), strict=True))


def _part(batch: Batch, rank: int, ranks: int) -> Batch:
    """Return the samples of one of several processes."""
    if ranks == 1:
        return batch
    parts = {name: (images[rank::ranks], masks[rank::ranks]) for name, (images, masks) in batch.items()}
    return {name: pair for name, pair in parts.items() if len(pair[0])}


def record_step(training_state: TrainingState, number: int) -> StepRecord:
    """Return what the balancer's last call did."""
    report = training_state.balancer.last
    assert report is not None  # noqa: S101
    return StepRecord(
        step=number,
        losses={name: loss.item() for name, loss in report.losses.items()},
        weights=report.weights,
        hypothetical=report.measured if training_state.balancer.probe is not None else {},
        vote=report.vote,
        outcome=report.outcome.value,
    )


def _refuse_nonsense(record: StepRecord, draw: BatchIndices, pool: SlicesByDomain, *, epoch: int) -> None:
    for name, loss in record.losses.items():
        if not isfinite(loss):
            raise UserError(
                f"step {record.step} of epoch {epoch}: the loss of {name} is {loss} on a batch of "
                f"{draw.describe(pool)}; the weights of the last good epoch are kept. A smaller learning rate may help."
            )


def _mean_of(name: str, steps: list[StepRecord]) -> float:
    held = [step.losses[name] for step in steps if name in step.losses]
    return fmean(held) if held else float("nan")
