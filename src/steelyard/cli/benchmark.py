"""`steelyard benchmark`: what a training step costs."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.table import Table

from steelyard.cli.command import Command
from steelyard.errors import UserError
from steelyard.files.marked_page import check_page, with_measured

if TYPE_CHECKING:
    from steelyard.benchmark.measure import Record

MARK = "measured"
COLUMNS = ("network", "domains", "method", "every", "time", "spread", "memory")


@dataclass(frozen=True)
class Benchmark(Command):
    """Measure what one training step costs relative to the plain equal-weights step, on one thread."""

    out: Annotated[Path, tyro.conf.Positional]
    """The JSON file to write; it must not exist yet. Plots of the cost by the number of domains and
    beside others' methods go with it."""
    rounds: int = 7
    """How often each method is timed; the medians are reported."""
    page: Path | None = None
    """A Markdown page to write the tables into, between the lines that mark them."""

    def run(self) -> int:
        """Measure, show the records, write them."""
        from steelyard.benchmark.cost_plot import draw_peers, draw_scaling
        from steelyard.benchmark.measure import Record, measure
        from steelyard.benchmark.training_steps import cases
        from steelyard.files.atomic import write_bytes, write_text

        self._check()
        console, records = Console(stderr=True), list[Record]()
        with console.status("") as status:
            for news in measure(cases(), rounds=self.rounds):
                if isinstance(news, str):
                    status.update(news) if console.is_terminal else console.print(news)
                else:
                    records = news
        write_text(self.out, json.dumps([asdict(record) for record in records], indent=1) + "\n")
        for draw, picture in zip((draw_scaling, draw_peers), self._pictures, strict=True):
            write_bytes(picture, draw(records))
        if self.page is not None:
            write_text(self.page, with_tables(self.page.read_text(encoding="utf-8"), records))
        Console().print(_table(records))
        return 0

    @property
    def _pictures(self) -> tuple[Path, Path]:
        return self.out.with_suffix(".png"), self.out.with_name(f"{self.out.stem}-peers.png")

    def _check(self) -> None:
        from steelyard.files.destinations import check_file

        if self.page is not None:
            check_page(self.page, MARK)
        for file in (self.out, *self._pictures):
            check_file(file)
        if self.out.suffix == ".png":
            raise UserError(f"{self.out}: the numbers go into a JSON file.")
        if not self.out.parent.is_dir():
            raise UserError(f"{self.out.parent}: no such folder.")
        if self.rounds < 3:
            raise UserError(f"--rounds must be at least 3, or there is no spread to state; got {self.rounds}.")


def with_tables(page: str, records: "list[Record]") -> str:
    """The page with one table for each network and number of domains in its marked place."""
    return with_measured(page, MARK, f"\n{''.join(map(_markdown, _groups(records)))}\n")


def _groups(records: "list[Record]") -> "list[list[Record]]":
    keys = dict.fromkeys((r.network, r.domains) for r in records)
    return [[r for r in records if (r.network, r.domains) == key] for key in keys]


def _markdown(records: "list[Record]") -> str:
    first = records[0]
    lines = [
        f"\n### `{first.network}`, {first.domains} domains (a plain step: {first.milliseconds:.0f} ms)\n",
        "| method | every | time | spread (IQR) | peak memory |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for r in records:
        ratios = f"{r.time_ratio:.2f}× | {r.time_ratio_spread:.2f} | {_memory(r)}"
        lines.append(f"| {r.method} | {r.every} | {ratios} |")
    return "\n".join(lines) + "\n"


def _memory(record: "Record") -> str:
    return "–" if record.memory_ratio is None else f"{record.memory_ratio:.2f}×"


def _table(records: "list[Record]") -> Table:
    table = Table(title="One training step, relative to the plain one")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("network", "method") else "right")
    for r in records:
        ratios = (f"{r.time_ratio:.2f}×", f"{r.time_ratio_spread:.2f}", _memory(r))
        table.add_row(r.network, str(r.domains), r.method, str(r.every), *ratios)
    return table
