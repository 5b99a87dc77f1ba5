"""NIfTI files with mutated headers and damaged bodies."""

import gzip
import random
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import nibabel
import numpy as np

from fuzz.material import AFFINE, SHAPE

_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-20, 1e20, 3e38, -3e38, float("inf"), -float("inf"), float("nan"))
_WHOLE = (0, 1, -1, 2, 3, 4, 5, 7, 8, 127, 128, 255, 256, 348, 352, 540, 1000, 32767, -32768)
_LARGE = (2**31 - 1, -(2**31), 2**32, 2**40, 2**62, 2**63 - 1, -(2**63))
_KINDS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024, 1280, 1536, 1792, 2048, 2304, 0, 1, -1, 255)


@dataclass(frozen=True)
class Damaged:
    """One file.

    Args:
        content: Its bytes.
        ending: `.nii` or `.nii.gz`.
        changes: What was done to it, in words.
    """

    content: bytes
    ending: str
    changes: str

    @property
    def must_be_refused(self) -> str | None:
        """Why nobody may read it as a scan, if that is certain; judged without steelyard or nibabel."""
        content = self.content
        if self.ending == ".nii.gz":
            stream = zlib.decompressobj(wbits=31)
            try:
                content = stream.decompress(self.content, 1 << 26)
            except zlib.error:
                return _damage_of(self.content)
            if not stream.eof and not stream.unconsumed_tail:
                return "the gzip stream is cut short"
        if len(content) < 348:
            return "it is shorter than a header"
        return _zero_spacing(content)


def _damage_of(packed: bytes) -> str | None:
    """What is wrong with a gzip file that zlib refuses; Python's reader overlooks reserved flags of its header."""
    try:
        gzip.decompress(packed)
    except (OSError, EOFError, zlib.error):
        return "gzip's own check fails"
    return None


def _zero_spacing(content: bytes) -> str | None:
    """Why the size of a voxel is not known, if it is not."""
    (size,) = struct.unpack_from("<i", content)
    if size == 348:
        codes, pixels = struct.unpack_from("<2h", content, 252), struct.unpack_from("<3f", content, 80)
    elif size == 540 and len(content) >= 540:
        codes, pixels = struct.unpack_from("<2i", content, 344), struct.unpack_from("<3d", content, 112)
    else:
        return None
    if codes[1] == 0 and 0 in pixels:
        return "a voxel's edge is 0 and no sform says better"
    return None


def mutated(draw: random.Random, *, ending: str | None = None) -> Damaged:
    """Return a small scan or mask with mutations; an ending is drawn unless it is given."""
    voxels = _voxels(draw)
    image = draw.choice((nibabel.Nifti1Image, nibabel.Nifti1Image, nibabel.Nifti2Image))(voxels, AFFINE)
    if draw.random() < 0.3:
        image.set_sform(None, code=0)
        image.set_qform(AFFINE, code=1)
    content = image.to_bytes()
    changes = [f"{type(image).__name__} of {voxels.dtype}"]
    for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
        mutate = draw.choice((_field, _field, _field, _field, _flip_header, _cut, _extend, _flip_body, _swap))
        content, change = mutate(draw, content, image.header)
        changes.append(change)
    ending = ending or draw.choice((".nii", ".nii.gz"))
    if ending == ".nii.gz":
        content, change = _packed(draw, content)
        changes.append(change)
    return Damaged(content, ending, "; ".join(changes))


def _voxels(draw: random.Random) -> Any:
    kind = draw.choice((np.float32, np.float32, np.int16, np.uint8, np.float64))
    shape = draw.choice((SHAPE, (20, 24, 16)))
    values = np.random.default_rng(draw.randrange(2**32)).integers(0, 200, shape)
    if draw.random() < 0.3:
        values = values > 100  # a mask
    return np.asarray(values).astype(kind)


def _field(draw: random.Random, content: bytes, header: Any) -> tuple[bytes, str]:
    """Set a field, or one number of it, to anything that its bytes can hold."""
    kind = header.template_dtype
    name = draw.choice(kind.names)
    inner, offset = kind.fields[name][:2]
    base = inner.base
    if inner.shape:
        offset += base.itemsize * draw.randrange(inner.shape[0])
    value = _extreme(draw, base, name)
    return _put(content, offset, value), f"{name} at byte {offset} = {value.hex()}"


def _extreme(draw: random.Random, kind: Any, name: str) -> bytes:
    if kind.kind == "f":
        return np.asarray(draw.choice((*_FLOATS, draw.uniform(-1e4, 1e4))), dtype=kind).tobytes()
    if kind.kind in "iu":
        choices = _KINDS if name in ("datatype", "bitpix") else (*_WHOLE, *_LARGE, draw.randrange(-(2**63), 2**63))
        return struct.pack("<q", draw.choice(choices))[: kind.itemsize]
    return draw.randbytes(kind.itemsize)


def _flip_header(draw: random.Random, content: bytes, header: Any) -> tuple[bytes, str]:
    bit = draw.randrange(8 * header.template_dtype.itemsize)
    return _flipped(content, bit), f"bit {bit} flipped"


def _flip_body(draw: random.Random, content: bytes, header: Any) -> tuple[bytes, str]:
    bit = draw.randrange(8 * len(content)) if content else 0
    return _flipped(content, bit), f"bit {bit} flipped"


def _cut(draw: random.Random, content: bytes, header: Any) -> tuple[bytes, str]:
    length = draw.choice((0, 1, 4, 100, 347, 348, 351, 352, 353, 540, len(content) // 2, max(0, len(content) - 1)))
    return content[:length], f"cut to {length} bytes"


def _extend(draw: random.Random, content: bytes, header: Any) -> tuple[bytes, str]:
    more = draw.choice((1, 16, 1000, 100_000))
    return content + draw.randbytes(more), f"{more} bytes more"


def _swap(draw: random.Random, content: bytes, header: Any) -> tuple[bytes, str]:
    """Put an extension into the header that says it is longer than the file."""
    start = header.template_dtype.itemsize
    size = draw.choice((0, 7, 8, 16, -16, 2**31 - 1))
    return _put(content, start, struct.pack("<4B2i", 1, 0, 0, 0, size, 6)), f"an extension of {size} bytes"


def _put(content: bytes, offset: int, value: bytes) -> bytes:
    return content[:offset] + value + content[offset + len(value) :] if offset < len(content) else content


def _flipped(content: bytes, bit: int) -> bytes:
    if bit // 8 >= len(content):
        return content
    return _put(content, bit // 8, bytes([content[bit // 8] ^ 1 << bit % 8]))


def _packed(draw: random.Random, content: bytes) -> tuple[bytes, str]:
    """Compress, and damage what came of it in half of the cases."""
    if draw.random() < 0.02:
        member = gzip.compress(bytes(1 << 24), 9, mtime=0)
        return gzip.compress(content, 1, mtime=0) + 64 * member, "packed, with a gigabyte of zeros behind"
    packed = gzip.compress(content, 1, mtime=0)
    damage = draw.choice(("whole", "whole", "whole", "body", "trailer", "cut", "more", "header"))
    if damage == "body" and len(packed) > 30:
        return _flipped(packed, draw.randrange(8 * 20, 8 * (len(packed) - 8))), "packed, a bit of the body flipped"
    if damage == "trailer":
        return _flipped(packed, draw.randrange(8 * (len(packed) - 8), 8 * len(packed))), "packed, the trailer flipped"
    if damage == "cut":
        return packed[: draw.randrange(len(packed))], "packed, cut short"
    if damage == "more":
        return packed + draw.randbytes(20), "packed, with 20 bytes behind"
    if damage == "header":
        return _flipped(packed, draw.randrange(80)), "packed, a bit of gzip's header flipped"
    return packed, "packed"
