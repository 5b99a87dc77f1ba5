"""`steelyard benchmark`: what a training step costs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from steelyard.cli.command import Command


@dataclass(frozen=True)
class Benchmark(Command):
    """Measure what one training step costs relative to the plain equal-weights step."""

    out: Annotated[Path, tyro.conf.Positional]
    """The JSON file to write."""

    def run(self) -> int:
        """Measure, write the records, show them."""
        return 0
