"""Child processes: safe and quiet from their first instruction, and gone with their parent."""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker

from steelyard.processes.stopping import SIGNALS, postponed

_PR_SET_PDEATHSIG = 1  # of Linux: the signal that a process gets when its parent ends
_STARTED_BY = "STEELYARD_STARTED_BY"  # the process that a child belongs to
_QUIET_TRACKER = "ignore:resource_tracker:UserWarning"  # it cleans up after a killed run, and need not say so


@contextmanager
def starting_children(settings: Mapping[str, str] | None = None) -> Iterator[None]:
    """Start processes that import nothing from the current folder and leave signals to this process.

    A signal for this process waits until the processes are started.

    Args:
        settings: Further environment variables of these processes.
    """
    with postponed(), safe_environment(settings), blocked_signals():
        yield


@contextmanager
def safe_environment(settings: Mapping[str, str] | None = None) -> Iterator[None]:
    """Set environment variables so that processes started now import nothing from the current folder.

    Args:
        settings: Further environment variables of these processes; they are set before anything is imported.
    """
    filters = [_QUIET_TRACKER]
    if os.environ.get("PYTHONWARNINGS"):
        filters.insert(0, os.environ["PYTHONWARNINGS"])
    variables = {
        "PYTHONSAFEPATH": "1",
        _STARTED_BY: str(os.getpid()),
        "PYTHONWARNINGS": ",".join(filters),
        **(settings or {}),
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def blocked_signals() -> Iterator[None]:
    """Block the signals that end a command in this thread; processes that it starts now inherit that."""
    if sys.platform == "win32":
        yield
        return
    with safe_environment():
        resource_tracker.ensure_running()  # a pool would start it, and that unblocks signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """Leave Ctrl-C to the parent process, and end when it is gone; do nothing where there is none."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    _die_with_parent()
    if not parent.is_alive():  # it went before anything could be set
        os._exit(1)


def start_spawned() -> None:
    """End with the parent process from now on: a spawned process calls this before it imports torch."""
    _die_with_parent()
    parent = os.environ.pop(_STARTED_BY, None)  # children of its own have another parent
    if parent is not None and parent != str(os.getppid()):
        os._exit(1)


def _die_with_parent() -> None:
    """Have Linux kill this process when its parent ends."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
