"""What does the units of an experiment: the interface, and the queue that feeds it."""

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from steelyard.experiments.units import Timing, Unit, do_unit
from steelyard.files.locks import InUseError
from steelyard.processes.workers import describe_failure

TRIES = 2
"""How often a unit is tried before it counts as failed."""

GPU_ACCELERATORS = ("cuda", "gpu", "auto")
"""The accelerators with which a unit may use a GPU."""

_GRACE = 30.0  # seconds that a killed process may take to release the lock of its run
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class UnitReport:
    """How a unit ended.

    Args:
        unit: The unit.
        timing: How long it took; `None` if it failed.
        message: Why it failed, in one line; empty if it is done.
    """

    unit: Unit
    timing: Timing | None = None
    message: str = ""


class Executor(ABC):
    """Does units side by side."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of units that are done at a time."""

    @property
    @abstractmethod
    def busy(self) -> Sequence[Unit]:
        """The units that were submitted and not reported yet."""

    @abstractmethod
    def submit(self, unit: Unit) -> None:
        """Start a unit."""

    @abstractmethod
    def poll(self, seconds: float) -> list[UnitReport]:
        """Return the units that ended, after waiting at most this long."""

    @abstractmethod
    def close(self) -> None:
        """Stop everything at once."""


def attempt(unit: Unit) -> UnitReport:
    """Do a unit; any error becomes the report's message."""
    deadline = monotonic() + _GRACE
    while True:
        try:
            return UnitReport(unit, timing=do_unit(unit))
        except InUseError as error:
            if monotonic() > deadline:
                return UnitReport(unit, message=describe_failure(error, unit.path))
            sleep(_POLL_SECONDS)
        except Exception as error:
            return UnitReport(unit, message=describe_failure(error, unit.path))


def run_units(units: Sequence[Unit], executor: Executor) -> Iterator[UnitReport | None]:
    """Do all units and yield a report for each; yield `None` now and then, so that the caller can show progress.

    A unit that fails is put at the end of the queue and tried once more. Only its last failure is reported.
    """
    waiting = deque(units)
    failures: Counter[Path] = Counter()
    while waiting or executor.busy:
        while waiting and len(executor.busy) < executor.size:
            executor.submit(waiting.popleft())
        reports = executor.poll(_POLL_SECONDS)
        for report in reports:
            path = report.unit.path
            if report.message:
                failures[path] += 1
            if report.message and failures[path] < TRIES:
                waiting.append(report.unit)
            else:
                yield report
        if not reports:
            yield None
