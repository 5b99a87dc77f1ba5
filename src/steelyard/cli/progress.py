"""How long work shows itself: a bar with an estimate on a terminal, plain lines elsewhere."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from steelyard.cli.command import plain, say

if TYPE_CHECKING:
    from steelyard.processes.workers import JobResult


class Idle(str):
    """The name of a thing that is finished without work, such as one that was done before."""

    __slots__ = ()


class Estimate:
    """How long the rest will take, from the things that took work.

    Args:
        total: How many things there will be.
        clock: Tells the time in seconds.
    """

    def __init__(self, total: int, clock: Callable[[], float] = monotonic) -> None:
        self._total = total
        self._clock = clock
        self._start = self._last = clock()
        self._done = self._worked = 0

    def finish(self, name: str) -> None:
        """Count a thing that is finished; time before the first that took work does not count."""
        self._last = self._clock()
        self._done += 1
        if not isinstance(name, Idle):
            self._worked += 1
        elif not self._worked:
            self._start = self._last

    def left(self) -> float | None:
        """Return the seconds left, fewer as time passes; none as long as nothing took work."""
        rest = self._total - self._done
        if rest and not self._worked:
            return None
        spent = (self._last - self._start) / self._worked * rest if rest else 0.0
        return max(0.0, spent - (self._clock() - self._last))


class _Left(ProgressColumn):
    def __init__(self, estimate: Estimate) -> None:
        super().__init__()
        self._estimate = estimate

    def render(self, task: Task) -> Text:
        del task
        left = self._estimate.left()
        return Text("-:--:--" if left is None else str(timedelta(seconds=round(left))), style="progress.remaining")


def track(names: Iterable[str], *, total: int, title: str, console: Console | None = None) -> None:
    """Consume an iterable that yields the name of each thing as it is finished, and show how far it is.

    Args:
        names: Yields once per finished thing; `Idle` names do not count in the estimate.
        total: How many there will be.
        title: What is being done.
        console: Where to show it; standard error if not given.
    """
    console = console or Console(stderr=True)
    if console.is_terminal:
        _bar(names, total, title, console)
    else:
        _lines(names, total, title, console)


def _bar(names: Iterable[str], total: int, title: str, console: Console) -> None:
    estimate = Estimate(total)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        _Left(estimate),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=total)
        for name in names:
            estimate.finish(name)
            progress.advance(task)


def _lines(names: Iterable[str], total: int, title: str, console: Console) -> None:
    estimate = Estimate(total)
    for done, name in enumerate(names, start=1):
        estimate.finish(name)
        left = estimate.left()
        rest = "" if left is None else f", about {left:.0f} s left"
        console.print(plain(f"{title}: {name} ({done} of {total}{rest})"), soft_wrap=True)


def watch(outcomes: "Iterable[JobResult]", seen: "list[JobResult]") -> Iterator[str]:
    """Yield what the progress shows, and keep what came."""
    for outcome in outcomes:
        seen.append(outcome)
        yield outcome.key if outcome.status == "done" else Idle(f"{outcome.key} {outcome.status}")


def sum_up(outcomes: "Sequence[JobResult]", out: Path, *, ready: str, known: Collection[str] = ()) -> int:
    """Say what failed, what was moved away and where to look, and return the exit code: 2 if anything failed.

    Args:
        outcomes: What became of everything.
        out: The folder whose `index.html` shows it.
        ready: What those are that did not fail, after their number.
        known: What was said already.
    """
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    for outcome in outcomes:
        if outcome.status != "failed" and outcome.message:
            say(outcome.message)
    for outcome in failed:
        if outcome.message not in known:
            say(f"failed: {outcome.message}")
    page = "" if any(outcome.key == "index.html" for outcome in failed) else f"; look at {out / 'index.html'}"
    say(f"{len(outcomes) - len(failed)} {ready}{page}")
    return 2 if failed else 0
