"""What the cases of a part share."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fuzz.material import Material
from fuzz.nursery import Nursery
from fuzz.tally import Budget, Tally


@dataclass(frozen=True, kw_only=True, eq=False)
class Bench:
    """Where cases are run.

    Args:
        nursery: Where commands run.
        material: What they work on; it is not changed.
        scratch: A folder for files of the part.
        budget: No further case is begun when it is over.
    """

    nursery: Nursery
    material: Material
    scratch: Path
    budget: Budget


def run_cases(part: str, seed: int, cases: int, bench: Bench, run_case: Callable[[Tally, int, Bench], None]) -> Tally:
    """Run so many cases of a part, or as many as its time allows."""
    tally = Tally(part, seed)
    for case in range(cases):
        if bench.budget.over:
            break
        run_case(tally, case, bench)
    tally.seconds = bench.budget.spent
    return tally
