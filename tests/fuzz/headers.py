"""Mutated NIfTI files through the readers and through the commands."""

import json
import logging
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.material import PREDICTING, PREPARING, Bench, Material, write_head
from fuzz.nifti import Damaged, mutated
from fuzz.nursery import Case, Ending, fresh
from fuzz.tally import Tally, chance, faults_of

PART = "headers"
_BATCH = 50  # cases in one process
_BY_COMMAND = 15  # every so many cases go through a command, too
_FRESH = 10  # every so many of those in a process that shares nothing with others
_READER_SECONDS = 20  # a reader that takes longer on a file of some kilobytes hangs


def damaged(seed: int, case: int) -> Damaged:
    """Return the file of a case."""
    return mutated(chance(seed, PART, case))


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
    from steelyard.imaging.predict import find_scans
    from steelyard.imaging.scans.volumes import read_mask, read_scan

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
