"""A cohort of synthetic subjects as a BIDS dataset on disk."""

import shutil
from collections.abc import Iterator
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from steelyard.errors import UserError
from steelyard.files.atomic import is_orphan, is_unfinished, remove, rename, write_text
from steelyard.files.checks import check_number
from steelyard.files.destinations import check_file, refuse_links
from steelyard.files.locks import lock_folder
from steelyard.files.records import as_json, read_json, write_json
from steelyard.imaging.phantom import sidecars
from steelyard.imaging.phantom.scanner import scanner_named
from steelyard.imaging.phantom.storage import write_scans, write_truth
from steelyard.imaging.phantom.subject import simulate, traits_of
from steelyard.processes.children import starting_children
from steelyard.processes.workers import check_workers, worker_pool

TRUTH = Path("derivatives", "truth")
_UNFINISHED = ".unfinished-phantom.json"
_STAGE = ".unfinished"
_TABLE = Path("participants.tsv")
_BEGINNING = 300  # characters by which a text file of ours is recognised


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """Which subjects to make.

    Args:
        subjects: How many; subject i is the same whatever their number.
        seed: Two cohorts of one seed are the same, byte for byte.
        scanner: Name of a preset in `scanner.SCANNERS`.
        workers: How many processes share the work.
    """

    subjects: int
    seed: int = 0
    scanner: str = "standard-3t"
    workers: int = 1

    def __post_init__(self) -> None:
        check_workers(self.workers)
        for name, least in (("subjects", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise UserError(f"{name} must be at least {least}; got {getattr(self, name)}.")
        scanner_named(self.scanner)


def subject_name(number: int) -> str:
    """Return the BIDS name of a subject; it does not depend on how many there are.

    >>> subject_name(7)
    'sub-007'
    """
    return f"sub-{number:03d}"


def write_cohort(out: Path, cohort: Cohort) -> Iterator[str]:
    """Write a cohort and yield the name of each subject as it is finished.

    A run that was stopped goes on where it was if called again with the same seed and scanner. Any other
    folder must be empty: nothing is overwritten.

    Raises:
        UserError: The folder holds something else, another run works on it, or it cannot be written.
    """
    with lock_folder(out):
        _claim(out, cohort)
        yield from _write_cohort(out, cohort)


def _write_cohort(out: Path, cohort: Cohort) -> Iterator[str]:
    names = {number: subject_name(number) for number in range(1, cohort.subjects + 1)}
    missing = [number for number, name in names.items() if not _is_done(out, name)]
    yield from (name for number, name in names.items() if number not in missing)
    if min(cohort.workers, len(missing)) <= 1:
        for number in missing:
            yield _write_subject(out, cohort, number)
    else:
        yield from _write_in_parallel(out, cohort, missing)
    _finish(out, cohort, list(names.values()))


def _is_done(out: Path, name: str) -> bool:
    """Whether a subject is there; its truth gets its place before its scans do.

    Raises:
        UserError: There is something else in its place.
    """
    if not (out / name).exists():
        return False
    if not (out / TRUTH / name).is_dir():
        raise UserError(f"{out / name}: was not written by this command; remove it or name another folder.")
    return True


def _write_in_parallel(out: Path, cohort: Cohort, numbers: list[int]) -> Iterator[str]:
    with worker_pool(min(cohort.workers, len(numbers))) as pool:
        with starting_children():
            jobs = [pool.submit(_write_subject, out, cohort, number) for number in numbers]
        for job in as_completed(jobs):
            try:
                yield job.result()
            except BrokenProcessPool as error:
                raise UserError(f"{out}: a process was killed, perhaps for want of memory.") from error


def _claim(out: Path, cohort: Cohort) -> None:
    """Make the folder ours, or refuse."""
    ours = {"seed": cohort.seed, "scanner": cohort.scanner, "version": version("steelyard")}
    mark = out / _UNFINISHED
    if mark.is_file():
        found = _read_mark(mark)
        if found != ours:
            raise UserError(f"{out} holds an unfinished cohort with {found}; this one has {ours}.")
    elif not all(map(is_unfinished, out.iterdir())):
        raise UserError(f"{out} is not empty; nothing was written.")
    for folder in (out / _STAGE, out / TRUTH):
        refuse_links(folder, within=out)
    for name, text in _texts(cohort).items():
        check_file(out / name, mark=text[:_BEGINNING])
    for path in filter(is_orphan, out.iterdir()):
        remove(path)
    write_json(mark, ours)
    shutil.rmtree(out / _STAGE, ignore_errors=True)


def _read_mark(mark: Path) -> object:
    try:
        return read_json(mark)
    except UserError as error:
        raise UserError(f"{mark}: is damaged; remove the folder to begin anew.") from error


def _write_subject(out: Path, cohort: Cohort, number: int) -> str:
    """Simulate one subject, write it beside the dataset, then move it in; its scans come last."""
    name = subject_name(number)
    scanner = scanner_named(cohort.scanner)
    with _one_thread():
        subject = simulate(cohort.seed, number, scanner)
    stage = out / _STAGE / name
    write_scans(stage / "scans" / "anat", name, subject, scanner)
    write_truth(stage / "truth" / "anat", name, subject)
    shutil.rmtree(out / TRUTH / name, ignore_errors=True)
    (out / TRUTH).mkdir(parents=True, exist_ok=True)
    rename(stage / "truth", out / TRUTH / name, within=out)
    rename(stage / "scans", out / name, within=out)
    stage.rmdir()
    return name


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch use one core: a worker is one core, and on chunks that fit the cache threads only get in the way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _finish(out: Path, cohort: Cohort, names: list[str]) -> None:
    """Write what belongs to the cohort as a whole, and lift the mark of the unfinished run."""
    texts = _texts(cohort)
    rows = [_participant(out, cohort, number, name) for number, name in enumerate(names, start=1)]
    texts[_TABLE] += "".join(f"{row}\n" for row in rows)
    for name, text in texts.items():
        write_text(out / name, text)
    shutil.rmtree(out / _STAGE, ignore_errors=True)
    remove(out / _UNFINISHED)


def _texts(cohort: Cohort) -> dict[Path, str]:
    """Return the files about the cohort as a whole; of the table, its header."""
    truth = sidecars.truth_description(cohort.scanner, cohort.seed, version("steelyard"))
    return {
        Path("dataset_description.json"): as_json(sidecars.raw_description(cohort.scanner, cohort.seed)),
        TRUTH / "dataset_description.json": as_json(truth),
        TRUTH / ".bidsignore": "*_xfm.*\n",  # transforms are not in BIDS yet
        Path("README"): sidecars.README,
        TRUTH / "README": sidecars.README,
        Path("participants.json"): as_json(sidecars.PARTICIPANTS),
        _TABLE: "\t".join(("participant_id", *sidecars.PARTICIPANTS)) + "\n",
    }


def _participant(out: Path, cohort: Cohort, number: int, name: str) -> str:
    age = traits_of(cohort.seed, number).physique.age
    volumes = [_volume(out, name, label) for label in ("WMH", "brain")]
    return "\t".join((name, f"{age:.0f}", *(f"{volume:.2f}" for volume in volumes), cohort.scanner))


def _volume(out: Path, name: str, label: str) -> float:
    """Return the volume in ml that is written beside a mask of the truth."""
    path = out / TRUTH / name / "anat" / f"{name}_space-FLAIR_label-{label}_mask.json"
    volume = read_json(path).get("VolumeMl")
    return check_number(f"{path}: VolumeMl", volume, 0.0)
