"""Measure what a training step costs in time and memory, beside the plain step."""

import ctypes
import itertools
import json
import multiprocessing
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from steelyard.benchmark import training_steps
from steelyard.benchmark.tasks import Step
from steelyard.benchmark.training_steps import Case, make_step
from steelyard.errors import UserError
from steelyard.files.atomic import write_text
from steelyard.processes.children import end_with_parent, starting_children

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of `mallopt`, from malloc.h
Clock = Callable[[], float]
SECONDS = 0.4  # in each round a case runs at least so long, and for at least two votes


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """One row of the benchmark. Ratios are to the plain equal-weights step of the same network and domains."""

    network: str
    domains: int
    method: str
    every: int
    call: str
    """The constructor call that the row measures; empty where the step is written by hand."""
    time_ratio: float
    """The median over rounds."""
    time_ratio_spread: float
    """The interquartile range over rounds."""
    memory_ratio: float | None
    """Of the peak resident memory that training adds to a process. The allocator of that process returns freed memory
    at once, unlike where time is measured. `None` where memory was not measured."""
    milliseconds: float
    """The median step."""

    @property
    def row(self) -> tuple[str, int, str, int]:
        """What distinguishes the row from others."""
        return (self.network, self.domains, self.method, self.every)


class RoundTimes(NamedTuple):
    """Seconds per step in one round: of a case, and of the plain steps taken between its steps."""

    case: float
    plain: float


def measure_costs(
    cases: Sequence[Case], *, rounds: int, report: Callable[[str], None], clock: Clock = time.perf_counter
) -> Iterator[list[StepCost]]:
    """Measure the cases on one thread, and yield the rows of one network and number of domains after the other.

    Cases of one network and number of domains form a group, whose first case must be the plain step. Within a group
    every round runs each case once, beginning with another case each time. Plain steps are taken between a case's
    steps, and its ratio is to these.

    Args:
        cases: consecutive where they belong to one group.
        rounds: how often each case is timed.
        report: is called with one line on the progress.
        clock: gives the seconds; `time.process_time` counts CPU time alone, for a machine that does other things too.
    """
    groups = []
    for _, consecutive in itertools.groupby(cases, key=lambda case: case.group):
        group = list(consecutive)
        if group[0].method != "plain":
            raise ValueError(f"the first case must be the plain step; got {group[0].method!r}.")
        groups.append(group)
    torch.set_num_threads(1)
    keep_freed_memory()
    for number, group in enumerate(groups, start=1):
        network, domains = group[0].group
        title = f"{network}, {domains} domains ({number} of {len(groups)})"
        report(f"memory: {title}")
        memory_ratios = _memory_ratios(group)
        report(f"time: {title}")
        times = _time_group(group, rounds=rounds, clock=clock)
        yield [_cost(case, times[case], memory_ratios.get(case)) for case in group]


def merge_costs(earlier: Sequence[StepCost], later: Sequence[StepCost]) -> list[StepCost]:
    """Return all rows, in the benchmark's order; a row measured later replaces an earlier one of the same name."""
    costs = {cost.row: cost for cost in (*earlier, *later)}
    positions = {case.row: position for position, case in enumerate(training_steps.cases())}
    last = len(positions)  # rows of methods that are not installed here go to the end of the table
    return sorted(costs.values(), key=lambda cost: positions.get(cost.row, last))


def read_costs(path: Path) -> list[StepCost]:
    """Read the rows that an earlier benchmark wrote.

    Raises:
        UserError: The file is something else.
    """
    try:
        return [StepCost(**row) for row in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path}: not a file that steelyard benchmark wrote.") from error


def write_costs(path: Path, costs: Sequence[StepCost]) -> None:
    """Write the rows as JSON."""
    write_text(path, json.dumps(list(map(asdict, costs)), indent=1) + "\n")


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next step, as the allocators of GPUs do; other allocators are left alone.

    By default it depends on earlier allocations of the process whether each step requests its activations from the
    system anew, page by page. That makes a plain step of a U-Net an eighth slower.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return
    mallopt(_TRIM_THRESHOLD, 2**30)
    accepted = mallopt(_MMAP_THRESHOLD, 2**30)
    if not accepted:
        mallopt(_MMAP_THRESHOLD, 2**25)  # the maximum of older versions


def _time_group(group: Sequence[Case], *, rounds: int, clock: Clock) -> dict[Case, list[RoundTimes]]:
    """Return the times of each case, by round."""
    steps = {case: make_step(case) for case in group}
    plain_step = steps[group[0]]
    repeats: dict[Case, int] = {}
    times: dict[Case, list[RoundTimes]] = {}
    for case, step in steps.items():
        repeats[case] = _warm_up(case, step, clock)
        times[case] = []
    for round_number in range(rounds):
        for position in range(len(group)):
            case = group[(position + round_number) % len(group)]
            for_case = _time_round(steps[case], plain_step, every=case.every, repeats=repeats[case], clock=clock)
            times[case].append(for_case)
    return times


def _warm_up(case: Case, step: Step, clock: Clock) -> int:
    """Take first steps, which include checks that are made once, and return how many votes a round should time."""
    _seconds(step, max(2, case.every), clock)
    return max(2, round(SECONDS / _seconds(step, case.every, clock)))


def _time_round(step: Step, plain_step: Step, *, every: int, repeats: int, clock: Clock) -> RoundTimes:
    """Time a case in turn with plain steps, because the speed of a machine drifts within seconds."""
    case_seconds = plain_seconds = 0.0
    for _ in range(repeats):
        case_seconds += _seconds(step, every, clock)  # of these steps one votes
        plain_seconds += _seconds(plain_step, 1, clock)
    return RoundTimes(case_seconds / every / repeats, plain_seconds / repeats)


def _seconds(step: Step, count: int, clock: Clock) -> float:
    start = clock()
    for _ in range(count):
        step()
    return clock() - start


def _cost(case: Case, times: Sequence[RoundTimes], memory_ratio: float | None) -> StepCost:
    ratios = [round_times.case / round_times.plain for round_times in times]
    low, _, high = statistics.quantiles(ratios, n=4)
    return StepCost(
        network=case.network,
        domains=case.domains,
        method=case.method,
        every=case.every,
        call=case.call,
        time_ratio=round(statistics.median(ratios), 4),
        time_ratio_spread=round(high - low, 4),
        memory_ratio=memory_ratio,
        milliseconds=round(1000 * statistics.median(round_times.case for round_times in times), 3),
    )


def _memory_ratios(group: Sequence[Case]) -> dict[Case, float]:
    """Return the memory relative to the plain step, of those cases whose memory is measured."""
    measured = [case for case in group if case.with_memory]
    peaks = _peak_memories(measured)
    ratios = {}
    for case, peak in peaks.items():
        ratios[case] = round(peak / peaks[group[0]], 4)
    return ratios


def _peak_memories(cases: Sequence[Case]) -> dict[Case, float]:
    """Return the peak memory that training adds to a fresh process, for each case in a process of its own."""
    if not cases:
        return {}
    context = multiprocessing.get_context("forkserver")
    # Imported once for all processes: torch, and what an optimizer imports when it is constructed.
    context.set_forkserver_preload([training_steps.__name__, "torch._dynamo"])
    # glibc reads this when a process starts. Freed blocks from this size on are returned to the system at once.
    with starting_children({"MALLOC_MMAP_THRESHOLD_": "65536"}):
        pool = ProcessPoolExecutor(2, context, initializer=end_with_parent, max_tasks_per_child=1)
        peaks = pool.map(_added_memory, cases)
    with pool:
        return dict(zip(cases, peaks, strict=True))


def _added_memory(case: Case) -> float:
    torch.set_num_threads(1)
    step = make_step(case)
    before = _peak_of_this_process()
    for _ in range(max(2, case.every)):
        step()
    return max(_peak_of_this_process() - before, 1.0)


def _peak_of_this_process() -> float:
    """The peak resident memory, in kilobytes on Linux."""
    status = Path("/proc/self/status")
    if status.exists():  # on Linux `ru_maxrss` is inherited from the process that started this one
        return float(re.findall(r"VmHWM:\s*(\d+)", status.read_text())[0])
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
