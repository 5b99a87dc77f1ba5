"""SIGINT, SIGTERM and SIGHUP end a command with one line and a plain exit code, its child processes included."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
SIGNALS = frozenset(getattr(signal, name) for name in _NAMES if hasattr(signal, name))  # Windows has no SIGHUP
"""The signals that end a command."""

_PROCESSES = Path("/proc")
_TRACKER = b"multiprocessing.resource_tracker"
_PATIENCE = 5.0  # seconds that the start of a child process may take
_starting = threading.RLock()  # held while a child process is started


def end_on_signals() -> None:
    """From now on, let a signal end this process and its descendants at once.

    Nothing is raised. An exception could come up in an import or inside a C library, which may swallow it or print it.
    Every file is written so that its process may be killed at any moment.

    A thread ends the process: Python runs signal handlers between two instructions of the main thread, and that thread
    may spend minutes inside a C library. On Windows nothing changes: Ctrl-C raises `KeyboardInterrupt`.
    """
    if sys.platform == "win32":
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    threading.Thread(target=_wait_for_signal, args=(reader,), name="signals", daemon=True).start()
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, _leave_to_thread)


@contextmanager
def postponed() -> Iterator[None]:
    """Let a child process start completely before a signal ends this one: half a child would print a traceback."""
    with _starting:
        yield


def message(number: int) -> str:
    """Return the line that a stopped command ends with."""
    return f"steelyard: stopped by {signal.Signals(number).name}; run the same command again to finish."


def _leave_to_thread(number: int, frame: FrameType | None) -> None:
    """Do nothing: the number of the signal is in the pipe already."""


def _wait_for_signal(reader: int) -> None:
    number = 0
    while number not in SIGNALS:  # others may have handlers, too
        (number,) = os.read(reader, 1)
    _starting.acquire(timeout=_PATIENCE)
    _end_descendants()
    # The main thread may be inside a write to stderr, whose buffer would then be locked.
    cursor = "\x1b[?25h\n" if os.isatty(2) else ""  # a progress bar hides the cursor
    with suppress(OSError):
        os.write(2, f"{cursor}{message(number)}\n".encode())
    os._exit(128 + number)


def _end_descendants() -> None:
    """Kill all descendants; they are stopped first, so that none starts another or complains that others died."""
    stopped: list[int] = []
    # Until no new ones appear: a process may have started others before it was stopped.
    while new := [process for process in _descendants(os.getpid()) if process not in stopped]:
        for process in new:  # parents first
            _send(process, signal.SIGSTOP)
        stopped += new
    for process in stopped:
        _send(process, signal.SIGKILL)


def _send(process: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)


def _descendants(ancestor: int) -> list[int]:
    """Return all processes below one, parents first."""
    if not (_PROCESSES / "self").exists():  # not Linux: multiprocessing knows of the direct children only
        from multiprocessing import active_children

        return [process.pid for process in active_children() if process.pid is not None]
    children = _children_by_parent()
    descendants = list(children.get(ancestor, ()))
    for process in descendants:  # the list grows while the loop goes through it
        descendants += children.get(process, ())
    return descendants


def _children_by_parent() -> dict[int, list[int]]:
    """Read from Linux which process started which; multiprocessing's tracker is left to clean up and end itself."""
    children: dict[int, list[int]] = {}
    for folder in _PROCESSES.glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            status = (folder / "stat").read_text(errors="replace")
            # PID (PROGRAM) STATE PARENT …, where the program's name may hold spaces and parentheses.
            parent = int(status.rpartition(")")[2].split()[1])
            if _TRACKER not in (folder / "cmdline").read_bytes():
                children.setdefault(parent, []).append(int(folder.name))
    return children
