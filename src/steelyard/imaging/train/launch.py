"""From data and a config to a finished run directory, in one process or several."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from steelyard.imaging.train.environment import describe_accelerator
from steelyard.imaging.train.run_writer import RunWriter
from steelyard.imaging.train.sampling import Pool
from steelyard.imaging.train.trainee import Trainee
from steelyard.imaging.train.training import EpochRecord, fit, steps_per_epoch
from steelyard.processes.children import end_with_parent, safe_environment

Watch = Callable[[Iterator[EpochRecord]], None]
Start = tuple[Trainee, Pool, Pool]


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """One run to train.

    Args:
        config: What it is.
        split: Who trains, validates, tests.
        slices: The data.
        out: The run directory.
    """

    config: TrainingConfig
    split: Split
    slices: LabelledSlices
    out: Path


def train(job: TrainingJob, fabric: Fabric | None = None) -> Iterator[EpochRecord]:
    """Train a run, or what is left of it, and yield each epoch once it is on disk.

    Raises:
        UserError: The folder holds another run, or the loss is not finite any more.
    """
    fabric = fabric or Fabric(accelerator="cpu", devices=1)
    run = RunWriter(job.out)
    run.check_folder()
    run.folder.check_same(job.config, job.split, job.slices.digests)
    start = None
    if not run.folder.finished:
        start = prepare_training(job, fabric)  # before the lock, so that a network that does not fit leaves no folder
    with run.lock():
        run.begin(job.config, job.split, job.slices.digests)
        if start is None or run.folder.finished:
            run.remove_checkpoint()
        else:
            run.add_accelerator(describe_accelerator(fabric.device))
            yield from _epochs(run, start, fabric)


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
    run.check_folder()
    run.folder.check_same(job.config, job.split, job.slices.digests)
    check_job(job)
    with run.lock():
        run.begin(job.config, job.split, job.slices.digests)
        if run.folder.finished:
            return
        run.add_accelerator(describe_accelerator(fabric.device, devices=job.config.devices))
        try:
            with safe_environment():
                fabric.launch(partial(_work, job=job, watch=watch))
        except ProcessRaisedException as error:
            mark = f"{UserError.__module__}.{UserError.__qualname__}: "
            said = [line for line in str(error).splitlines() if line.startswith(mark)]
            if not said:
                raise
            raise UserError(said[-1].removeprefix(mark)) from None


def _check_share(config: TrainingConfig) -> None:
    if config.batch_size < config.devices * len(config.trained):
        raise UserError(
            f"batches of {config.batch_size} cannot be shared by {config.devices} processes and "
            f"{len(config.trained)} domains; give larger ones."
        )


def _work(fabric: Fabric, job: TrainingJob, watch: Watch) -> None:
    end_with_parent()
    epochs = _epochs(RunWriter(job.out), prepare_training(job, fabric), fabric)
    if fabric.is_global_zero:
        watch(epochs)
    else:
        for _ in epochs:
            pass
    fabric.barrier()
    torch.distributed.destroy_process_group()  # or its threads may abort a process that ends before the others


def check_job(job: TrainingJob) -> None:
    """Make sure that a run has data to learn from and that its network takes them; write nothing.

    Raises:
        UserError: It has none, there is no such network, or it cannot take the slices.
    """
    config = job.config
    learned = job.slices.part(job.split, "train", config.trained)
    network = build_network(config.model, width=config.width, options=config.options)
    _try_out(network, next(iter(learned.values())).images[:1], config.model)


def prepare_training(job: TrainingJob, fabric: Fabric) -> Start:
    """Return a run's trainee before its first step, what it learns from and what it is validated on; write nothing.

    Raises:
        UserError: The network cannot take the slices.
    """
    config = job.config
    torch.set_num_threads(config.threads)
    learned = job.slices.part(job.split, "train", config.trained)
    judged = job.slices.part(job.split, "validate", config.trained)
    trainee = Trainee(config, fabric, steps=steps_per_epoch(learned, config))
    _try_out(trainee.network, next(iter(learned.values())).images[:1], config.model)
    return trainee, learned, judged


def _try_out(network: nn.Module, images: Tensor, model: str) -> None:
    """Make sure that a network takes the planes and gives one logit per pixel, before anything is written."""
    size = "×".join(map(str, images.shape[2:]))
    device = next(network.parameters()).device
    try:
        with torch.no_grad():
            logits = network.eval()(images.to(device))
    except (ValueError, RuntimeError, TypeError) as error:
        raise UserError(f"model {model} cannot take planes of {size} pixels: {str(error).splitlines()[0]}") from error
    if not isinstance(logits, Tensor) or logits.shape != images.shape:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"model {model} must give one logit per pixel, {tuple(images.shape)}; it gives {shape}.")


def _epochs(run: RunWriter, start: Start, fabric: Fabric) -> Iterator[EpochRecord]:
    trainee, learned, judged = start
    run.resume(trainee, may_write=fabric.is_global_zero)
    for record in fit(trainee, learned, judged):
        if fabric.is_global_zero:
            run.record(trainee, record)
        yield record
    if fabric.is_global_zero:
        run.finish(trainee)
