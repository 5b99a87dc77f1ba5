"""What a training step costs, side by side in one run."""

import multiprocessing
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from steelyard.experiments.training_steps import Case, Step, make_step

BLOCK = 8  # steps timed at once: a multiple of every `every`, so that each block holds its share of votes


@dataclass(frozen=True, kw_only=True)
class Record:
    """One row of the benchmark; ratios are to the plain equal-weights step of the same network."""

    network: str
    domains: int
    method: str
    every: int
    time_ratio: float
    """The median over rounds."""
    time_ratio_spread: float
    """The interquartile range over rounds."""
    memory_ratio: float
    """Of the peak resident memory that training adds to the process."""


def measure(cases: list[Case], *, rounds: int) -> Iterator[str | list[Record]]:
    """Time the cases in turn, round by round, on one thread; yields lines on the progress and at last the records.

    The first case must be the plain step. Within a round each case runs the same number of steps, in an order that
    rotates from round to round; the ratio to the plain step is taken within the round.
    """
    if cases[0].method != "plain":
        raise ValueError(f"the first case must be the plain step; got {cases[0].method!r}.")
    yield "memory: each case in a process of its own"
    memory = [_peak_memory(case) for case in cases]
    torch.set_num_threads(1)
    steps = [make_step(case) for case in cases]
    for step in steps:
        _seconds(step)  # warm up
    times: list[list[float]] = [[] for _ in cases]
    for number in range(rounds):
        for position in range(len(cases)):
            chosen = (position + number) % len(cases)
            times[chosen].append(_seconds(steps[chosen]))
        plain = statistics.median(times[0]) / BLOCK
        yield f"time: round {number + 1} of {rounds}; the plain step takes {1000 * plain:.0f} ms"
    yield [_record(case, times[i], times[0], memory[i] / memory[0]) for i, case in enumerate(cases)]


def _seconds(step: Step) -> float:
    start = time.perf_counter()
    for _ in range(BLOCK):
        step()
    return time.perf_counter() - start


def _record(case: Case, times: list[float], plain: list[float], memory_ratio: float) -> Record:
    ratios = [mine / reference for mine, reference in zip(times, plain, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return Record(
        network=case.network,
        domains=case.domains,
        method=case.method,
        every=case.every,
        time_ratio=round(statistics.median(ratios), 4),
        time_ratio_spread=round(high - low, 4),
        memory_ratio=round(memory_ratio, 4),
    )


def _peak_memory(case: Case) -> float:
    """What training adds to the peak memory of a fresh process, whose allocator hands back what is freed at once."""
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # read by glibc when a process starts
    try:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(_added_memory, (case,))
    finally:
        del os.environ["MALLOC_MMAP_THRESHOLD_"]


def _added_memory(case: Case) -> float:
    torch.set_num_threads(1)
    step: Callable[[], None] = make_step(case)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(BLOCK):
        step()
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
