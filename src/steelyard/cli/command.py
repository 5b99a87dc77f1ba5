"""What every subcommand is."""

from abc import ABC, abstractmethod


class UserError(Exception):
    """A user's mistake, said in one line that names the file and what is wrong with it."""


class Command(ABC):
    """A subcommand: its fields are its arguments."""

    @abstractmethod
    def run(self) -> int:
        """Do the work and return the exit code."""
