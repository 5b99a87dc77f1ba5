"""What the cases of a part share."""

from dataclasses import dataclass
from pathlib import Path

from fuzz.material import Material
from fuzz.nursery import Nursery
from fuzz.tally import Budget


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
