"""Units in processes of this machine."""

import multiprocessing
import os
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from steelyard.errors import UserError
from steelyard.experiments.executor import GPU_ACCELERATORS, Executor, UnitReport, attempt
from steelyard.experiments.units import Unit
from steelyard.imaging.scans.libraries import quiet_libraries
from steelyard.processes.children import starting_children
from steelyard.processes.workers import KILLED, check_workers, start_worker

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"  # decides which GPUs a process sees, if set before CUDA starts


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    slot: int
    unit: Unit | None = None


class LocalExecutor(Executor):
    """One process per worker, each with a fixed number of threads; workers share the GPUs in turn.

    Args:
        workers: The number of processes.
        threads: Of each process.
        accelerator: With `cuda` or `auto`, each worker sees one of the machine's GPUs, if it has any.

    Raises:
        UserError: The workers need more cores than the machine has.
    """

    def __init__(self, workers: int, *, threads: int = 1, accelerator: str = "cpu") -> None:
        cores = _count_cores()
        if workers > 1 and workers * threads > cores:
            raise UserError(
                f"{workers} workers of {threads} threads need {workers * threads} cores; there are {cores}."
            )
        check_workers(workers)
        self._size, self._threads, self._accelerator = workers, threads, accelerator
        self._workers: list[_Worker] = []

    @property
    def size(self) -> int:
        """The number of units that are done at a time."""
        return self._size

    @property
    def busy(self) -> list[Unit]:
        """The units that were submitted and not reported yet."""
        return [worker.unit for worker in self._workers if worker.unit is not None]

    def submit(self, unit: Unit) -> None:
        """Give a unit to an idle worker, or to a new one."""
        worker = self._idle_worker() or self._start_worker()
        worker.unit = unit
        try:
            worker.connection.send(unit)
        except OSError:  # the worker died while idle; the next poll finds its connection closed
            return

    def _idle_worker(self) -> _Worker | None:
        for worker in self._workers:
            if worker.unit is None:
                return worker
        return None

    def _start_worker(self) -> _Worker:
        """Start a worker in the first free slot: a worker that replaces another takes over its GPU."""
        taken = {worker.slot for worker in self._workers}
        slot = 0
        while slot in taken:
            slot += 1
        context = multiprocessing.get_context("spawn")
        connection, child_connection = context.Pipe()
        process = context.Process(target=_serve, args=(child_connection, self._threads), daemon=True)
        cores = dict.fromkeys(_THREADS, str(self._threads))
        with starting_children(cores | gpu_environment(slot, self._accelerator)):
            process.start()
        child_connection.close()
        worker = _Worker(process, connection, slot)
        self._workers.append(worker)
        return worker

    def poll(self, seconds: float) -> list[UnitReport]:
        """Return the units that ended, after waiting at most this long; a dead worker is replaced when needed."""
        workers = {worker.connection: worker for worker in self._workers if worker.unit is not None}
        ready = wait(list(workers), seconds)
        return [self._receive(worker) for connection, worker in workers.items() if connection in ready]

    def _receive(self, worker: _Worker) -> UnitReport:
        unit = worker.unit
        assert unit is not None  # noqa: S101
        worker.unit = None
        try:
            report: UnitReport = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.kill()
            self._workers.remove(worker)
            return UnitReport(unit, message=KILLED)
        return report

    def close(self) -> None:
        """Kill the workers: a run can be stopped anywhere."""
        for worker in self._workers:
            worker.process.kill()
            worker.process.join()


def _serve(connection: Connection, threads: int) -> None:
    """Do the units that arrive until the connection is closed."""
    start_worker(threads, quiet_libraries)
    while True:
        try:
            unit = connection.recv()
        except EOFError:
            return
        connection.send(attempt(unit))


def _count_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpu_environment(slot: int, accelerator: str) -> dict[str, str]:
    """Return the environment of a worker, so that workers share the GPUs of the machine evenly.

    Args:
        slot: The worker's number, from 0.
        accelerator: What units are trained on.
    """
    if accelerator not in GPU_ACCELERATORS:
        return {}
    gpu = choose_gpu(slot, count=torch.cuda.device_count(), visible=os.environ.get(_VISIBLE_GPUS))
    if gpu is None:
        return {}
    return {_VISIBLE_GPUS: gpu}


def choose_gpu(slot: int, *, count: int, visible: str | None = None) -> str | None:
    """Return the GPU of a worker; `None` if there are no GPUs.

    Args:
        slot: The worker's number, from 0.
        count: The number of GPUs that this process sees.
        visible: The value of `CUDA_VISIBLE_DEVICES`: numbers or names.

    >>> [choose_gpu(slot, count=2) for slot in range(3)]
    ['0', '1', '0']
    >>> choose_gpu(1, count=2, visible="5,GPU-8a7c")
    'GPU-8a7c'
    """
    if count == 0:
        return None
    if visible is None:
        return str(slot % count)
    # CUDA stops reading at an entry that it does not know, so only the first `count` are GPUs.
    names = visible.split(",")[:count]
    return names[slot % len(names)].strip()
