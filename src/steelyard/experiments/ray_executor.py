"""Units on a Ray cluster."""

import os
import sys
from collections.abc import Mapping
from contextlib import chdir
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from steelyard.errors import UserError, one_line
from steelyard.experiments.executor import GPU_ACCELERATORS, Executor, UnitReport, attempt
from steelyard.experiments.units import Unit
from steelyard.processes.workers import KILLED, check_workers

# With 0, every part of a cluster listens on 127.0.0.1 only, as by default on Windows and macOS (seen in Ray 2.60).
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


class RayExecutor(Executor):
    """The nodes of a Ray cluster, which all see the data and the experiment folder under the same paths.

    Args:
        address: Of the cluster; `auto` for the one this machine belongs to, `local` to start one here.
        workers: The maximum number of units at a time; by default as many as the cluster has cores and GPUs for.
        threads: Cores of each unit.
        accelerator: With `cuda` or `auto`, each unit reserves one GPU, if the cluster has any.

    Raises:
        UserError: Ray is not installed or the cluster cannot be reached.
    """

    def __init__(self, address: str, *, workers: int | None = None, threads: int = 1, accelerator: str = "cpu") -> None:
        settings: dict[str, Any] = {}
        if address == "local":
            if workers is not None:
                check_workers(workers)
            settings = _local_cluster_settings(workers, threads)
        self._ray = _connect(address, settings)
        self._limit, self._threads = workers, threads
        self._gpus = gpus_per_unit(accelerator, self._ray.cluster_resources())
        self._attempt = self._ray.remote(num_cpus=threads, num_gpus=self._gpus, max_retries=0)(attempt)
        self._pending: dict[Any, Unit] = {}

    @property
    def size(self) -> int:
        """The number of units that are done at a time."""
        capacity = units_at_a_time(self._ray.cluster_resources(), threads=self._threads, gpus=self._gpus)
        if self._limit is None:
            return capacity
        return min(capacity, self._limit)

    @property
    def busy(self) -> list[Unit]:
        """The units that were submitted and not reported yet."""
        return list(self._pending.values())

    def submit(self, unit: Unit) -> None:
        """Start a unit on the cluster."""
        self._pending[self._attempt.remote(unit)] = unit

    def poll(self, seconds: float) -> list[UnitReport]:
        """Return the units that ended, after waiting at most this long."""
        ready, _ = self._ray.wait(list(self._pending), timeout=seconds)
        reports = []
        for reference in ready:
            unit = self._pending.pop(reference)
            try:
                report = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                report = UnitReport(unit, message=f"{KILLED} {one_line(str(error))[:200]}")
            reports.append(report)
        return reports

    def close(self) -> None:
        """Leave the cluster, which then stops the units that were submitted."""
        self._ray.shutdown()


def gpus_per_unit(accelerator: str, resources: Mapping[str, float]) -> int:
    """Return how many GPUs a unit reserves: one if it may use any and the cluster has some.

    >>> gpus_per_unit("auto", {"CPU": 8.0, "GPU": 2.0}), gpus_per_unit("auto", {"CPU": 8.0})
    (1, 0)
    """
    return int(accelerator in GPU_ACCELERATORS and resources.get("GPU", 0) >= 1)


def units_at_a_time(resources: Mapping[str, float], *, threads: int, gpus: int) -> int:
    """Return how many units a cluster has room for, at least one.

    Args:
        resources: What the cluster has, by Ray's names.
        threads: Cores of each unit.
        gpus: GPUs of each unit.

    >>> units_at_a_time({"CPU": 16.0, "GPU": 2.0}, threads=4, gpus=1)
    2
    """
    capacity = resources.get("CPU", 1) // threads
    if gpus:
        capacity = min(capacity, resources.get("GPU", 0) // gpus)
    return max(1, int(capacity))


def _connect(address: str, settings: Mapping[str, Any]) -> Any:
    """Return the module `ray`, connected to a cluster.

    Raises:
        UserError: Ray is not installed or the cluster cannot be reached.
    """
    if address == "local":
        os.environ[_LOOPBACK] = "0"  # Ray reads it when it is imported
    try:
        ray = import_module("ray")
    except ImportError:
        raise UserError("--ray needs the package ray: pip install 'steelyard[ray]'.") from None
    # Ray's workers import from the current folder first. Only the administrator can write to the root folder.
    root = Path(Path(sys.executable).anchor)
    try:
        with chdir(root):
            ray.init(address=address, log_to_driver=False, logging_level="error", **settings)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"--ray {address}: {one_line(str(error))[:200]}") from error
    if address == "local" and not ip_address(ray.util.get_node_ip_address()).is_loopback:
        ray.shutdown()
        raise UserError(f"--ray local: Ray was imported before {_LOOPBACK}=0 was set, and would listen on the network.")
    return ray


def _local_cluster_settings(workers: int | None, threads: int) -> dict[str, Any]:
    """Return the settings of a cluster that is started here: no web page, and as many cores as workers need."""
    settings: dict[str, Any] = {
        "include_dashboard": False,
        "_system_config": {"worker_niceness": 0},  # the default gives way to every other process of the machine
    }
    if workers is not None:
        settings["num_cpus"] = workers * threads
    return settings
