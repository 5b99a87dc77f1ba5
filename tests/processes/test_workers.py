"""Jobs in several processes."""

import errno
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from steelyard.errors import UserError
from steelyard.processes.workers import JobResult, describe_failure, run_jobs


@dataclass(frozen=True)
class Job:
    key: str
    out: Path


def count_threads(job):
    """Say how many threads there are; the first process that comes to the marked job is killed."""
    mark = job.out / job.key
    if job.key == "fatal" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return JobResult(job.key, "done", str(torch.get_num_threads()))


def test_a_job_that_is_done_again_has_as_many_threads_as_before(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    outcomes = list(run_jobs(count_threads, [Job("fatal", tmp_path), Job("harmless", tmp_path)], workers=2))
    assert sorted(outcome.key for outcome in outcomes) == ["fatal", "harmless"]
    assert {outcome.message for outcome in outcomes} == {"2"}


def remember_threads(threads):
    os.environ["STEELYARD_TEST_THREADS"] = str(threads)


def recall_threads(job):
    return JobResult(job.key, "done", os.environ["STEELYARD_TEST_THREADS"])


@pytest.mark.parametrize(("workers", "threads"), [(1, "4"), (2, "2")])
def test_every_process_that_works_is_prepared_first(tmp_path, monkeypatch, workers, threads):
    monkeypatch.setenv("STEELYARD_TEST_THREADS", "none")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    before = torch.get_num_threads()
    jobs = [Job("first", tmp_path), Job("second", tmp_path)]
    results = list(run_jobs(recall_threads, jobs, workers=workers, prepare=remember_threads))
    torch.set_num_threads(before)
    assert [result.message for result in results] == [threads, threads]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UserError("a.nii: is\nempty."), "a.nii: is empty."),
        (OSError(errno.ENOSPC, "No space left on device"), "out: the disk is full."),
        (PermissionError(errno.EACCES, "Permission denied", "a.nii"), "a.nii: permission denied."),
        (IndexError("x" * 999), f"unexpected IndexError: {'x' * 300}"),
    ],
)
def test_a_failure_is_described_in_one_line(error, line):
    assert describe_failure(error, Path("out")) == line
