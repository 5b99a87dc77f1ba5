"""The training loop."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite, nan
from statistics import fmean
from time import monotonic
from typing import Any

import torch

from steelyard.errors import UserError
from steelyard.imaging.networks.paper import cross_entropy_minus_dice
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.train.records import EpochRecord, StepRecord
from steelyard.imaging.train.sampling import Batch, BatchIndices, SlicesByDomain, draw_epoch
from steelyard.imaging.train.training_state import TrainingState
from steelyard.measurement import Statistic


def fit(state: TrainingState, train_slices: SlicesByDomain, validation_slices: SlicesByDomain) -> Iterator[EpochRecord]:
    """Train until the schedule ends, and yield one record per epoch.

    The order of the data and its augmentation follow from seed and epoch alone. So a run that is resumed is
    bit-identical to one that was never stopped, and all methods of one seed see the same batches.
    """
    config, fabric = state.config, state.fabric
    while not state.finished:
        seed = config.seed * 1_000_003 + state.epoch  # epochs of different seeds never share a generator's seed
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)  # for what the network itself draws, such as dropout
        state.model.train()
        learning_rate = state.learning_rate
        steps: list[StepRecord] = []
        started = monotonic()  # seconds
        for indices in _draw(train_slices, config, generator):
            batch = augment_batch(indices.gather(train_slices), config, generator)
            batch = fabric.to_device(_own_share(batch, fabric.global_rank, fabric.world_size))
            loss = state.balancer(state.model, batch, state.optimizer)  # votes, then the weighted sum of losses
            steps.append(record_step(state, len(steps)))
            _check_finite(steps[-1], indices, train_slices, epoch=state.epoch)
            state.optimizer.zero_grad()
            fabric.backward(loss)
            state.optimizer.step()
            if state.cycle is not None:
                state.cycle.step()  # one-cycle changes the learning rate at every step
        seconds = monotonic() - started
        losses = {domain: _mean_loss(domain, steps) for domain in train_slices}
        validation = validate_on(state, validation_slices)
        better = state.finish_epoch(_mean_over_domains(state, validation or losses))
        yield EpochRecord(
            epoch=state.epoch - 1,  # finish_epoch has counted it
            learning_rate=learning_rate,
            losses=losses,
            validation=validation,
            better=better,
            steps=tuple(steps),
            seconds=seconds,
        )


def steps_per_epoch(train_slices: SlicesByDomain, config: TrainingConfig) -> int:
    """Return how many mini-batches an epoch has; it is the same for every epoch."""
    return len(list(_draw(train_slices, config, torch.Generator())))


def validate_on(state: TrainingState, validation_slices: SlicesByDomain) -> dict[str, float]:
    """Return the loss of each domain: the mean over its subjects, one batch per subject.

    Raises:
        UserError: A loss is not finite.
    """
    state.model.eval()
    losses: dict[str, float] = {}
    with torch.no_grad():
        for domain, slices in validation_slices.items():
            subject_losses = []
            for subject, pair in slices.by_subject().items():
                images, masks = state.fabric.to_device(pair)
                loss = float(cross_entropy_minus_dice(state.model(images), masks))
                if not isfinite(loss):
                    raise UserError(
                        f"epoch {state.epoch}: the validation loss of {subject} ({domain}) is {loss}; "
                        "the weights of the last good epoch are kept. A smaller learning rate may help."
                    )
                subject_losses.append(loss)
            losses[domain] = fmean(subject_losses)
    return losses


def augment_batch(batch: Batch, config: TrainingConfig, generator: torch.Generator) -> Batch:
    """Augment the slices of all domains in one call, in channels_last, the fastest layout for convolutions."""
    images = torch.cat([images for images, _ in batch.values()])
    masks = torch.cat([masks for _, masks in batch.values()])
    if config.augmentation is not None:
        images, masks = config.augmentation(images, masks, generator=generator)
    images = images.contiguous(memory_format=torch.channels_last)
    sizes = [len(domain_images) for domain_images, _ in batch.values()]
    pairs = zip(torch.split(images, sizes), torch.split(masks, sizes), strict=True)
    return dict(zip(batch, pairs, strict=True))


def record_step(state: TrainingState, number: int) -> StepRecord:
    """Return what the balancer's last call did."""
    report = state.balancer.last
    assert report is not None  # noqa: S101
    hypothetical: Mapping[str, float] = {}
    if state.balancer.weighting.statistic is Statistic.HYPOTHETICAL_LOSSES:
        hypothetical = report.measured
    return StepRecord(
        step=number,
        losses={domain: loss.item() for domain, loss in report.losses.items()},
        weights=report.weights,
        hypothetical=hypothetical,
        vote=report.vote,
        outcome=report.outcome.value,
    )


def _draw(train_slices: SlicesByDomain, config: TrainingConfig, generator: torch.Generator) -> Iterator[BatchIndices]:
    return draw_epoch(train_slices, batch_size=config.batch_size, mixing=config.mixing, generator=generator)


def _own_share(batch: Batch, rank: int, ranks: int) -> Batch:
    """Return the samples of one of several processes: each n-th; a domain without any is left out."""
    if ranks == 1:
        return batch
    share = {}
    for domain, (images, masks) in batch.items():
        if rank < len(images):
            share[domain] = (images[rank::ranks], masks[rank::ranks])
    return share


def _check_finite(record: StepRecord, indices: BatchIndices, train_slices: SlicesByDomain, *, epoch: int) -> None:
    """Stop before the optimizer steps along a loss that is NaN or infinite."""
    for domain, loss in record.losses.items():
        if not isfinite(loss):
            raise UserError(
                f"step {record.step} of epoch {epoch}: the loss of {domain} is {loss} on a batch of "
                f"{indices.describe(train_slices)}; the weights of the last good epoch are kept. "
                "A smaller learning rate may help."
            )


def _mean_loss(domain: str, steps: Sequence[StepRecord]) -> float:
    """Return a domain's mean loss over the steps that had samples of it; NaN if none had."""
    losses = [step.losses[domain] for step in steps if domain in step.losses]
    return fmean(losses) if losses else nan


def _mean_over_domains(state: TrainingState, losses: Mapping[str, float]) -> float:
    """Return the mean over the domains that have a loss, and over processes, so that all of them decide alike."""
    finite = [loss for loss in losses.values() if isfinite(loss)]
    mean = fmean(finite) if finite else inf
    shared: Any = state.fabric.all_reduce(torch.tensor(mean, dtype=torch.float64), reduce_op="mean")
    return float(shared)
