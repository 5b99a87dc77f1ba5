"""`steelyard benchmark`: what a training step costs."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.table import Table

from steelyard.cli.command import Command, default
from steelyard.errors import UserError
from steelyard.files.marked_page import check_page, with_measured

if TYPE_CHECKING:
    from steelyard.benchmark.step_costs import StepCost

MARK = "measured"
COLUMNS = ("network", "domains", "method", "every", "time", "spread", "memory")


@dataclass(frozen=True)
class Benchmark(Command):
    """Measure what one training step costs.

    Costs are relative to the plain equal-weights step, on one thread.
    """

    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT.json")]
    """The JSON file to write; it must not exist yet, unless with `--merge`. Plots of the cost by the number of domains
    and beside others' methods are written next to it."""
    rounds: int = 7
    """How often each method is timed; the medians are reported."""
    networks: Annotated[tuple[str, ...], default("all")] = ()
    """Only these networks, for example `mlp transformer`."""
    domains: Annotated[tuple[int, ...], default("all")] = ()
    """Only these numbers of domains, for example `2 16`."""
    methods: Annotated[tuple[str, ...], default("all")] = ()
    """Only these methods, for example `first-order inner-loop`. The plain step is always measured."""
    cpu_time: bool = False
    """Measure CPU time instead of time on the clock, on a machine that does other things as well."""
    merge: bool = False
    """Keep the rows of an existing JSON file, except those that are measured anew. So a long benchmark can be run in
    parts."""
    page: Annotated[Path | None, default("none")] = None
    """A Markdown page to write the tables into, between the lines that mark them."""

    def run(self) -> int:
        """Measure, write the results after each group of rows, print the table."""
        from steelyard.benchmark.cost_page import draw_peers, draw_scaling
        from steelyard.benchmark.step_costs import measure_costs, merge_costs, write_costs
        from steelyard.benchmark.training_steps import select_cases
        from steelyard.files.atomic import write_bytes, write_text

        costs = self._check()
        cases = select_cases(networks=self.networks, domains=self.domains, methods=self.methods)
        console = Console(stderr=True)
        with console.status("") as status:
            report = status.update if console.is_terminal else console.print
            clock = time.process_time if self.cpu_time else time.perf_counter
            for group in measure_costs(cases, rounds=self.rounds, report=report, clock=clock):
                costs = merge_costs(costs, group)
                write_costs(self.out, costs)
        for draw, picture in zip((draw_scaling, draw_peers), self._pictures, strict=True):
            write_bytes(picture, draw(costs))
        if self.page is not None:
            write_text(self.page, with_tables(self.page.read_text(encoding="utf-8"), costs))
        Console().print(_table(costs))
        return 0

    @property
    def _pictures(self) -> tuple[Path, Path]:
        return self.out.with_suffix(".png"), self.out.with_name(f"{self.out.stem}-peers.png")

    def _check(self) -> "list[StepCost]":
        """Refuse what cannot be run, and return the rows to keep of an existing file."""
        from steelyard.benchmark.step_costs import StepCost, read_costs
        from steelyard.files.destinations import check_file

        if self.page is not None:
            check_page(self.page, MARK)
        earlier: list[StepCost] = []
        if self.merge and self.out.is_file():
            earlier = read_costs(self.out)
        else:
            for file in (self.out, *self._pictures):
                check_file(file)
        if self.out.suffix == ".png":
            raise UserError(f"{self.out}: the numbers go into a JSON file.")
        if not self.out.parent.is_dir():
            raise UserError(f"{self.out.parent}: no such folder.")
        if self.rounds < 3:
            raise UserError(f"--rounds must be at least 3, or there is no spread to state; got {self.rounds}.")
        return earlier


def with_tables(page: str, costs: "Sequence[StepCost]") -> str:
    """The page with one table for each network and number of domains between its marks."""
    from steelyard.benchmark.cost_page import markdown_tables

    return with_measured(page, MARK, f"\n{markdown_tables(costs)}\n")


def _table(costs: "Sequence[StepCost]") -> Table:
    from steelyard.benchmark.cost_page import memory_text

    table = Table(title="One training step, relative to the plain one")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("network", "method") else "right", no_wrap=True)
    table.add_column("call", overflow="fold")
    for cost in costs:
        ratios = (f"{cost.time_ratio:.2f}×", f"{cost.time_ratio_spread:.2f}", memory_text(cost))
        table.add_row(cost.network, str(cost.domains), cost.method, str(cost.every), *ratios, cost.call)
    return table
