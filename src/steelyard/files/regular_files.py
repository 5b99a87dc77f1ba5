"""Files that are safe to open: opening a pipe may wait for ever, reading a device may never end."""

import errno
import io
import os
import stat
from hashlib import file_digest
from pathlib import Path


class NotAFileError(OSError):
    """A folder, a pipe, a device or a socket is where a file was expected."""


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading; its kind is checked before it is opened.

    Raises:
        NotAFileError: It is a pipe, a device, a socket or a folder.
        OSError: It is missing, or the system refuses.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise NotAFileError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise NotAFileError(errno.EINVAL, "Not a regular file", str(path))
    return path.open("rb")


def digest(path: Path) -> str:
    """Return the SHA-256 of a regular file.

    Raises:
        OSError: As in `open_regular`.
    """
    with open_regular(path) as stream:
        return file_digest(stream, "sha256").hexdigest()
