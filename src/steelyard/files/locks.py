"""Locks: a folder of results has one run at a time, others are refused."""

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
    """Create a folder if there is none, and lock it for one run; a failure leaves no new empty folder.

    Raises:
        UserError: It cannot be created or written.
        InUseError: Another run has the lock.
    """
    check_folder(folder)
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        _create_folder(folder)
        with _locked(folder):
            yield
    except BaseException:
        for path in missing:  # the innermost first
            with suppress(OSError):  # it is not empty: something was written after all
                path.rmdir()
        raise


def _create_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: {reason(error)}.") from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder for one run; the lock ends with the process, however that ends.

    The folder itself is locked: there is no lock file to leave behind. Where the system or the file system has no
    locks, the run continues without.

    Raises:
        InUseError: Another run has the lock.
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
            pass  # a file system without locks
        yield
    finally:
        os.close(handle)
