"""How the progress of long work is shown: a bar with an estimate on a terminal, plain lines elsewhere."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from steelyard.cli.command import plain, say
from steelyard.errors import one_line

if TYPE_CHECKING:
    from steelyard.experiments.executor import UnitReport
    from steelyard.experiments.experiment import Experiment
    from steelyard.processes.workers import JobResult

_SECONDS_BETWEEN_LINES = 60.0  # about the current units of a grid, where there is no terminal


class Idle(str):
    """The name of an item that is finished without work, such as one that was done before."""

    __slots__ = ()


class Estimate:
    """How long the rest will take, from the items that took work.

    Args:
        total: The number of items.
        clock: Tells the time in seconds.
    """

    def __init__(self, total: int, clock: Callable[[], float] = monotonic) -> None:
        self._total = total
        self._clock = clock
        self._start = self._last = clock()
        self._done = self._worked = 0

    def finish(self, name: str) -> None:
        """Count a finished item; time before the first that took work does not count."""
        self._last = self._clock()
        self._done += 1
        if not isinstance(name, Idle):
            self._worked += 1
        elif not self._worked:
            self._start = self._last

    def left(self) -> float | None:
        """Return the seconds left, fewer as time passes; `None` as long as nothing took work."""
        rest = self._total - self._done
        if not rest:
            return 0.0
        if not self._worked:
            return None
        seconds_per_item = (self._last - self._start) / self._worked
        return max(0.0, seconds_per_item * rest - (self._clock() - self._last))


class _Left(ProgressColumn):
    def __init__(self, estimate: Estimate) -> None:
        super().__init__()
        self._estimate = estimate

    def render(self, task: Task) -> Text:
        del task
        left = self._estimate.left()
        text = "-:--:--"
        if left is not None:
            text = str(timedelta(seconds=round(left)))
        return Text(text, style="progress.remaining")


def track(names: Iterable[str], *, total: int, title: str, console: Console | None = None) -> None:
    """Consume an iterable that yields the name of each item as it is finished, and show the progress.

    Args:
        names: Yields once per finished item; `Idle` names do not count in the estimate.
        total: The number of items.
        title: What is being done.
        console: Where to show it; by default standard error.
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
        count = f"{done} of {total}"
        if left is not None:
            count += f", about {left:.0f} s left"
        console.print(plain(f"{title}: {name} ({count})"), soft_wrap=True)


class GridProgress:
    """The progress of an experiment: units done, the time left, the losses of the current units.

    Args:
        experiment: The experiment that runs.
    """

    def __init__(self, experiment: "Experiment") -> None:
        self._experiment = experiment
        self._last_line = monotonic()
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._bar = None
        if console.is_terminal and experiment.waiting:
            self._bar = Progress(*columns, console=console)

    def __enter__(self) -> "GridProgress":
        if self._bar is not None:
            experiment = self._experiment
            self._task = self._bar.add_task("Runs", total=len(experiment.units), completed=experiment.done)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, report: "UnitReport | None") -> None:
        """Show a unit that ended; without one, show now and then what the current units do."""
        experiment = self._experiment
        count = f"{experiment.done} of {len(experiment.units)}"
        if self._bar is not None:
            description = one_line(f"Runs{self._time_left()}; {self._current()}")
            self._bar.update(self._task, completed=experiment.done, description=description)
        elif report is not None:
            outcome = f"failed, {report.message}" if report.message else "done"
            self._say(f"{report.unit.key}: {outcome} ({count}{self._time_left()})")
        elif monotonic() - self._last_line > _SECONDS_BETWEEN_LINES:
            self._say(f"{count}{self._time_left()}; {self._current()}")

    def _say(self, line: str) -> None:
        self._last_line = monotonic()
        say(line)

    def _time_left(self) -> str:
        seconds = self._experiment.seconds_left()
        if seconds is None:
            return ""
        return f", about {timedelta(seconds=round(seconds))} left"

    def _current(self) -> str:
        """Return the losses of the units that are being done; units without a finished epoch are left out."""
        from steelyard.experiments.units import read_last_epoch

        parts = []
        for unit in self._experiment.busy:
            last = read_last_epoch(unit.path)
            if last is not None:
                losses = ", ".join(f"{domain} {loss:.3f}" for domain, loss in last.losses.items())
                parts.append(f"{unit.key}: epoch {last.epoch + 1} {losses}")
        return "; ".join(parts)


def watch(outcomes: "Iterable[JobResult]", seen: "list[JobResult]") -> Iterator[str]:
    """Yield what the progress shows, and collect the outcomes in `seen`."""
    for outcome in outcomes:
        seen.append(outcome)
        yield outcome.key if outcome.status == "done" else Idle(f"{outcome.key} {outcome.status}")


def sum_up(outcomes: "Sequence[JobResult]", out: Path, *, ready: str, printed: Collection[str] = ()) -> int:
    """Say what failed, what was moved away and where to look, and return the exit code: 2 if anything failed.

    Args:
        outcomes: Of all items.
        out: The folder whose `index.html` shows them.
        ready: The end of a sentence that begins with the number of items that did not fail.
        printed: Messages that were printed already.
    """
    failed = []
    for outcome in outcomes:
        if outcome.status == "failed":
            failed.append(outcome)
        elif outcome.message:
            say(outcome.message)
    for outcome in failed:
        if outcome.message not in printed:
            say(f"failed: {outcome.message}")
    sentence = f"{len(outcomes) - len(failed)} {ready}"
    if all(outcome.key != "index.html" for outcome in failed):
        sentence += f"; look at {out / 'index.html'}"
    say(sentence)
    return 2 if failed else 0
