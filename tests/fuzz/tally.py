"""What a part of the campaign did and found."""

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One broken promise, with all that reproduces it.

    Args:
        part: The part of the campaign.
        seed: Of the campaign.
        case: The number of the case.
        fault: What was promised and did not hold.
        detail: The command, the change to the input, the end of what was printed.
    """

    part: str
    seed: int
    case: int
    fault: str
    detail: str

    def __str__(self) -> str:
        return f"{self.part} --seed {self.seed} --case {self.case}: {self.fault}\n    {self.detail}"


@dataclass
class Tally:
    """Counts of one part.

    Args:
        part: Its name.
        seed: Of the campaign.
        counts: How many cases of each kind were run.
        findings: What broke.
        seconds: How long it took.
    """

    part: str
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def cases(self) -> int:
        """How many cases were run."""
        return self.counts.total()

    def add(self, case: int, kind: str, faults: Sequence[str], detail: str) -> None:
        """Count a case of some kind, and what broke in it."""
        self.counts[kind] += 1
        self.findings += [Finding(self.part, self.seed, case, fault, detail) for fault in faults]

    def as_json(self) -> dict[str, Any]:
        """Return the counts, without times and places: a seed gives the same on every machine."""
        return {"cases": self.cases, "findings": len(self.findings), "kinds": dict(sorted(self.counts.items()))}


@dataclass
class Budget:
    """How long a part may go on.

    Args:
        seconds: No case is begun after so many; none for no limit.
    """

    seconds: float | None = None
    start: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start

    @property
    def over(self) -> bool:
        """Whether time is up."""
        return self.seconds is not None and self.spent > self.seconds


def chance(seed: int, part: str, case: int) -> random.Random:
    """Return the random numbers of one case; they do not depend on the cases before it."""
    return random.Random(f"{seed} {part} {case}")
