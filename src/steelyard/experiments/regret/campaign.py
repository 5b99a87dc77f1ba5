"""Many trials: do those that have no result, in one process or several, and write each result as it comes."""

from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import torch

from steelyard.experiments.problems.problem import NO_FOLDERS, Folders
from steelyard.experiments.regret.results import RESULTS, read_results, trials_to_do, write_results
from steelyard.experiments.regret.run_trial import run_trial
from steelyard.experiments.regret.trial import Trial, TrialResult
from steelyard.files.locks import lock_folder
from steelyard.processes.children import starting_children
from steelyard.processes.workers import KILLED, check_workers, describe_failure, worker_pool

_SECONDS_BETWEEN_WRITES = 5.0  # a table of thousands of trials takes a good part of a second
# The last bits of a result depend on the number of threads, so every trial has one.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass(frozen=True)
class TrialReport:
    """How a trial ended.

    Args:
        trial: Its settings.
        result: `None` if it failed.
        message: Why it failed, in one line; empty if it did not.
    """

    trial: Trial
    result: TrialResult | None = None
    message: str = ""


def run_trials(
    trials: Sequence[Trial], out: Path, *, folders: Folders = NO_FOLDERS, workers: int = 1
) -> Iterator[TrialReport]:
    """Do the trials that have no result in a folder; yield a report for each as it ends.

    Args:
        trials: In the order of the work.
        out: The folder; its table of results is written anew after each trial, but not more often than each few
            seconds: a killed run loses no more.
        folders: Where problems read and keep files.
        workers: The number of processes; with one the work is done in this process.

    Raises:
        UserError: The table is damaged, or another run is working on the folder.
    """
    check_workers(workers)
    with lock_folder(out):
        results = read_results(out / RESULTS)
        written, last_time = len(results), monotonic()
        try:
            for report in _do(trials_to_do(trials, results), folders, workers):
                if report.result is not None:
                    results[report.trial] = report.result
                if monotonic() - last_time > _SECONDS_BETWEEN_WRITES:
                    write_results(out / RESULTS, results)
                    written, last_time = len(results), monotonic()
                yield report
        finally:
            if len(results) > written:
                write_results(out / RESULTS, results)


def _do(trials: Sequence[Trial], folders: Folders, workers: int) -> Iterator[TrialReport]:
    if workers > 1 and trials:
        yield from _in_parallel(trials, folders, workers)
        return
    torch.set_num_threads(1)
    for trial in trials:
        yield attempt(trial, folders)


def _in_parallel(trials: Sequence[Trial], folders: Folders, workers: int) -> Iterator[TrialReport]:
    with worker_pool(workers, threads=1) as pool:
        with starting_children(_ONE_THREAD):
            trial_of = {pool.submit(attempt, trial, folders): trial for trial in trials}
        for future in as_completed(trial_of):
            try:
                yield future.result()
            except BrokenProcessPool:
                yield TrialReport(trial_of[future], message=KILLED)


def attempt(trial: Trial, folders: Folders = NO_FOLDERS) -> TrialReport:
    """Do one trial; an error becomes one line."""
    try:
        return TrialReport(trial, run_trial(trial, folders))
    except Exception as error:
        return TrialReport(trial, message=describe_failure(error, folders.data or Path()))
