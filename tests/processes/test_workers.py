"""Jobs in several processes."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import torch

from steelyard.processes.workers import JobResult, run_jobs


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
