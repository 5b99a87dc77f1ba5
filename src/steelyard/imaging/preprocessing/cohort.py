"""A whole cohort: in parallel, resumable, one subject's failure no other's."""

import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Literal

import SimpleITK as sitk
import torch

from steelyard.errors import UserError
from steelyard.imaging.bids import Dataset, Subject
from steelyard.imaging.copies import refuse_copies
from steelyard.imaging.preprocessing import outputs, record
from steelyard.imaging.preprocessing.mosaic import draw_mosaic
from steelyard.imaging.preprocessing.page import Entry, render_page
from steelyard.imaging.preprocessing.pipeline import prepare
from steelyard.imaging.preprocessing.settings import Settings
from steelyard.imaging.writing import reason, write_text

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Outcome:
    """What became of one subject.

    Args:
        key: Its name in the derivatives.
        status: Done now, unchanged since an earlier run, or failed.
        message: Why it failed, in one line.
    """

    key: str
    status: Literal["done", "unchanged", "failed"]
    message: str = ""


@dataclass(frozen=True)
class _Job:
    subject: Subject
    root: Path
    out: Path
    settings: Settings


def preprocess(dataset: Dataset, out: Path, *, settings: Settings, workers: int = 1) -> Iterator[Outcome]:
    """Preprocess every subject of a dataset and yield each outcome as it comes.

    A subject whose inputs and settings are those of an earlier run is left as it is. What earlier runs wrote of a
    subject that fails now, or that the dataset no longer has, is moved out of sight. After the last subject the
    cohort's page is written.

    Raises:
        UserError: The output folder cannot be used.
    """
    if workers < 1:
        raise UserError(f"workers must be at least 1; got {workers}.")
    with outputs.claim(out, dataset.root), _stopped_by_sigterm():
        yield from _preprocess(dataset, out, settings, workers)


def _preprocess(dataset: Dataset, out: Path, settings: Settings, workers: int) -> Iterator[Outcome]:
    dataset = refuse_copies(dataset)
    jobs = [_Job(subject, dataset.root, out, settings) for subject in dataset.subjects]
    refused = [Outcome(remark.subject, "failed", str(remark)) for remark in dataset.faults]
    outcomes: list[Outcome] = []
    for outcome in chain(refused, _run(jobs, workers)):
        namesake = len(outcomes) < len(refused) and outcome.key in {job.subject.key for job in jobs}
        outcomes.append(outcome if namesake or outcome.status != "failed" else _withdrawn(outcome, out))
        yield outcomes[-1]
    notes = [str(note) for note in dataset.notes]
    for key in sorted(outputs.written_files(out).keys() - {outcome.key for outcome in outcomes}):
        gone = _withdrawn(Outcome(key, "failed", f"{key}: is no longer in the source"), out)
        logging.getLogger(__name__).warning(gone.message)
        notes.append(gone.message)
    try:
        _write_page(dataset, out, outcomes, notes)
    except (UserError, OSError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error).removesuffix(".")
        yield Outcome("index.html", "failed", f"the page of the cohort could not be written: {why}.")


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Let SIGTERM stop the run as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _run(jobs: Sequence[_Job], workers: int) -> Iterator[Outcome]:
    workers = min(workers, max(1, len(jobs)))
    yield from _in_parallel(jobs, workers) if workers > 1 else _in_turn(jobs)


def _withdrawn(outcome: Outcome, out: Path) -> Outcome:
    """Put what earlier runs wrote of a failed subject out of sight, and say so."""
    try:
        if not outputs.withdraw(out, outcome.key):
            return outcome
        what = f"its earlier outputs were moved to {out / outputs.WITHDRAWN}"
    except UserError as error:
        what = f"its earlier outputs are still there: {str(error).removesuffix('.')}"
    return replace(outcome, message=f"{outcome.message.removesuffix('.')}; {what}.")


def _in_turn(jobs: Sequence[_Job]) -> Iterator[Outcome]:
    _quiet(threads=os.cpu_count() or 1)
    for job in jobs:
        yield _process(job)


def _in_parallel(jobs: Sequence[_Job], workers: int) -> Iterator[Outcome]:
    """Run jobs in a pool; those that a dying worker took along are tried again, each alone."""
    orphans: list[_Job] = []
    with _pool(workers) as pool:
        pending: dict[Future[Outcome], _Job] = {pool.submit(_process, job): job for job in jobs}
        for future in as_completed(pending):
            try:
                yield future.result()
            except BrokenProcessPool:
                orphans.append(pending[future])
    for job in orphans:
        with _pool(1) as pool:
            try:
                yield pool.submit(_process, job).result()
            except BrokenProcessPool:
                key = job.subject.key
                yield Outcome(key, "failed", f"{key}: its process was killed, perhaps for want of memory.")


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Keep workers that end with this process; a run that is stopped does not wait for them."""
    threads = max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(threads, os.getpid())) as pool:
        try:
            yield pool
        except BaseException:
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            raise


def _start_worker(threads: int, parent: int) -> None:
    """Leave Ctrl-C to the parent, and end when it is gone, however it went (Linux)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    _quiet(threads)


def _quiet(threads: int) -> None:
    """Share the cores, and keep libraries from talking past the progress bar."""
    torch.set_num_threads(threads)
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(threads)
    sitk.ProcessObject.SetGlobalWarningDisplay(False)
    logging.getLogger("nibabel.global").setLevel(logging.CRITICAL)


def _process(job: _Job) -> Outcome:
    """Do one subject; whatever goes wrong becomes one line."""
    subject = job.subject
    try:
        return _prepare_and_write(job)
    except UserError as error:
        return Outcome(subject.key, "failed", f"{subject.key}: {error}")
    except OSError as error:
        return Outcome(subject.key, "failed", f"{subject.key}: {error.filename or job.out}: {reason(error)}.")
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        return Outcome(subject.key, "failed", f"{subject.key}: unexpected {type(error).__name__}: {text}")


def _prepare_and_write(job: _Job) -> Outcome:
    start = perf_counter()
    subject = job.subject
    inputs = record.inputs_of(subject, job.root)
    mark = record.fingerprint(inputs, job.settings)
    earlier = outputs.read_record(job.out, subject)
    if earlier is not None and earlier["Fingerprint"] == mark:
        return Outcome(subject.key, "unchanged")
    done = prepare(subject, job.settings)
    picture = draw_mosaic(done, f"{subject.key}")
    seconds = {step: round(spent, 2) for step, spent in done.seconds.items()}
    common = {
        "Fingerprint": mark,
        "Settings": job.settings.as_dict(),
        "Versions": record.versions(),
        "Inputs": inputs,
        "Measures": record.measures(done),
        "Seconds": seconds | {"total": round(perf_counter() - start, 2)},
    }
    outputs.write_subject(job.out, subject, done, common=common, picture=picture)
    return Outcome(subject.key, "done")


def _write_page(dataset: Dataset, out: Path, outcomes: Sequence[Outcome], notes: Sequence[str]) -> None:
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    ready = {outcome.key for outcome in outcomes if outcome.status != "failed"}  # its namesake may have failed
    entries = []
    for subject in dataset.subjects:
        found = outputs.read_record(out, subject) if subject.key in ready else None
        if found is not None:
            picture = (out / outputs.figure_path(subject)).read_bytes()
            total = float(found["Seconds"]["total"])
            entries.append(Entry(subject.key, subject.name, found["Measures"], picture, total))
    page = render_page(
        entries,
        failures=[outcome.message for outcome in failed],
        notes=notes,
        facts=f"Written by steelyard {record.versions()['steelyard']}.",
    )
    write_text(out / "index.html", page)
