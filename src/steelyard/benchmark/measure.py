"""What a training step costs, side by side in one run."""

import ctypes
import itertools
import multiprocessing
import os
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from steelyard.benchmark import training_steps
from steelyard.benchmark.tasks import Step
from steelyard.benchmark.training_steps import Case, make_step
from steelyard.processes.children import end_with_parent, starting_children

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of `mallopt`, from malloc.h
SECONDS = 0.4  # each case runs at least as long in a round, and at least one vote


@dataclass(frozen=True, kw_only=True)
class Record:
    """One row of the benchmark; ratios are to the plain equal-weights step of the same network and domains."""

    network: str
    domains: int
    method: str
    every: int
    time_ratio: float
    """The median over rounds."""
    time_ratio_spread: float
    """The interquartile range over rounds."""
    memory_ratio: float | None
    """Of the peak resident memory that training adds to a process that hands back at once what is freed, other than for
    the time; `None` where it was not measured."""
    milliseconds: float
    """The median step."""


class Paired(NamedTuple):
    """Seconds per step of a case, and of the plain steps that were taken between."""

    mine: float
    plain: float


def measure(cases: list[Case], *, rounds: int) -> Iterator[str | list[Record]]:
    """Time the cases, on one thread; yields lines on the progress and at last the records.

    Cases of one network and number of domains form a group, whose first case must be the plain step. Within a group
    they run in turn, round by round, in an order that rotates, with plain steps between a case's own; the ratio is
    to these.
    """
    groups = [list(group) for _, group in itertools.groupby(cases, key=lambda case: case.group)]
    for group in groups:
        if group[0].method != "plain":
            raise ValueError(f"the first case must be the plain step; got {group[0].method!r}.")
    weighed = [case for case in cases if case.weighed]
    yield f"memory: {len(weighed)} cases, each in a process of its own"
    memory = _peak_memories(weighed)
    torch.set_num_threads(1)
    keep_freed_memory()
    records = []
    for number, group in enumerate(groups):
        network, domains = group[0].group
        yield f"time: {network}, {domains} domains ({number + 1} of {len(groups)})"
        times = _times(group, rounds=rounds)
        for case, mine in zip(group, times, strict=True):
            ratio = memory[case] / memory[group[0]] if case.weighed else None
            records.append(_record(case, mine, ratio))
    yield records


def keep_freed_memory() -> None:
    """Have glibc keep what is freed for the next step, as GPUs' allocators do; other allocators are left alone.

    Otherwise it depends on what else the process has allocated whether each step's activations are asked of the system
    anew, page by page, which takes a plain step of a U-Net an eighth longer.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, 2**30)
        mallopt(_MMAP_THRESHOLD, 2**30) or mallopt(_MMAP_THRESHOLD, 2**25)  # the most that older ones take


def _times(group: list[Case], *, rounds: int) -> list[list[Paired]]:
    """Seconds per step of each case and of plain steps between its own, by round.

    A machine's pace drifts within seconds: a plain step follows every few of the case's.
    """
    steps = [make_step(case) for case in group]
    turns = []
    for case, step in zip(group, steps, strict=True):
        _seconds(step, max(2, case.every))  # warm up, audits included
        turns.append(max(2, round(SECONDS / _seconds(step, case.every))))
    times: list[list[Paired]] = [[] for _ in group]
    for number in range(rounds):
        for position in range(len(group)):
            chosen = (position + number) % len(group)
            every = group[chosen].every
            both = [(_seconds(steps[chosen], every), _seconds(steps[0], 1)) for _ in range(turns[chosen])]
            mine, plain = (sum(each) for each in zip(*both, strict=True))
            times[chosen].append(Paired(mine / every / turns[chosen], plain / turns[chosen]))
    return times


def _seconds(step: Step, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        step()
    return time.perf_counter() - start


def _record(case: Case, times: list[Paired], memory_ratio: float | None) -> Record:
    ratios = [each.mine / each.plain for each in times]
    low, _, high = statistics.quantiles(ratios, n=4)
    return Record(
        network=case.network,
        domains=case.domains,
        method=case.method,
        every=case.every,
        time_ratio=round(statistics.median(ratios), 4),
        time_ratio_spread=round(high - low, 4),
        memory_ratio=None if memory_ratio is None else round(memory_ratio, 4),
        milliseconds=round(1000 * statistics.median(each.mine for each in times), 3),
    )


def _peak_memories(cases: list[Case]) -> dict[Case, float]:
    """What training adds to the peak memory of a fresh process, whose allocator hands back what is freed at once."""
    found = os.environ.get("MALLOC_MMAP_THRESHOLD_")
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # read by glibc when a process starts
    try:
        context = multiprocessing.get_context("forkserver")
        # Imported once for all: torch, and what an optimizer imports when it is made.
        context.set_forkserver_preload([training_steps.__name__, "torch._dynamo"])
        with starting_children():
            pool = ProcessPoolExecutor(2, context, initializer=end_with_parent, max_tasks_per_child=1)
            memories = pool.map(_added_memory, cases)
        with pool:
            return dict(zip(cases, memories, strict=True))
    finally:
        del os.environ["MALLOC_MMAP_THRESHOLD_"]
        if found is not None:
            os.environ["MALLOC_MMAP_THRESHOLD_"] = found


def _added_memory(case: Case) -> float:
    torch.set_num_threads(1)
    step: Callable[[], None] = make_step(case)
    before = _peak()
    for _ in range(max(2, case.every)):
        step()
    return max(_peak() - before, 1.0)


def _peak() -> float:
    """The peak resident memory of this process."""
    status = Path("/proc/self/status")
    if status.exists():  # for Linux hands `ru_maxrss` down from the process that started this one
        return float(re.findall(r"VmHWM:\s*(\d+)", status.read_text())[0])
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
