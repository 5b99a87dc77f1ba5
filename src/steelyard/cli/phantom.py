"""`steelyard phantom`: a BIDS dataset of synthetic heads."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from steelyard.cli.command import Command
from steelyard.errors import UserError


@dataclass(frozen=True)
class Phantom(Command):
    """Make a BIDS dataset of synthetic heads with exact masks.

    Each subject has a T1w and a FLAIR scan, and masks of lesions and brain.
    """

    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """The folder to write; it must be empty, absent, or hold a run of this command that was stopped."""
    subjects: int = 20
    """The number of subjects; subject i is the same whatever their number."""
    seed: int = 0
    """The same seed gives the same bytes."""
    scanner: str = "standard-3t"
    """The scanner preset: standard-3t, noisy-3t, fatsat-3t, standard-1.5t or clinical-1.5t. The heads stay the same."""
    workers: int = 1
    """The number of processes."""

    def run(self) -> int:
        """Make the subjects, show the progress."""
        from steelyard.cli.progress import Idle, track
        from steelyard.errors import reason
        from steelyard.imaging.phantom import Cohort, write_cohort

        cohort = Cohort(subjects=self.subjects, seed=self.seed, scanner=self.scanner, workers=self.workers)
        try:
            earlier = {path.name for path in self.out.glob("sub-*")}
            names = (Idle(name) if name in earlier else name for name in write_cohort(self.out, cohort))
            track(names, total=self.subjects, title="Making heads")
        except OSError as error:
            raise UserError(f"{error.filename or self.out}: {reason(error)}.") from error
        return 0
