"""`steelyard benchmark`: what a training step costs."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from steelyard.cli.command import Command
from steelyard.errors import UserError


@dataclass(frozen=True)
class Benchmark(Command):
    """Measure what one training step costs relative to the plain equal-weights step, on one thread."""

    out: Annotated[Path, tyro.conf.Positional]
    """The JSON file to write; it must not exist yet."""
    rounds: int = 15
    """How often each method is timed; the medians are reported."""

    def run(self) -> int:
        """Measure, show the records, write them."""
        from steelyard.experiments.benchmark import Record, measure
        from steelyard.experiments.training_steps import cases

        if self.out.exists():
            raise UserError(f"{self.out}: exists already; remove it or name another file.")
        if not self.out.parent.is_dir():
            raise UserError(f"{self.out.parent}: no such folder.")
        if self.rounds < 3:
            raise UserError(f"--rounds must be at least 3, or there is no spread to state; got {self.rounds}.")
        console, records = Console(stderr=True), list[Record]()
        with console.status("") as status:
            for news in measure(cases(), rounds=self.rounds):
                if isinstance(news, str):
                    status.update(news) if console.is_terminal else console.print(news)
                else:
                    records = news
        self.out.write_text(json.dumps([asdict(record) for record in records], indent=1) + "\n")
        Console().print(_table(records))
        return 0


def _table(records: "list[Record]") -> Table:  # type: ignore[name-defined]  # noqa: F821
    table = Table(title="One training step, relative to the plain one")
    for column in ("network", "domains", "method", "every", "time", "spread", "memory"):
        table.add_column(column, justify="left" if column in ("network", "method") else "right")
    for r in records:
        ratios = (f"{r.time_ratio:.2f}×", f"{r.time_ratio_spread:.2f}", f"{r.memory_ratio:.2f}×")
        table.add_row(r.network, str(r.domains), r.method, str(r.every), *ratios)
    return table
