"""What every subcommand is."""

import sys
from abc import ABC, abstractmethod


class Command(ABC):
    """A subcommand: its fields are its arguments."""

    @abstractmethod
    def run(self) -> int:
        """Do the work and return the exit code."""


def say(line: str) -> None:
    """Tell the user one thing, on standard error."""
    sys.stderr.write(f"{line}\n")
