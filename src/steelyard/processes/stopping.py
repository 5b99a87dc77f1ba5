"""SIGINT, SIGTERM and SIGHUP end a command with one line and a plain exit code, its child processes included."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

SIGNALS = frozenset(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)  # Windows has no SIGHUP
"""What ends a command."""

_PROCESSES = Path("/proc")
_TRACKER = b"multiprocessing.resource_tracker"
_PATIENCE = 5.0  # seconds that the start of a child process may take
_starting = threading.RLock()


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
    """Let a child process be started whole before a signal ends this one: half a child would print a traceback."""
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
    while fresh := [process for process in _descendants(os.getpid()) if process not in stopped]:
        for process in fresh:
            _send(process, signal.SIGSTOP)
        stopped += fresh
    for process in stopped:
        _send(process, signal.SIGKILL)


def _send(process: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)


def _descendants(ancestor: int) -> list[int]:
    """Return the processes below one, parents first; multiprocessing's tracker is left to clean up and end itself."""
    if not (_PROCESSES / "self").exists():
        from multiprocessing import active_children

        return [process.pid for process in active_children() if process.pid is not None]
    children: dict[int, list[int]] = {}
    for folder in _PROCESSES.glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            status = (folder / "stat").read_text(errors="replace")
            parent = int(status.rpartition(")")[2].split()[1])  # the name in parentheses may hold spaces
            if _TRACKER not in (folder / "cmdline").read_bytes():
                children.setdefault(parent, []).append(int(folder.name))
    descendants = list(children.get(ancestor, ()))
    for process in descendants:  # grows as it is gone through
        descendants += children.get(process, ())
    return descendants
