"""Where results may be written: not through links, not over somebody else's files."""

import os
import stat
from pathlib import Path

from steelyard.errors import UserError, reason

_BEGINNING = 1000  # bytes of a file in which its mark is looked for


def first_link(folder: Path, within: Path) -> Path | None:
    """Return the first link on the way from a folder of results to one within it, itself included."""
    path = within
    for name in folder.relative_to(within).parts:
        path = path / name
        if path.is_symlink():
            return path
    return None


def refuse_links(folder: Path, *, within: Path | None) -> None:
    """Refuse to write or delete through a link; the folder of results itself may be one.

    Raises:
        UserError: A folder on the way is a link, and which.
    """
    if within is None:
        return
    link = first_link(folder, within)
    if link is not None:
        raise UserError(f"{link}: is a link; nothing is written or deleted through links inside {within}.")


def refuse_link(path: Path) -> None:
    """Refuse to write into a file that is a link.

    Raises:
        UserError: It is one.
    """
    if path.is_symlink():
        raise UserError(f"{path}: is a link; remove it to go on.")


def check_folder(folder: Path) -> None:
    """Refuse what cannot be, or cannot become, a folder to write into; change nothing.

    Raises:
        UserError: It is a file or a link that leads nowhere, lies under such a thing, or may not be written.
    """
    nearest = folder
    while not os.path.lexists(nearest) and nearest != nearest.parent:
        nearest = nearest.parent
    try:
        is_folder = stat.S_ISDIR(nearest.stat().st_mode)
    except OSError as error:
        raise UserError(f"{folder}: {reason(error)}; a folder is needed.") from error
    if not is_folder:
        fault = "is a file" if nearest == folder else f"{nearest} is not a directory"
        raise UserError(f"{folder}: {fault}; a folder is needed.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"{folder}: permission denied.")


def check_file(path: Path, *, mark: str | None = None) -> None:
    """Refuse to write a file that cannot be written, or to replace somebody else's; change nothing.

    Args:
        path: The file, as the user names it.
        mark: Text at the beginning of every such file that steelyard writes; without a mark no file is replaced.

    Raises:
        UserError: It cannot be written, or is somebody else's.
    """
    check_folder(path.parent)
    advice = "remove it or name another file"
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{path}: {reason(error)}.") from error
    if not stat.S_ISREG(mode):
        raise UserError(f"{path}: is not a plain file; {advice}.")
    if mark is None:
        raise UserError(f"{path}: exists already; {advice}.")
    try:
        with path.open("rb") as stream:
            beginning = stream.read(_BEGINNING)
    except OSError as error:
        raise UserError(f"{path}: {reason(error)}.") from error
    if mark.encode() not in beginning:
        raise UserError(f"{path}: exists and was not written by this command; {advice}.")
