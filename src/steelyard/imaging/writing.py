"""Files that are there whole or not at all."""

import csv
import errno
import gzip
import io
import json
import os
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

LOCK = ".lock"
"""The file by which a run holds a folder."""

_PLACE = (
    *("qform_code", "sform_code", "srow_x", "srow_y", "srow_z"),
    *("quatern_b", "quatern_c", "quatern_d", "qoffset_x", "qoffset_y", "qoffset_z"),
)
_COMPRESSION = 4  # beyond this gzip takes seconds more for a few per cent less


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file under a temporary name in its folder, then rename it; a failure leaves nothing behind.

    Raises:
        UserError: The folder cannot be written or the disk is full, in one line that names the file.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise UserError(f"{path}: {reason(error)}.") from error
    finally:
        _discard(unfinished)


class InUseError(UserError):
    """Another run is working on a folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for one run; the lock goes with the process, however it ends.

    Where the system or the file system knows no locks, the run goes on without.

    Raises:
        InUseError: Another run holds it.
    """
    if sys.platform == "win32":
        yield
        return
    handle = -1
    try:
        with suppress(OSError):
            handle = os.open(folder / LOCK, os.O_RDONLY | os.O_CREAT, 0o666)
        try:
            if handle >= 0:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InUseError(f"{folder}: another run is working on it.") from error
        except OSError:
            pass
        yield
    finally:
        if handle >= 0:
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


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8."""
    write_bytes(path, text.encode())


def as_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows of one kind as a table."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file, indented, keys in the order given."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_nifti(path: Path, voxels: NDArray[Any], affine: NDArray[Any], *, like: Any = None) -> None:
    """Write a compressed NIfTI file in millimetres, the same bytes for the same voxels.

    Args:
        path: The file.
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
    write_bytes(path, packed.getvalue())


def _discard(unfinished: Path) -> None:
    try:
        unfinished.unlink(missing_ok=True)
    except OSError:
        return
