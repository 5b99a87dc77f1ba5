"""Runs outside a grid: one run from a named config, or several side by side in processes of their own."""

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightning.fabric import Fabric

from steelyard.errors import UserError
from steelyard.experiments.configs import config_named
from steelyard.files.atomic import remove
from steelyard.files.destinations import check_folder, refuse_links
from steelyard.imaging.datasets.prepared import read_prepared
from steelyard.imaging.networks.accelerator import choose_accelerator
from steelyard.imaging.runs.config import TrainingConfig, with_settings
from steelyard.imaging.runs.run_folder import EPOCHS, RunFolder
from steelyard.imaging.runs.split import split_subjects
from steelyard.imaging.train.data import load_labelled
from steelyard.imaging.train.launch import TrainingJob, Watch, train, train_in_processes
from steelyard.processes.children import blocked_signals


@dataclass(frozen=True, kw_only=True)
class SplitChoice:
    """Who trains, validates and tests in a single run.

    Args:
        folds: The number of parts that the subjects are divided into.
        fold: The test fold.
        validate: How many of the other subjects validate; by default as many as test.
        seed: Decides who is in which fold.
    """

    folds: int = 5
    fold: int = 0
    validate: int | None = None
    seed: int = 0


def choose_config(name: str, settings: Sequence[str], changes: Mapping[str, Any]) -> TrainingConfig:
    """Return a named config with changes.

    Args:
        name: The config to start from.
        settings: Changes as `NAME=VALUE`.
        changes: Changes by field; those that are `None` are left out.

    Raises:
        UserError: There is no such config or setting, or it cannot have this value.
    """
    present = {field: value for field, value in changes.items() if value is not None}
    return with_settings(replace(config_named(name), **present), settings)


def prepare_job(
    config: TrainingConfig, data: Path, out: Path, choice: SplitChoice, *, cache: Path | None
) -> TrainingJob:
    """Read the data and divide the subjects; nothing is written but the cache.

    Args:
        config: What is trained.
        data: The preprocessed dataset.
        out: The run folder.
        choice: Who trains, validates and tests.
        cache: A folder that keeps the slices between runs.

    Raises:
        UserError: A folder cannot be used, or the data do not allow the split.
    """
    check_folder(out)
    if cache is not None:
        check_folder(cache)
    slices = load_labelled(read_prepared(data), config.slices, domains=config.domains, cache=cache)
    try:
        split = split_subjects(
            slices.subjects, folds=choice.folds, fold=choice.fold, validate=choice.validate, seed=choice.seed
        )
    except UserError as error:
        raise UserError(f"{data}: {error}") from error
    return TrainingJob(config=config, split=split, slices=slices, out=out)


def train_run(job: TrainingJob, watch: Watch, *, accelerator: str, logs: Path | None = None) -> None:
    """Train a run, in as many processes as its config has devices.

    Args:
        job: The run.
        watch: Consumes the epochs.
        accelerator: What it is trained on. With `auto` a run that is resumed stays on its kind of device, because
            another one would compute other last bits.
        logs: The folder of TensorBoard logs within the run folder, if `watch` writes any.

    Raises:
        UserError: The machine has no such device, or the run cannot be trained.
    """
    devices = job.config.devices
    fabric = open_fabric(_accelerator_for(job, accelerator), devices)
    if logs is not None:
        refuse_links(logs, within=job.out)
    if devices > 1:
        with blocked_signals():
            train_in_processes(job, fabric, watch)
    else:
        watch(train(job, fabric))


def _accelerator_for(job: TrainingJob, accelerator: str) -> str:
    """Return what a run is trained on: a run that is resumed stays where it was unless the user says otherwise."""
    run = RunFolder(job.out)
    recorded = run.accelerator
    if accelerator != "auto" or recorded is None or not run.has_epochs or run.finished:
        return accelerator
    try:
        return choose_accelerator(recorded, devices=job.config.devices)
    except UserError as error:
        raise UserError(f"{job.out}: was trained on {recorded} so far; {error}") from error


def open_fabric(accelerator: str, devices: int) -> Fabric:
    """Return what training runs on.

    Args:
        accelerator: One of `Accelerator`; `auto` is a GPU if there is one.
        devices: How many processes share every batch, each on a device of its own.

    Raises:
        UserError: This machine has no such device, or too few.
    """
    kind = choose_accelerator(accelerator, devices=devices)
    strategy = "ddp_spawn" if devices > 1 else "auto"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Fabric(accelerator=kind, devices=devices, strategy=strategy)
    except (ValueError, RuntimeError, ImportError) as error:
        raise UserError(f"accelerator {accelerator}: {error}") from error


def train_side_by_side(data: Path, runs: Mapping[str, Path], options: Sequence[str]) -> Generator[str, None, None]:
    """Train one run per method, each in a process of its own; yield a line for every epoch.

    Closing the generator kills the processes.

    Args:
        data: The preprocessed dataset.
        runs: The run folder of each method.
        options: Further options of `steelyard train`, for all runs.

    Raises:
        UserError: A run failed; its last line of output says why.
    """
    processes: dict[Path, subprocess.Popen[bytes]] = {}
    try:
        for method, run in runs.items():
            processes[run] = _start_training([str(data), str(run), "--method", method, *options], log=_log_of(run))
        yield from _epochs(processes)
    finally:
        for process in processes.values():
            process.kill()
    for run, process in processes.items():
        if process.returncode:
            lines = _log_of(run).read_text().strip().splitlines()
            last = lines[-1] if lines else "nothing; it may have run out of memory"
            raise UserError(f"training failed; {_log_of(run)} ends with: {last}")


def _log_of(run: Path) -> Path:
    return run.parent / f"{run.name}.log"


def _start_training(arguments: Sequence[str], *, log: Path) -> "subprocess.Popen[bytes]":
    log.parent.mkdir(parents=True, exist_ok=True)
    remove(log)
    command = [sys.executable, "-m", "steelyard", "train", *arguments]
    with log.open("xb") as stream:
        return subprocess.Popen(command, stderr=stream, env=os.environ | {"OMP_NUM_THREADS": "1"})  # noqa: S603


def _epochs(processes: "Mapping[Path, subprocess.Popen[bytes]]") -> Iterator[str]:
    """Yield a line for every epoch that some run has finished, until all processes have ended."""
    yielded = dict.fromkeys(processes, 0)
    while True:
        ended = all(process.poll() is not None for process in processes.values())
        for run in processes:
            finished = _count_epochs(run / EPOCHS)
            for epoch in range(yielded[run], finished):
                yield f"{run.name} epoch {epoch + 1}"
            yielded[run] = max(finished, yielded[run])
        if ended:
            return
        time.sleep(0.2)


def _count_epochs(path: Path) -> int:
    """Return the number of rows of epochs.csv, without its header."""
    if not path.exists():
        return 0
    return max(0, path.read_bytes().count(b"\n") - 1)
