"""From data and a config to a finished run folder, in one process or several."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessRaisedException

from steelyard.errors import UserError
from steelyard.imaging.networks.build import build_network
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.runs.split import Split
from steelyard.imaging.train.data import LabelledSlices
from steelyard.imaging.train.records import EpochRecord
from steelyard.imaging.train.run_writer import RunWriter, describe_accelerator
from steelyard.imaging.train.sampling import SlicesByDomain
from steelyard.imaging.train.training import fit, steps_per_epoch
from steelyard.imaging.train.training_state import TrainingState
from steelyard.processes.children import end_with_parent, safe_environment

Watch = Callable[[Iterator[EpochRecord]], None]
"""Consumes the epochs of a run as they are trained."""

Start = tuple[TrainingState, SlicesByDomain, SlicesByDomain]
"""The state before the first step, the slices for training, and those for validation."""


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """One run to train.

    Args:
        config: The settings.
        split: The subjects for training, validation and test.
        slices: The data.
        out: The run folder.
    """

    config: TrainingConfig
    split: Split
    slices: LabelledSlices
    out: Path


def train(job: TrainingJob, fabric: Fabric | None = None) -> Iterator[EpochRecord]:
    """Train a run, or the rest of it, and yield each epoch once it is on disk.

    Raises:
        UserError: The folder holds another run, the network does not fit the slices, or a loss is not finite.
    """
    fabric = fabric or Fabric(accelerator="cpu", devices=1)
    run = RunWriter(job.out)
    _check_folder(run, job)
    start = None
    if not run.folder.finished:
        start = prepare_training(job, fabric)  # before the lock, so that a network that does not fit leaves no folder
    with run.lock():
        run.begin(job.config, job.split, job.slices.digests)
        if start is None or run.folder.finished:  # another process may have finished it in the meantime
            run.remove_checkpoint()
        else:
            run.add_accelerator(describe_accelerator(fabric.device))
            yield from _train_epochs(run, start, fabric)


def train_in_processes(job: TrainingJob, fabric: Fabric, watch: Watch) -> None:
    """Train a run in as many processes as the fabric has devices, each on its share of every batch.

    Args:
        job: The run.
        fabric: Launches the processes; its strategy spawns them.
        watch: Consumes the epochs, in the first process.

    Raises:
        UserError: As in `train`.
    """
    _check_share(job.config)
    run = RunWriter(job.out)
    _check_folder(run, job)
    check_job(job)
    with run.lock():
        run.begin(job.config, job.split, job.slices.digests)
        if run.folder.finished:
            return
        run.add_accelerator(describe_accelerator(fabric.device, devices=job.config.devices))
        try:
            with safe_environment():
                fabric.launch(partial(_train_in_one_process, job=job, watch=watch))
        except ProcessRaisedException as error:
            message = _user_message(error)
            if message is None:
                raise
            raise UserError(message) from None


def check_job(job: TrainingJob) -> None:
    """Make sure that a run has data for training and that its network takes them; write nothing.

    Raises:
        UserError: There are no such data, there is no such network, or it does not take the slices.
    """
    config = job.config
    train_slices = job.slices.part(job.split, "train", config.trained)
    network = build_network(config.model, width=config.width, options=config.options)
    _try_network(network, train_slices, config.model)


def prepare_training(job: TrainingJob, fabric: Fabric) -> Start:
    """Return a run's state before its first step, its training slices and its validation slices; write nothing.

    Raises:
        UserError: The network does not take the slices.
    """
    config = job.config
    torch.set_num_threads(config.threads)
    generator = torch.Generator().manual_seed(config.seed)  # all methods of a seed learn from the same masks
    train_slices = _slices_of(job, "train", generator)
    validation_slices = _slices_of(job, "validate", generator)
    state = TrainingState(config, fabric, steps=steps_per_epoch(train_slices, config))
    _try_network(state.network, train_slices, config.model)
    return state, train_slices, validation_slices


def _slices_of(job: TrainingJob, part: str, generator: torch.Generator) -> SlicesByDomain:
    """Return the slices of a part of the split, with wrong masks where the config asks for them."""
    slices = job.slices.part(job.split, part, job.config.trained)
    mask_shift = job.config.mask_shift
    if mask_shift is not None:
        for domain in mask_shift.domains:
            if domain in slices:
                shifted = mask_shift(slices[domain].masks, generator=generator)
                slices[domain] = replace(slices[domain], masks=shifted)
    return slices


def _check_folder(run: RunWriter, job: TrainingJob) -> None:
    """Refuse a folder that cannot be used, before anything is computed or written."""
    run.check_folder()
    run.check_same(job.config, job.split, job.slices.digests)


def _check_share(config: TrainingConfig) -> None:
    """Refuse batches with fewer than one sample per domain and process."""
    if config.batch_size < config.devices * len(config.trained):
        raise UserError(
            f"batches of {config.batch_size} cannot be shared by {config.devices} processes and "
            f"{len(config.trained)} domains; give larger ones."
        )


def _try_network(network: nn.Module, slices: SlicesByDomain, model: str) -> None:
    """Make sure that a network takes one slice and gives one logit per pixel."""
    image = next(iter(slices.values())).images[:1]
    size = "×".join(map(str, image.shape[2:]))
    device = next(network.parameters()).device
    try:
        with torch.no_grad():
            logits = network.eval()(image.to(device))
    except (ValueError, RuntimeError, TypeError) as error:
        raise UserError(f"model {model} cannot take planes of {size} pixels: {str(error).splitlines()[0]}") from error
    if not isinstance(logits, Tensor):
        raise UserError(f"model {model} must give one logit per pixel; it gives {type(logits).__name__}.")
    if logits.shape != image.shape:
        expected, shape = tuple(image.shape), tuple(logits.shape)
        raise UserError(f"model {model} must give one logit per pixel, {expected}; it gives {shape}.")


def _train_epochs(run: RunWriter, start: Start, fabric: Fabric) -> Iterator[EpochRecord]:
    """Resume, train, and yield each epoch; only the first of several processes writes."""
    state, train_slices, validation_slices = start
    run.resume(state, may_write=fabric.is_global_zero)
    for record in fit(state, train_slices, validation_slices):
        if fabric.is_global_zero:
            run.record(state, record)
        yield record
    if fabric.is_global_zero:
        run.finish(state)


def _train_in_one_process(fabric: Fabric, job: TrainingJob, watch: Watch) -> None:
    """Train one process's share; the first process shows the epochs."""
    end_with_parent()
    epochs = _train_epochs(RunWriter(job.out), prepare_training(job, fabric), fabric)
    if fabric.is_global_zero:
        watch(epochs)
    else:
        for _ in epochs:
            pass
    fabric.barrier()
    torch.distributed.destroy_process_group()  # or its threads may abort a process that ends before the others


def _user_message(error: ProcessRaisedException) -> str | None:
    """Return the message of a `UserError` in another process, which arrives as the text of a traceback."""
    prefix = f"{UserError.__module__}.{UserError.__qualname__}: "
    for line in reversed(str(error).splitlines()):
        if line.startswith(prefix):
            return line.removeprefix(prefix)
    return None
