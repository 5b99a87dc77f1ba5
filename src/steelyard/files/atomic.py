"""Atomic writes: a file is there whole or not at all, and only where it belongs.

Every write, append, rename and delete among results goes through this module. A folder of results may be full of links
that somebody else created: none of them is written or deleted through. A file is first written under a temporary name
beside its own. What a killed process leaves under such a name is recognised by that name, and removed later.
"""

import glob
import os
import platform
import re
import sys
from contextlib import suppress
from pathlib import Path

from steelyard.errors import UserError, reason
from steelyard.files.destinations import refuse_link, refuse_links

_HOST = re.sub(r"[^0-9a-zA-Z]", "", platform.node())[-12:] or "host"  # short, because names are limited
# A temporary name is .NAME.HOST-PROCESS.part; a record that is not yet valid is .NAME.unfinished.
_UNFINISHED = re.compile(r"\..+\.([0-9a-zA-Z]+-\d+\.part|unfinished)")
_STAGED_HERE = re.compile(rf"\..+\.{_HOST}-(\d+)\.part")
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # nor wait for the other end of a pipe


def write_bytes(path: Path, content: bytes, *, within: Path | None = None) -> None:
    """Write a file under a temporary name in its folder, then rename it; a failure leaves nothing behind.

    Whatever has the name is replaced and never written into, so that a link or another name of a file stays as it is.

    Args:
        path: The file.
        content: Its bytes.
        within: The folder of results that it belongs to, if that is not its own: no folder on the way may be a link.

    Raises:
        UserError: The folder cannot be written or the disk is full, in one line that names the file.
    """
    unfinished = stage(path, content, within=within)
    try:
        rename(unfinished, path, within=within)
    finally:
        discard(unfinished)


def write_text(path: Path, text: str, *, within: Path | None = None) -> None:
    """Write a text file in UTF-8."""
    write_bytes(path, text.encode(), within=within)


def stage(path: Path, content: bytes, *, within: Path | None = None) -> Path:
    """Write the content of a file under a temporary name beside it, and return that name.

    Raises:
        UserError: As in `write_bytes`.
    """
    refuse_links(path.parent, within=within)
    unfinished = path.with_name(f".{path.name}.{_HOST}-{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _discard_orphans(path)
        unfinished.unlink(missing_ok=True)
        with unfinished.open("xb") as stream:  # x: never through a link
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())  # on the disk before it gets its name
    except OSError as error:
        discard(unfinished)
        raise UserError(f"{path}: {reason(error)}.") from error
    except BaseException:
        discard(unfinished)
        raise
    return unfinished


def append_text(path: Path, text: str) -> None:
    """Add to the end of a file, or begin it.

    Raises:
        UserError: It is a link, or cannot be written.
    """
    refuse_link(path)
    try:
        if path.is_file() and path.stat().st_nlink > 1:
            write_bytes(path, path.read_bytes())  # the file's other names keep the old content
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINK, 0o666)
        with os.fdopen(handle, "ab") as stream:
            stream.write(text.encode())
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise UserError(f"{path}: {reason(error)}.") from error


def rename(path: Path, target: Path, *, within: Path | None = None) -> None:
    """Give a file another name; neither a link on the way nor one at the end is followed.

    Raises:
        UserError: The system refuses, or a folder on the way is a link.
    """
    refuse_links(path.parent, within=within)
    refuse_links(target.parent, within=within)
    try:
        path.replace(target)
    except OSError as error:
        raise UserError(f"{target}: {reason(error)}.") from error


def remove(path: Path, *, within: Path | None = None) -> None:
    """Remove a file that may be gone already; of a link, the link.

    Raises:
        UserError: The system refuses, or a folder on the way is a link.
    """
    refuse_links(path.parent, within=within)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path}: {reason(error)}.") from error


def discard(unfinished: Path) -> None:
    """Remove a temporary file, if the system permits."""
    with suppress(OSError):
        unfinished.unlink(missing_ok=True)


def _discard_orphans(path: Path) -> None:
    """Remove the temporary files for this path that killed processes left."""
    for unfinished in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        if is_orphan(unfinished):
            discard(unfinished)


def is_orphan(path: Path) -> bool:
    """Whether a file is a temporary one that a killed process of this machine left.

    Only such files are removed. Others are a person's, or another machine may be at work on them.
    """
    name = _STAGED_HERE.fullmatch(path.name)
    if name is None:
        return False
    process = int(name[1])
    # One of this process is of an earlier call, or of a killed process that had the same number.
    return process == os.getpid() or not _is_running(process)


def _is_running(process: int) -> bool:
    if sys.platform == "win32":  # where os.kill ends a process or sends it Ctrl-C, whatever it is asked
        return True
    try:
        os.kill(process, 0)  # signal 0 asks, and does nothing
    except PermissionError:  # somebody else's
        return True
    except (OSError, OverflowError):
        return False
    return not _is_zombie(process)


def _is_zombie(process: int) -> bool:
    """Whether a process has ended and waits for its parent to collect it; only Linux tells."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return False
    fields = status.rpartition(")")[2].split()  # the name of the program, in parentheses, may hold spaces
    return fields[:1] == ["Z"]


def is_unfinished(path: Path) -> bool:
    """Whether a file has the name of an unfinished file; it is no obstacle, but may be a person's.

    >>> is_unfinished(Path(".report.html.server-4711.part")), is_unfinished(Path("notes.part"))
    (True, False)
    """
    return _UNFINISHED.fullmatch(path.name) is not None
