"""What every subcommand is."""

from abc import ABC, abstractmethod


class Command(ABC):
    """A subcommand: its fields are its arguments."""

    @abstractmethod
    def run(self) -> int:
        """Do the work and return the exit code."""
