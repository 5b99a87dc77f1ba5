"""Files that are safe to open: opening a pipe may wait for ever, reading a device may never end."""

import errno
import io
import os
import stat
from pathlib import Path


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading; what it is, is looked at before it is opened.

    Raises:
        OSError: It is a pipe, a device, a socket or a folder, it is missing, or the system refuses.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return path.open("rb")
