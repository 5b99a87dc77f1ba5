"""One run for one folder: others are refused while it works."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from steelyard.errors import UserError, reason
from steelyard.files.destinations import check_folder

if sys.platform != "win32":
    import fcntl


class InUseError(UserError):
    """Another run is working on a folder."""


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Make a folder if there is none, and keep other runs out of it; a failure leaves no new empty folder.

    Raises:
        UserError: It cannot be made or written.
        InUseError: Another run holds it.
    """
    check_folder(folder)
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        _make_folder(folder)
        with _locked(folder):
            yield
    except BaseException:
        for path in missing:
            with suppress(OSError):
                path.rmdir()
        raise


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: {reason(error)}.") from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder for one run; the lock goes with the process, however it ends.

    The folder itself is locked: there is no file to leave behind. Where the system or the file system knows no locks,
    the run goes on without.

    Raises:
        InUseError: Another run holds it.
    """
    if sys.platform == "win32":
        yield
        return
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UserError(f"{folder}: {reason(error)}.") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InUseError(f"{folder}: another run is working on it.") from error
        except OSError:
            pass
        yield
    finally:
        os.close(handle)
