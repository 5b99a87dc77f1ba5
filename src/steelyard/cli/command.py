"""The base of every subcommand, and how messages are printed."""

import sys
from abc import ABC, abstractmethod

import tyro
from rich.text import Text

from steelyard.errors import one_line


class Command(ABC):
    """A subcommand: its fields are its arguments."""

    @abstractmethod
    def run(self) -> int:
        """Do the work and return the exit code."""


def default(words: str, *, metavar: str | None = None) -> object:
    """Annotate an option whose default is computed: its help text says in words what the default is.

    Args:
        words: What the option is if it is left out.
        metavar: What stands for the value in the usage.
    """
    return tyro.conf.arg(help_behavior_hint=f"(default: {words})", metavar=metavar)


def say(line: str) -> None:
    """Print one line on standard error."""
    sys.stderr.write(f"{one_line(line)}\n")


def plain(text: str) -> Text:
    r"""Return text that rich prints unchanged: names may hold control characters, or rich's markup.

    >>> plain("[bold]a\nb").plain
    '[bold]a b'
    """
    return Text(one_line(text))
