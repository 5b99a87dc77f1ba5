"""Jobs in parallel: a failed job does not stop the others, and a stopped run leaves no process behind."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import torch

from steelyard.errors import UserError, one_line, reason
from steelyard.processes.children import end_with_parent, starting_children

KILLED = "its process was killed, perhaps for want of memory."
"""Why work failed whose process ended without a word."""

Preparation = Callable[[int], None]
"""Prepares a process for its work; it is called with the number of threads. A function of a module."""

_MOST_WORKERS = 16  # whatever the number of cores


@dataclass(frozen=True)
class JobResult:
    """The result of the job of one subject or scan.

    Args:
        key: Its name in the derivatives.
        status: Done now, unchanged since an earlier run, or failed.
        message: Why it failed, in one line, or what else the user should know.
    """

    key: str
    status: Literal["done", "unchanged", "failed"]
    message: str = ""


class Job(Protocol):
    """The work on one subject or scan; it is sent to another process."""

    @property
    def key(self) -> str:
        """The name of the subject or scan in the derivatives."""

    @property
    def out(self) -> Path:
        """The folder of the derivatives."""


J = TypeVar("J", bound=Job)


def check_workers(workers: int) -> None:
    """Refuse a number of processes that could do nothing, or that would bring the machine down.

    Raises:
        UserError: It is below 1, or above both 16 and the number of cores.
    """
    if workers < 1:
        raise UserError(f"workers must be at least 1; got {workers}.")
    most = max(_MOST_WORKERS, os.cpu_count() or 1)
    if workers > most:
        raise UserError(f"workers must be at most {most} on this machine; got {workers}.")


def run_jobs(
    work: Callable[[J], JobResult], jobs: Sequence[J], *, workers: int, prepare: Preparation | None = None
) -> Iterator[JobResult]:
    """Do every job and yield each result as it comes; an error in a job becomes one line.

    Args:
        work: A function of a module, so that another process can import it.
        jobs: What to call it with.
        workers: How many processes share the work; with one it is done in this process.
        prepare: Is called first in every process that works.
    """
    workers = min(workers, max(1, len(jobs)))
    if workers > 1:
        yield from _in_parallel(work, jobs, workers, prepare)
        return
    _set_up(os.cpu_count() or 1, prepare)
    for job in jobs:
        yield _guarded(work, job)


def _in_parallel(
    work: Callable[[J], JobResult], jobs: Sequence[J], workers: int, prepare: Preparation | None
) -> Iterator[JobResult]:
    """Run jobs in a pool; when a worker dies, the unfinished jobs are tried again, each alone."""
    # A dead worker breaks the whole pool, and nobody can say whose job killed it.
    unfinished: list[J] = []
    with worker_pool(workers, prepare=prepare) as pool:
        with starting_children():
            job_of: dict[Future[JobResult], J] = {pool.submit(_guarded, work, job): job for job in jobs}
        for future in as_completed(job_of):
            try:
                yield future.result()
            except BrokenProcessPool:
                unfinished.append(job_of[future])
    for job in unfinished:
        # As many threads as before: the last bits of a result depend on their number.
        with worker_pool(1, threads=_threads_per_worker(workers), prepare=prepare) as pool:
            try:
                with starting_children():
                    future = pool.submit(_guarded, work, job)
                yield future.result()
            except BrokenProcessPool:
                yield JobResult(job.key, "failed", f"{job.key}: {KILLED}")


@contextmanager
def worker_pool(
    workers: int, *, threads: int | None = None, prepare: Preparation | None = None
) -> Iterator[ProcessPoolExecutor]:
    """Start a pool of workers that end with this process; a run that is stopped does not wait for them.

    Submit work within `starting_children`: that is when a pool starts its processes.

    Args:
        workers: How many.
        threads: Of each worker; default its share of the cores.
        prepare: Is called first in every worker.
    """
    if threads is None:
        threads = _threads_per_worker(workers)
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with starting_children():  # the semaphores of a pool have a process of their own
        pool = ProcessPoolExecutor(workers, context, initializer=start_worker, initargs=(threads, prepare))
    with pool:
        try:
            yield pool
        except BaseException:
            for worker in set(multiprocessing.active_children()) - others:
                worker.kill()
            raise


def _threads_per_worker(workers: int) -> int:
    return max(1, (os.cpu_count() or 1) // workers)


def start_worker(threads: int, prepare: Preparation | None = None) -> None:
    """Prepare a worker: it leaves Ctrl-C to the parent process and ends when that does, however it ends (Linux)."""
    end_with_parent()
    _set_up(threads, prepare)


def _set_up(threads: int, prepare: Preparation | None) -> None:
    torch.set_num_threads(threads)
    if prepare is not None:
        prepare(threads)


def _guarded(work: Callable[[J], JobResult], job: J) -> JobResult:
    """Do one job; an error becomes one line."""
    try:
        return work(job)
    except Exception as error:
        return JobResult(job.key, "failed", f"{job.key}: {describe_failure(error, job.out)}")


def describe_failure(error: Exception, path: Path) -> str:
    """Return in one line why work failed.

    Args:
        error: What the work raised.
        path: The file or folder to name if the system refused something and does not say which file.

    >>> describe_failure(ValueError("no such axis"), Path("out"))
    'unexpected ValueError: no such axis'
    """
    if isinstance(error, UserError):
        text = str(error)
    elif isinstance(error, OSError):
        text = f"{error.filename or path}: {reason(error)}."
    else:
        text = f"unexpected {type(error).__name__}: {str(error)[:300]}"
    return one_line(text)
