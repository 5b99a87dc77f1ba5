"""What `steelyard --help` prints: every command in one line, in the order of work."""

import inspect
from collections.abc import Mapping

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from steelyard.cli.command import Command


def print_overview(groups: Mapping[str, Mapping[str, type[Command]]], console: Console) -> None:
    """Print a box for each group, with a line for each of its commands: the first line of its docstring."""
    names = [name for commands in groups.values() for name in commands]
    console.print("usage: steelyard COMMAND …\n", highlight=False)
    for title, commands in groups.items():
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(min_width=max(map(len, names)), style="bold")
        for name, command in commands.items():
            table.add_row(name, Text(summary(command)))
        console.print(Panel(table, title=title, title_align="left", border_style="dim"))
    console.print("steelyard COMMAND --help explains one command; --version shows the version.")


def summary(command: type[Command]) -> str:
    """Return what a command does, in one line."""
    return (inspect.getdoc(command) or "").partition("\n")[0]
