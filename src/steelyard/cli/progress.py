"""How long work shows itself: a bar with an estimate on a terminal, plain lines elsewhere."""

from collections.abc import Iterable
from time import monotonic

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


def track(names: Iterable[str], *, total: int, title: str, console: Console | None = None) -> None:
    """Consume an iterable that yields the name of each thing as it is finished, and show how far it is.

    Args:
        names: Yields once per finished thing.
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
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=total)
        for _ in names:
            progress.advance(task)


def _lines(names: Iterable[str], total: int, title: str, console: Console) -> None:
    start = monotonic()
    for done, name in enumerate(names, start=1):
        left = (monotonic() - start) / done * (total - done)
        console.print(f"{title}: {name} ({done} of {total}, about {left:.0f} s left)", soft_wrap=True, highlight=False)
