"""Files that are there whole or not at all."""

import errno
import gzip
import io
import json
import os
from pathlib import Path
from typing import Any

import nibabel
from numpy.typing import NDArray

from steelyard.errors import UserError

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


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file, indented, keys in the order given."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_nifti(path: Path, voxels: NDArray[Any], affine: NDArray[Any]) -> None:
    """Write a compressed NIfTI file in millimetres, the same bytes for the same voxels."""
    image = nibabel.Nifti1Image(voxels, affine)
    image.header.set_xyzt_units("mm")
    image.header.set_qform(affine, code=1)
    image.header.set_sform(affine, code=1)
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, compresslevel=_COMPRESSION, mtime=0) as stream:
        stream.write(image.to_bytes())
    write_bytes(path, packed.getvalue())


def _discard(unfinished: Path) -> None:
    try:
        unfinished.unlink(missing_ok=True)
    except OSError:
        return
