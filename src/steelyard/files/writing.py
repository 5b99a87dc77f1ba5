"""Files that are there whole or not at all, and only where they belong.

Every write, append, rename and delete among results goes through this module. A folder of results may be full of links
that somebody else made: none of them is written or deleted through.
"""

import csv
import errno
import glob
import gzip
import io
import json
import os
import platform
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nibabel
from numpy.typing import NDArray

from steelyard.errors import UserError

if sys.platform != "win32":
    import fcntl

_HOST = re.sub(r"[^0-9a-zA-Z]", "", platform.node())[-12:] or "host"  # short, because names are limited
_UNFINISHED = re.compile(r"\..+\.([0-9a-zA-Z]+-\d+\.part|unfinished)")
_STAGED_HERE = re.compile(rf"\..+\.{_HOST}-(\d+)\.part")
_PLACE = (
    *("qform_code", "sform_code", "srow_x", "srow_y", "srow_z"),
    *("quatern_b", "quatern_c", "quatern_d", "qoffset_x", "qoffset_y", "qoffset_z"),
)
_BEGINNING = 1000  # bytes of a file in which its mark is looked for
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # nor wait for the other end of a pipe
_COMPRESSION = 4  # beyond this gzip takes seconds more for a few per cent less


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


def stage(path: Path, content: bytes, *, within: Path | None = None) -> Path:
    """Write the content of a file under a temporary name beside it, and return that.

    Raises:
        UserError: As in `write_bytes`.
    """
    refuse_links(path.parent, within=within)
    unfinished = path.with_name(f".{path.name}.{_HOST}-{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _discard_orphans(path)
        unfinished.unlink(missing_ok=True)
        with unfinished.open("xb") as stream:  # never through a link
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
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
    """Remove a temporary file, if the system lets us."""
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
    """Whether a process has ended and only its parent has not asked for it yet; Linux alone tells."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[:1] == ["Z"]


def is_unfinished(path: Path) -> bool:
    """Whether a file has the name of an unfinished file; it is no obstacle, but may be a person's.

    >>> is_unfinished(Path(".report.html.server-4711.part")), is_unfinished(Path("notes.part"))
    (True, False)
    """
    return _UNFINISHED.fullmatch(path.name) is not None


def first_link(folder: Path, within: Path) -> Path | None:
    """Return the first link on the way from a folder of results to one within it, itself included."""
    step = within
    for name in folder.relative_to(within).parts:
        step = step / name
        if step.is_symlink():
            return step
    return None


def refuse_links(folder: Path, *, within: Path | None) -> None:
    """Make sure that nothing is written or deleted through a link; the folder of results itself may be one.

    Raises:
        UserError: A folder on the way is a link, and which.
    """
    link = None if within is None else first_link(folder, within)
    if link is not None:
        raise UserError(f"{link}: is a link; nothing is written or deleted through links inside {within}.")


def refuse_link(path: Path) -> None:
    """Make sure that a file that is written in place is no link.

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
    """Refuse to write a file that cannot be written, or to replace one that is not ours; change nothing.

    Args:
        path: The file, as the user names it.
        mark: What the beginning of every such file of ours holds; without it none is replaced.

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


class InUseError(UserError):
    """Another run is working on a folder."""


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Make a folder if there is none, and keep other runs out of it; a failure leaves no new empty folder.

    Raises:
        UserError: It cannot be made or written.
        InUseError: Another run holds it.
    """
    check_folder(folder)
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        _make_folder(folder)
        with locked(folder):
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
def locked(folder: Path) -> Iterator[None]:
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


def reason(error: OSError) -> str:
    """Say in a few words why the system refused.

    >>> reason(OSError(errno.ENOSPC, "No space left on device"))
    'the disk is full'
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "permission denied"
    return (error.strerror or str(error)).lower()


def write_text(path: Path, text: str, *, within: Path | None = None) -> None:
    """Write a text file in UTF-8."""
    write_bytes(path, text.encode(), within=within)


def as_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows of one kind as a table."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(content: Mapping[str, Any]) -> str:
    """Return a JSON object, indented, keys in the order given."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def write_json(path: Path, content: Mapping[str, Any], *, within: Path | None = None) -> None:
    """Write a JSON file."""
    write_text(path, as_json(content), within=within)


def pack_nifti(voxels: NDArray[Any], affine: NDArray[Any], *, like: Any = None) -> bytes:
    """Return a compressed NIfTI file in millimetres, the same bytes for the same voxels.

    Args:
        voxels: Three axes.
        affine: Where they lie.
        like: A NIfTI header whose qform and sform, codes included, are taken over to the bit.
    """
    image = nibabel.Nifti1Image(voxels, affine)
    image.header.set_xyzt_units("mm")
    image.header.set_qform(affine, code=1)
    image.header.set_sform(affine, code=1)
    if like is not None:
        image = nibabel.Nifti1Image(voxels, None, image.header)
        for name in _PLACE:
            image.header[name] = like[name]
        image.header["pixdim"][:4] = like["pixdim"][:4]
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, compresslevel=_COMPRESSION, mtime=0) as stream:
        image.to_stream(stream)  # plane by plane
    return packed.getvalue()
