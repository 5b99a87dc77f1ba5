"""The base of every subcommand, and how messages are printed."""

import sys
from abc import ABC, abstractmethod

from rich.text import Text

from steelyard.errors import one_line


class Command(ABC):
    """A subcommand: its fields are its arguments."""

    @abstractmethod
    def run(self) -> int:
        """Do the work and return the exit code."""


def say(line: str) -> None:
    """Print one line on standard error."""
    sys.stderr.write(f"{one_line(line)}\n")


def plain(text: str) -> Text:
    r"""Return text that rich prints unchanged: names may hold control characters, or rich's markup.

    >>> plain("[bold]a\nb").plain
    '[bold]a b'
    """
    return Text(one_line(text))
