"""NIfTI files with mutated headers and damaged bodies, through the readers and through the commands."""

import gzip
import json
import logging
import random
import shutil
import signal
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

from fuzz.bench import Bench
from fuzz.invariants import faults_of
from fuzz.material import AFFINE, PREDICTING, PREPARING, SHAPE, Material, write_head
from fuzz.nursery import Case, Ending, fresh
from fuzz.tally import Tally, chance

PART = "headers"
_BATCH = 50  # cases in one process
_BY_COMMAND = 15  # every so many cases go through a command, too
_FRESH = 10  # every so many of those in a process that shares nothing with others
_READER_SECONDS = 20  # a reader that takes longer on a file of some kilobytes hangs

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
                return "gzip's own check fails"
            if not stream.eof and not stream.unconsumed_tail:
                return "the gzip stream is cut short"
        if len(content) < 348:
            return "it is shorter than a header"
        return _zero_spacing(content)


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


def damaged(seed: int, case: int) -> Damaged:
    """Return the file of a case."""
    return mutated(chance(seed, PART, case))


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


def run(seed: int, cases: int, bench: Bench) -> Tally:
    """Have the readers read so many files, and the commands a fifteenth of them."""
    tally = Tally(PART, seed)
    for first in range(0, cases, _BATCH):
        if bench.budget.over:
            break
        numbers = range(first, min(cases, first + _BATCH))
        _read_batch(tally, numbers, bench)
        for case in numbers:
            if case % _BY_COMMAND == 0:
                run_case(tally, case, bench)
    tally.seconds = bench.budget.spent
    return tally


def _read_batch(tally: Tally, numbers: range, bench: Bench) -> None:
    """Read a batch in one process; where it dies or hangs, the case at fault is counted and the rest go on."""
    scratch = bench.scratch
    progress = scratch / "progress.jsonl"
    start = numbers.start
    while start < numbers.stop:
        progress.unlink(missing_ok=True)
        words = (str(tally.seed), str(start), str(numbers.stop), str(scratch), str(progress))
        ending = bench.nursery.run(Case(command=words, call="fuzz.headers:read_all", folder=scratch, seconds=300.0))
        lines = progress.read_text().splitlines() if progress.exists() else []
        for line in lines:
            case, faults, changes = json.loads(line)
            tally.add(case, "read by the readers", faults, changes)
        start += len(lines)
        if start < numbers.stop:
            fault = "the reader hangs" if ending.hung else f"the reader dies with code {ending.code}"
            tally.add(
                start, "read by the readers", [fault], f"{damaged(tally.seed, start).changes}: {ending.err[-300:]}"
            )
            start += 1


def read_all(seed: str, start: str, stop: str, scratch: str, progress: str) -> None:
    """Read a range of files with every reader, and write a line for each; called in a process of its own."""
    from steelyard.imaging.prediction import find_scans
    from steelyard.imaging.volumes import read_mask, read_scan

    logging.getLogger("nibabel.global").setLevel(logging.CRITICAL)  # as the commands do
    signal.signal(signal.SIGALRM, _hangs)
    for case in range(int(start), int(stop)):
        file = damaged(int(seed), case)
        path = Path(scratch, f"sub-{case}_FLAIR{file.ending}")
        path.write_bytes(file.content)
        faults: list[str] = []
        for reader in (read_scan, read_mask, lambda path: find_scans([path])):
            faults += _faults_of_reading(reader, path, file)
        path.unlink()
        with Path(progress).open("a") as stream:
            stream.write(json.dumps([case, sorted(set(faults)), file.changes]) + "\n")


def _hangs(number: int, frame: object) -> None:
    raise TimeoutError("the reader hangs")


def _faults_of_reading(reader: Callable[[Path], Any], path: Path, file: Damaged) -> Iterator[str]:
    from steelyard.errors import UserError

    name = getattr(reader, "__name__", "reader").replace("<lambda>", "find_scans")
    signal.alarm(_READER_SECONDS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = reader(path)
        except UserError as error:
            if str(path) not in str(error):
                yield f"{name}: the error does not name the file: {error}"
            if not str(error).isprintable():
                yield f"{name}: the error is not one printable line"
        except BaseException as error:
            yield f"{name}: {type(error).__name__}: {str(error)[:150]}"
        else:
            yield from _insane(name, result, file)
        finally:
            signal.alarm(0)
    yield from {f"{name}: {warning.category.__name__}: {str(warning.message)[:80]}" for warning in caught}


def _insane(name: str, result: Any, file: Damaged) -> Iterator[str]:
    """Yield what is wrong with what was read."""
    if name == "find_scans":
        return
    if (why := file.must_be_refused) is not None:
        yield f"{name}: accepted, though {why}"
    if result.voxels.ndim != 3 or not np.isfinite(result.voxels).all():
        yield f"{name}: voxels are not three-dimensional or not finite"
    if not np.isfinite(result.affine).all() or not 0 < result.voxel_ml < 1e3:
        yield f"{name}: the place is not finite"


def run_one(tally: Tally, case: int, bench: Bench) -> None:
    """Run a single case, to look at what was found."""
    _read_batch(tally, range(case, case + 1), bench)
    run_case(tally, case, bench)


def run_case(tally: Tally, case: int, bench: Bench) -> None:
    """Have a command work on the file and on a sound one: the sound one must be done, the sources left alone."""
    file = damaged(tally.seed, case)
    root = bench.scratch / f"case-{case}"
    turn = case // _BY_COMMAND
    words = _predict(root, file, bench.material) if turn % 2 else _preprocess(root, file)
    before = _bytes_of(root)
    in_a_fresh_process = turn % _FRESH == _FRESH - 1
    steelyard = fresh if in_a_fresh_process else bench.nursery.steelyard
    ending = steelyard(*words, folder=root)
    faults = [*faults_of(ending, root), *_losses(ending, root, before)]
    if ending.code == 0 and (why := file.must_be_refused) is not None:
        faults.append(f"{words[0]}: accepted, though {why}")
    if ending.code == 2 and "sub-bad" not in ending.err:
        faults.append("the file is not named")
    kind = f"{words[0]} by the command, in a fresh process" if in_a_fresh_process else f"{words[0]} by the command"
    tally.add(case, kind, faults, f"{file.changes} | {ending.err[-400:]!r}")
    shutil.rmtree(root)


def _predict(root: Path, file: Damaged, material: Material) -> tuple[str | Path, ...]:
    folder = root / "scans"
    folder.mkdir(parents=True)
    (folder / f"sub-bad_FLAIR{file.ending}").write_bytes(file.content)
    shutil.copy(material.scan, folder / "sub-good_FLAIR.nii.gz")
    return "predict", material.network, folder, root / "out", *PREDICTING


def _preprocess(root: Path, file: Damaged) -> tuple[str | Path, ...]:
    folder = write_head(root / "bids", "bad", seed=1)
    write_head(root / "bids", "good", seed=2)
    (folder / "sub-bad_FLAIR.nii.gz").unlink()
    (folder / f"sub-bad_FLAIR{file.ending}").write_bytes(file.content)
    return "preprocess", root / "bids", root / "out", *PREPARING


def _bytes_of(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _losses(ending: Ending, root: Path, before: dict[Path, bytes]) -> Iterator[str]:
    for path, content in before.items():
        if not path.exists() or path.read_bytes() != content:
            yield f"the source {path.name} was changed"
    results = list((root / "out").rglob("sub-good*.nii.gz"))
    if ending.code in (0, 2) and not results:
        yield "the sound subject was not done"
