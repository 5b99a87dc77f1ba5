"""Ends a command at its n-th change of a folder: python fault_point.py N OUT -- train DATA RUN …

Python tells audit hooks of every file that is opened, renamed or removed, so no code of steelyard's takes part. Without
a number (N = 0) the changes are counted only. The count lies in a file, because worker processes share it.
"""

import fcntl
import os
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Fault = Literal["kill", "torn", "worker", "SIGINT", "SIGTERM"]

_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True, kw_only=True)
class FaultPoint:
    """Where a command is to end.

    Args:
        out: The folder whose changes count.
        counter: A file for their number, outside that folder.
        at: The number of the change before which it ends; 0 for never.
        fault: `kill` ends all its processes with SIGKILL, as a power cut does; `worker` ends only the process that
            makes the change. `torn` lets the n-th change begin and ends the process after some bytes of it were
            written. `SIGINT` and `SIGTERM` are sent to the command.
        torn_after: How many bytes those are.
    """

    out: Path
    counter: Path
    at: int = 0
    fault: Fault = "kill"
    torn_after: int = 0

    def install(self) -> None:
        """Watch this process and those that it forks; call it in the command's own process."""
        self.counter.touch()
        watch = _Watch(self, os.getpid())
        sys.addaudithook(watch)

    @property
    def changes(self) -> int:
        """How many changes were made."""
        return self.counter.stat().st_size


class _Watch:
    """The audit hook."""

    def __init__(self, point: FaultPoint, command: int) -> None:
        self._point = point
        self._command = command
        self._folder = os.path.realpath(point.out)
        self._counting = False  # this hook hears of the files that it opens itself
        self._tearing = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._counting or not (event == "open" or event in _CHANGES):
            return
        if event == "open" and not _writes(arguments):
            return
        self._counting = True
        try:
            if self._inside(arguments):
                self._change(arguments[0], opening=event == "open")
        finally:
            self._counting = False

    def _inside(self, arguments: tuple[Any, ...]) -> bool:
        path = arguments[0]
        if not isinstance(path, str | bytes | os.PathLike):
            return False  # a file that is open already
        folder = os.path.realpath(os.path.dirname(os.path.abspath(os.fsdecode(path))))  # noqa: PTH100, PTH120
        return f"{folder}/".startswith(f"{self._folder}/") or os.path.realpath(os.fsdecode(path)) == self._folder

    def _change(self, path: Any, *, opening: bool) -> None:
        if self._tearing:
            os.kill(os.getpid(), signal.SIGKILL)  # what was to be torn was shorter than that
        number = self._next()
        if number != self._point.at:
            return
        fault = self._point.fault
        if fault in ("SIGINT", "SIGTERM"):
            os.kill(self._command, signal.Signals[fault])
        elif fault == "torn" and opening:
            self._tear(path)
        elif fault == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            os.killpg(0, signal.SIGKILL)

    def _next(self) -> int:
        """Count a change, in whichever process it is made."""
        handle = os.open(self._point.counter, os.O_WRONLY | os.O_APPEND)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            os.write(handle, b".")
            return os.fstat(handle).st_size
        finally:
            os.close(handle)

    def _tear(self, path: Any) -> None:
        """Have the system end this process once a file grows by more than some bytes."""
        try:
            size = os.stat(path).st_size  # noqa: PTH116
        except OSError:
            size = 0
        self._tearing = True
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it otherwise
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + self._point.torn_after,) * 2)


def _writes(arguments: tuple[Any, ...]) -> bool:
    _, mode, flags = arguments
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return bool(flags & _WRITING)


def main(arguments: list[str]) -> int:
    """Run a command up to a change, in this process."""
    from steelyard.cli import main as run

    number, out, dashes, *command = arguments
    if dashes != "--":
        raise SystemExit(__doc__)
    counter = Path(f"/proc/{os.getpid()}/fd/{os.memfd_create('changes')}")  # gone with the process, however it ends
    os.setpgid(0, 0)  # a kill must not reach whoever called
    point = FaultPoint(out=Path(out), counter=counter, at=int(number))
    point.install()
    code = run(command)
    sys.stderr.write(f"{point.changes} changes\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
