"""The weights and votes of a run, step by step, kept small: experiments have a thousand runs of many thousand steps."""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from steelyard.errors import UserError
from steelyard.files.records import read_rows
from steelyard.report.data.cells import check_names, read_weight

_WEIGHT = "weight_"
_MOST_VOTERS = 1000  # far more domains than anybody has, and far fewer than an array of two bytes tells apart


@dataclass
class Steps:
    """What steps.csv says of weights and votes.

    Args:
        count: How many steps there are.
        weights: Every domain's weight after each step, in single precision.
        voters: The domains that were voted for, in the order of their first vote.
        cast: For every step the place in `voters`, from one; 0 where none was cast.
    """

    count: int = 0
    weights: dict[str, "array[float]"] = field(default_factory=dict)
    voters: dict[str, int] = field(default_factory=dict)
    cast: "array[int]" = field(default_factory=lambda: array("H"))

    def votes(self) -> list[str]:
        """Return the domain that each step voted for; an empty name where none did.

        >>> gather_steps([{"vote": "t1"}, {"vote": ""}, {}, {"vote": "flair"}]).votes()
        ['t1', '', '', 'flair']
        """
        names = ["", *self.voters]
        return [names[place] for place in self.cast]


def read_steps(path: Path) -> Steps:
    """Read steps.csv; no steps if there is no such file.

    Raises:
        UserError: It is damaged, and where.
    """
    return gather_steps(_checked(path) if path.exists() else ())


def _checked(path: Path) -> Iterator[Mapping[str, str]]:
    for where, row in read_rows(path):
        for name, text in row.items():
            if name.startswith(_WEIGHT):
                read_weight(where, name, text)
        if row.get("vote"):
            check_names(where, row, ["vote"])
        yield row


def gather_steps(rows: Iterable[Mapping[str, str]]) -> Steps:
    """Gather the rows of steps.csv, one by one.

    Raises:
        UserError: There are votes for more domains than there can be.
    """
    steps = Steps()
    for row in rows:
        if not steps.count:
            steps.weights = {
                name.removeprefix(_WEIGHT): array("f") for name in row if name and name.startswith(_WEIGHT)
            }
        for domain, held in steps.weights.items():
            held.append(float(row[f"{_WEIGHT}{domain}"]))
        vote = row.get("vote")
        if len(steps.voters) >= _MOST_VOTERS:
            raise UserError(f"votes are for more than {_MOST_VOTERS} domains.")
        steps.cast.append(steps.voters.setdefault(vote, len(steps.voters) + 1) if vote else 0)
        steps.count += 1
    return steps
