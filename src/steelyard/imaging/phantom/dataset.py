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
from steelyard.imaging.phantom.scanner import scanner_named
from steelyard.imaging.phantom.storage import (
    PARTICIPANTS,
    README,
    raw_description,
    truth_description,
    write_scans,
    write_truth,
)
from steelyard.imaging.phantom.subject import simulate, traits_of
from steelyard.imaging.scans.libraries import quiet_libraries
from steelyard.processes.children import starting_children
from steelyard.processes.workers import KILLED, check_workers, worker_pool

TRUTH = Path("derivatives", "truth")
"""Where the exact masks, transforms and bias fields lie."""

_UNFINISHED = ".unfinished-phantom.json"  # marks the folder of a cohort that is not complete
_STAGE = ".unfinished"  # folder of subjects that are being written
_TABLE = Path("participants.tsv")
_BEGINNING = 300  # characters by which a text file of this command is recognised


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """Which subjects to simulate.

    Args:
        subjects: How many; subject i does not depend on their number.
        seed: Two cohorts of one seed are identical, byte for byte.
        scanner: Name of a preset in `scanner.SCANNERS`.
        workers: How many processes share the work.
    """

    subjects: int
    seed: int = 0
    scanner: str = "standard-3t"
    workers: int = 1

    def __post_init__(self) -> None:
        check_workers(self.workers)
        if self.subjects < 1:
            raise UserError(f"subjects must be at least 1; got {self.subjects}.")
        if self.seed < 0:
            raise UserError(f"seed must be at least 0; got {self.seed}.")
        scanner_named(self.scanner)


def subject_name(number: int) -> str:
    """Return the BIDS name of a subject; it does not depend on how many there are.

    >>> subject_name(7)
    'sub-007'
    """
    return f"sub-{number:03d}"


def write_cohort(out: Path, cohort: Cohort) -> Iterator[str]:
    """Write a cohort and yield the name of each subject as it is finished.

    A run that was stopped resumes if called again with the same seed and scanner. Any other folder must be
    empty: nothing is overwritten.

    Raises:
        UserError: The folder holds something else, another run works on it, or it cannot be written.
    """
    with lock_folder(out):
        _prepare_folder(out, cohort)
        yield from _write_cohort(out, cohort)


def _write_cohort(out: Path, cohort: Cohort) -> Iterator[str]:
    done: list[str] = []
    missing: list[int] = []
    for number in range(1, cohort.subjects + 1):
        name = subject_name(number)
        if _is_done(out, name):
            done.append(name)
        else:
            missing.append(number)
    yield from done
    if min(cohort.workers, len(missing)) <= 1:
        for number in missing:
            yield _write_subject(out, cohort, number)
    else:
        yield from _write_in_parallel(out, cohort, missing)
    _finish(out, cohort)


def _is_done(out: Path, name: str) -> bool:
    """Whether a subject is complete; its truth is moved in before its scans.

    Raises:
        UserError: Something else has its name.
    """
    if not (out / name).exists():
        return False
    if not (out / TRUTH / name).is_dir():
        raise UserError(f"{out / name}: was not written by this command; remove it or name another folder.")
    return True


def _write_in_parallel(out: Path, cohort: Cohort, numbers: list[int]) -> Iterator[str]:
    with worker_pool(min(cohort.workers, len(numbers)), prepare=quiet_libraries) as pool:
        with starting_children():
            jobs = [pool.submit(_write_subject, out, cohort, number) for number in numbers]
        for job in as_completed(jobs):
            try:
                yield job.result()
            except BrokenProcessPool as error:
                raise UserError(f"{out}: {KILLED}") from error


def _prepare_folder(out: Path, cohort: Cohort) -> None:
    """Mark a folder as that of this cohort, or refuse it."""
    settings = {"seed": cohort.seed, "scanner": cohort.scanner, "version": version("steelyard")}
    mark = out / _UNFINISHED
    if mark.is_file():
        earlier_settings = _read_mark(mark)
        if earlier_settings != settings:
            raise UserError(f"{out} holds an unfinished cohort with {earlier_settings}; this one has {settings}.")
    elif not all(map(is_unfinished, out.iterdir())):
        raise UserError(f"{out} is not empty; nothing was written.")
    for folder in (out / _STAGE, out / TRUTH):
        refuse_links(folder, within=out)
    for name, text in _texts(cohort).items():
        check_file(out / name, mark=text[:_BEGINNING])
    for path in out.iterdir():
        if is_orphan(path):
            remove(path)
    write_json(mark, settings)
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
    """Let torch use one core: a worker has one core, and on chunks that fit the cache more threads are slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _finish(out: Path, cohort: Cohort) -> None:
    """Write the files about the cohort as a whole, and remove the mark of the unfinished run."""
    texts = _texts(cohort)
    for number in range(1, cohort.subjects + 1):
        texts[_TABLE] += _participant(out, cohort, number) + "\n"
    for name, text in texts.items():
        write_text(out / name, text)
    shutil.rmtree(out / _STAGE, ignore_errors=True)
    remove(out / _UNFINISHED)


def _texts(cohort: Cohort) -> dict[Path, str]:
    """Return the files about the cohort as a whole; of the table, its header."""
    truth = truth_description(cohort.scanner, cohort.seed, version("steelyard"))
    return {
        Path("dataset_description.json"): as_json(raw_description(cohort.scanner, cohort.seed)),
        TRUTH / "dataset_description.json": as_json(truth),
        TRUTH / ".bidsignore": "*_xfm.*\n",  # transforms are not in BIDS yet
        Path("README"): README,
        TRUTH / "README": README,
        Path("participants.json"): as_json(PARTICIPANTS),
        _TABLE: "\t".join(("participant_id", *PARTICIPANTS)) + "\n",
    }


def _participant(out: Path, cohort: Cohort, number: int) -> str:
    """Return the row of a subject in participants.tsv."""
    name = subject_name(number)
    age = traits_of(cohort.seed, number).physique.age
    wmh_ml, brain_ml = _volume(out, name, "WMH"), _volume(out, name, "brain")
    return f"{name}\t{age:.0f}\t{wmh_ml:.2f}\t{brain_ml:.2f}\t{cohort.scanner}"


def _volume(out: Path, name: str, label: str) -> float:
    """Return the volume in ml that is written beside a mask of the truth."""
    path = out / TRUTH / name / "anat" / f"{name}_space-FLAIR_label-{label}_mask.json"
    volume = read_json(path).get("VolumeMl")
    return check_number(f"{path}: VolumeMl", volume, 0.0)
