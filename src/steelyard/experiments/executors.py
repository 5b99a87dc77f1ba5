"""Who does the runs: processes of this machine, or a Ray cluster."""

import multiprocessing
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from importlib import import_module
from ipaddress import ip_address
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from steelyard.errors import UserError, one_line, reason
from steelyard.experiments.devices import environment_of, gpus_of_a_run, runs_at_a_time
from steelyard.experiments.units import Timing, Unit, do_unit
from steelyard.files.locks import InUseError
from steelyard.processes.children import starting_children
from steelyard.processes.workers import check_workers, start_worker

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""With 0, every part of a cluster listens on 127.0.0.1 only, as by default on Windows and macOS (seen in Ray 2.60)."""
_GRACE = 30.0  # seconds that a process of an experiment that was killed may take to let go of a run
_KILLED = "its process was killed, perhaps for want of memory."


@dataclass(frozen=True)
class News:
    """What became of a run: how long it took, or in one line why it failed."""

    unit: Unit
    outcome: Timing | str


class Crew(ABC):
    """Does runs side by side."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many runs are done at a time."""

    @property
    @abstractmethod
    def busy(self) -> Sequence[Unit]:
        """The runs that were given and not heard of since."""

    @abstractmethod
    def give(self, unit: Unit) -> None:
        """Have one more run done."""

    @abstractmethod
    def listen(self, seconds: float) -> list[News]:
        """Wait at most so long for news."""

    @abstractmethod
    def close(self) -> None:
        """Stop everything at once."""


def attempt(unit: Unit) -> Timing | str:
    """Do a run; whatever goes wrong becomes one line."""
    patience = monotonic() + _GRACE
    while True:
        try:
            return do_unit(unit)
        except InUseError as error:
            if monotonic() > patience:
                return one_line(str(error))
            sleep(0.5)
        except UserError as error:
            return one_line(str(error))
        except OSError as error:
            return one_line(f"{error.filename or unit.path}: {reason(error)}.")
        except Exception as error:
            return one_line(f"unexpected {type(error).__name__}: {str(error)[:300]}")


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    slot: int
    unit: Unit | None = None


class LocalCrew(Crew):
    """One process per worker, each with its own fixed number of threads; workers take turns with the GPUs.

    Args:
        workers: How many processes.
        threads: Of each.
        accelerator: With `cuda` or `auto`, each worker sees one of the machine's GPUs, if it has any.

    Raises:
        UserError: They would need more cores than there are.
    """

    def __init__(self, workers: int, *, threads: int = 1, accelerator: str = "cpu") -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if workers > 1 and workers * threads > cores:
            raise UserError(
                f"{workers} workers of {threads} threads need {workers * threads} cores; there are {cores}."
            )
        check_workers(workers)
        self._size, self._threads, self._accelerator = workers, threads, accelerator
        self._workers: list[_Worker] = []

    @property
    def size(self) -> int:
        """How many runs are done at a time."""
        return self._size

    @property
    def busy(self) -> list[Unit]:
        """The runs that were given and not heard of since."""
        return [worker.unit for worker in self._workers if worker.unit is not None]

    def give(self, unit: Unit) -> None:
        """Have an idle worker do a run, or a new one."""
        worker = next((worker for worker in self._workers if worker.unit is None), None)
        if worker is None:
            worker = self._hire()
            self._workers.append(worker)
        worker.unit = unit
        try:
            worker.connection.send(unit)
        except OSError:  # it died idle; listening will tell
            return

    def _hire(self) -> _Worker:
        """Start a worker in the first place that is free: one that replaces another takes over its GPU."""
        taken = {worker.slot for worker in self._workers}
        slot = next(place for place in range(len(taken) + 1) if place not in taken)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._threads), daemon=True)
        cores = dict.fromkeys(_THREADS, str(self._threads))
        with starting_children(cores | environment_of(slot, self._accelerator)):
            process.start()
        theirs.close()
        return _Worker(process, ours, slot)

    def listen(self, seconds: float) -> list[News]:
        """Wait at most so long for news; a worker that died is replaced when the next is needed."""
        ready = wait([worker.connection for worker in self._workers if worker.unit is not None], seconds)
        news = []
        for worker in [worker for worker in self._workers if worker.unit is not None and worker.connection in ready]:
            assert worker.unit is not None  # noqa: S101
            try:
                outcome = worker.connection.recv()
            except (EOFError, OSError):
                outcome = _KILLED
                worker.process.kill()
                self._workers.remove(worker)
            news.append(News(worker.unit, outcome))
            worker.unit = None
        return news

    def close(self) -> None:
        """Kill the workers: a run can be stopped anywhere."""
        for worker in self._workers:
            worker.process.kill()
            worker.process.join()


def _serve(connection: Connection, threads: int) -> None:
    """Do runs until nobody asks for any."""
    start_worker(threads)
    while True:
        try:
            unit = connection.recv()
        except EOFError:
            return
        connection.send(attempt(unit))


def _joined(address: str, settings: Mapping[str, Any]) -> Any:
    """Return Ray, connected to a cluster.

    Raises:
        UserError: Ray is not installed or the cluster cannot be reached.
    """
    if address == "local":
        os.environ[_LOOPBACK] = "0"  # Ray reads it when it is imported
    try:
        ray = import_module("ray")
    except ImportError:
        raise UserError("--ray needs the package ray: pip install 'steelyard[ray]'.") from None
    try:
        with chdir(_root()):  # Ray has its workers import from the current folder first
            ray.init(address=address, log_to_driver=False, logging_level="error", **settings)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"--ray {address}: {one_line(str(error))[:200]}") from error
    if address == "local" and not ip_address(ray.util.get_node_ip_address()).is_loopback:
        ray.shutdown()
        raise UserError(f"--ray local: Ray was imported before {_LOOPBACK}=0 was set, and would listen on the network.")
    return ray


def _own_cluster(workers: int | None, threads: int) -> dict[str, Any]:
    """Return the settings of a cluster that is started here: no web page, and as many cores as workers need."""
    settings: dict[str, Any] = {
        "include_dashboard": False,
        "_system_config": {"worker_niceness": 0},  # or workers would give way to every other process of the machine
    }
    if workers is not None:
        settings["num_cpus"] = workers * threads
    return settings


def _root() -> Path:
    """Return a folder that only the administrator of the machine can put a module into."""
    return Path(Path(sys.executable).anchor)


class RayCrew(Crew):
    """The nodes of a Ray cluster, which all see the data and the experiment's folder under the same paths.

    Args:
        address: Of the cluster, `auto` for the one this machine belongs to, or `local` to start one here.
        workers: At most so many runs at a time; as many as the cluster has cores and GPUs for if not given.
        threads: Cores of each run.
        accelerator: With `cuda` or `auto`, each run reserves one GPU, if the cluster has any.

    Raises:
        UserError: Ray is not installed or the cluster cannot be reached.
    """

    def __init__(self, address: str, *, workers: int | None = None, threads: int = 1, accelerator: str = "cpu") -> None:
        if workers is not None and address == "local":
            check_workers(workers)
        ray = _joined(address, _own_cluster(workers, threads) if address == "local" else {})
        self._ray = ray
        self._limit, self._threads = workers, threads
        self._gpus = gpus_of_a_run(accelerator, ray.cluster_resources())
        self._attempt = ray.remote(num_cpus=threads, num_gpus=self._gpus, max_retries=0)(attempt)
        self._pending: dict[Any, Unit] = {}

    @property
    def size(self) -> int:
        """How many runs are done at a time."""
        there = runs_at_a_time(self._ray.cluster_resources(), threads=self._threads, gpus=self._gpus)
        return there if self._limit is None else min(there, self._limit)

    @property
    def busy(self) -> list[Unit]:
        """The runs that were given and not heard of since."""
        return list(self._pending.values())

    def give(self, unit: Unit) -> None:
        """Have the cluster do a run."""
        self._pending[self._attempt.remote(unit)] = unit

    def listen(self, seconds: float) -> list[News]:
        """Wait at most so long for news."""
        ready, _ = self._ray.wait(list(self._pending), timeout=seconds)
        news = []
        for reference in ready:
            try:
                outcome = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                outcome = f"{_KILLED} {one_line(str(error))[:200]}"
            news.append(News(self._pending.pop(reference), outcome))
        return news

    def close(self) -> None:
        """Leave the cluster, which then stops what it was given."""
        self._ray.shutdown()
