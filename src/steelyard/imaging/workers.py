"""Work on many things: in parallel, one thing's failure no other's, nothing left running by a run that is stopped."""

import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import SimpleITK as sitk
import torch

from steelyard.errors import UserError
from steelyard.imaging.writing import reason

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Outcome:
    """What became of one subject or scan.

    Args:
        key: Its name in the derivatives.
        status: Done now, unchanged since an earlier run, or failed.
        message: Why it failed, in one line.
    """

    key: str
    status: Literal["done", "unchanged", "failed"]
    message: str = ""


class Job(Protocol):
    """What is to be done to one thing; it is sent to another process."""

    @property
    def key(self) -> str:
        """The name of the thing in the derivatives."""

    @property
    def out(self) -> Path:
        """The folder of the derivatives."""


J = TypeVar("J", bound=Job)


def check_workers(workers: int) -> None:
    """Refuse a number of processes that could do nothing.

    Raises:
        UserError: It is below 1.
    """
    if workers < 1:
        raise UserError(f"workers must be at least 1; got {workers}.")


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Let SIGTERM stop the run as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def run_jobs(work: Callable[[J], Outcome], jobs: Sequence[J], *, workers: int) -> Iterator[Outcome]:
    """Do every job and yield each outcome as it comes; whatever goes wrong with one becomes one line.

    Args:
        work: A function of a module, so that another process can find it.
        jobs: What to call it with.
        workers: How many processes share the work; with one it is done in this process.
    """
    workers = min(workers, max(1, len(jobs)))
    if workers > 1:
        yield from _in_parallel(work, jobs, workers)
        return
    _quiet(threads=os.cpu_count() or 1)
    for job in jobs:
        yield _guarded(work, job)


def _in_parallel(work: Callable[[J], Outcome], jobs: Sequence[J], workers: int) -> Iterator[Outcome]:
    """Run jobs in a pool; those that a dying worker took along are tried again, each alone."""
    orphans: list[J] = []
    with _pool(workers) as pool:
        pending: dict[Future[Outcome], J] = {pool.submit(_guarded, work, job): job for job in jobs}
        for future in as_completed(pending):
            try:
                yield future.result()
            except BrokenProcessPool:
                orphans.append(pending[future])
    for job in orphans:
        with _pool(1) as pool:
            try:
                yield pool.submit(_guarded, work, job).result()
            except BrokenProcessPool:
                yield Outcome(job.key, "failed", f"{job.key}: its process was killed, perhaps for want of memory.")


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Keep workers that end with this process; a run that is stopped does not wait for them."""
    threads = max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, context, initializer=start_worker, initargs=(threads, os.getpid())) as pool:
        try:
            yield pool
        except BaseException:
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            raise


def start_worker(threads: int, parent: int) -> None:
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


def _guarded(work: Callable[[J], Outcome], job: J) -> Outcome:
    """Do one job; whatever goes wrong becomes one line."""
    try:
        return work(job)
    except UserError as error:
        text = str(error)
    except OSError as error:
        text = f"{error.filename or job.out}: {reason(error)}."
    except Exception as error:
        text = f"unexpected {type(error).__name__}: {str(error)[:300]}"
    return Outcome(job.key, "failed", f"{job.key}: {one_line(text)}")


def one_line(text: str) -> str:
    r"""Return a text without line breaks and other control characters, which names of files may hold.

    >>> one_line("a\nb.nii")
    'a b.nii'
    """
    plain = text.encode(errors="replace").decode()  # a name in another encoding holds what UTF-8 cannot
    return "".join(letter if letter.isprintable() else " " for letter in plain)
