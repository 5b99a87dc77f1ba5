"""How a grid shows itself: runs done, the time left, what the current runs' losses are."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from steelyard.cli.command import say
from steelyard.errors import UserError, one_line

if TYPE_CHECKING:
    from steelyard.experiments.estimate import Forecast
    from steelyard.experiments.executors import Crew, News
    from steelyard.experiments.units import Unit

_EVERY = 60.0  # seconds between lines about the current runs where there is no terminal


class GridProgress:
    """A bar on a terminal, plain lines elsewhere.

    Args:
        units: The whole grid.
        forecast: Says how long the rest takes.
        crew: Knows which runs are under way.
    """

    def __init__(self, units: "Sequence[Unit]", forecast: "Forecast", crew: "Crew") -> None:
        self._units, self._forecast, self._crew = units, forecast, crew
        self._left = {unit.path: unit for unit in units if not unit.done}
        self._told = monotonic()
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._bar = Progress(*columns, console=console) if console.is_terminal else None

    def __enter__(self) -> "GridProgress":
        if self._bar is not None:
            done = len(self._units) - len(self._left)
            self._task = self._bar.add_task("Runs", total=len(self._units), completed=done)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, news: "News | None") -> None:
        """Show how things stand."""
        if news is not None:
            self._left.pop(news.unit.path, None)
        done = len(self._units) - len(self._left)
        if self._bar is not None:
            description = one_line(f"Runs{self._rest()}; {self._current()}")
            self._bar.update(self._task, completed=done, description=description)
        elif news is not None:
            outcome = f"failed, {news.outcome}" if isinstance(news.outcome, str) else "done"
            self._say(f"{news.unit.name}: {outcome} ({done} of {len(self._units)}{self._rest()})")
        elif monotonic() - self._told > _EVERY:
            self._say(f"{done} of {len(self._units)}{self._rest()}; {self._current()}")

    def _say(self, line: str) -> None:
        self._told = monotonic()
        say(line)

    def _rest(self) -> str:
        seconds = self._forecast.total(list(self._left.values()), workers=self._crew.size)
        return "" if seconds is None else f", about {timedelta(seconds=round(seconds))} left"

    def _current(self) -> str:
        return "; ".join(f"{unit.name}: {losses}" for unit in self._crew.busy if (losses := _losses(unit.path)))


def _losses(path: Path) -> str:
    """Return the last losses that a run wrote down."""
    from steelyard.files.checks import parse_number, parse_whole
    from steelyard.files.records import read_loose_rows

    try:
        last = (read_loose_rows(path / "epochs.csv") or [{}])[-1]
        epoch = parse_whole("epoch", last.get("epoch", ""))
        losses = {name: parse_number(name, text) for name, text in last.items() if name.startswith("loss_") and text}
    except UserError:
        return ""
    listed = ", ".join(f"{name.removeprefix('loss_')} {loss:.3f}" for name, loss in losses.items())
    return f"epoch {epoch + 1} {listed}"
