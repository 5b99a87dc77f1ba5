"""What every subcommand is, and how it speaks."""

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
    """Tell the user one thing in one line, on standard error."""
    sys.stderr.write(f"{one_line(line)}\n")


def plain(text: str) -> Text:
    r"""Return what rich prints as it is: names may hold control characters, or what rich would take for markup.

    >>> plain("[bold]a\nb").plain
    '[bold]a b'
    """
    return Text(one_line(text))
