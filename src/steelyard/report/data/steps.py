"""The weights and votes of a run, step by step, in few bytes: experiments have a thousand runs of many steps."""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from steelyard.errors import UserError
from steelyard.files.records import read_rows
from steelyard.report.data.metrics import check_names, read_weight

WEIGHT = "weight_"
"""What the columns of the domains' weights begin with."""

_MOST_VOTERS = 1000  # far more domains than anybody has, and far fewer than an array of two bytes tells apart


@dataclass
class Steps:
    """What steps.csv says of weights and votes.

    Args:
        count: How many steps there are.
        weights: Every domain's weight after each step, in single precision.
        voters: The domains that were voted for, in the order of their first vote, numbered from 1.
        vote_numbers: For every step the number of the domain in `voters`; 0 where there was no vote.
    """

    count: int = 0
    weights: dict[str, "array[float]"] = field(default_factory=dict)
    voters: dict[str, int] = field(default_factory=dict)
    vote_numbers: "array[int]" = field(default_factory=lambda: array("H"))

    def votes(self) -> list[str]:
        """Return the domain that each step voted for; an empty name where none did.

        >>> gather_steps([{"vote": "t1"}, {"vote": ""}, {}, {"vote": "flair"}]).votes()
        ['t1', '', '', 'flair']
        """
        names = ["", *self.voters]
        return [names[number] for number in self.vote_numbers]


def read_steps(path: Path) -> Steps:
    """Read steps.csv; no steps if there is no such file.

    Raises:
        UserError: It is damaged, and where.
    """
    if not path.exists():
        return Steps()
    return gather_steps(_checked_rows(path))


def _checked_rows(path: Path) -> Iterator[Mapping[str, str]]:
    for where, row in read_rows(path):
        for name, text in row.items():
            if name.startswith(WEIGHT):
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
        if steps.count == 0:
            # The first row says which domains there are.
            for name in row:
                if name.startswith(WEIGHT):
                    steps.weights[name.removeprefix(WEIGHT)] = array("f")
        for domain, curve in steps.weights.items():
            curve.append(float(row[f"{WEIGHT}{domain}"]))
        steps.vote_numbers.append(_vote_number(steps.voters, row.get("vote", "")))
        steps.count += 1
    return steps


def _vote_number(voters: dict[str, int], vote: str) -> int:
    """Return the number of the domain that was voted for, a new one if it is new; 0 without a vote."""
    if len(voters) >= _MOST_VOTERS:
        raise UserError(f"votes are for more than {_MOST_VOTERS} domains.")
    if not vote:
        return 0
    return voters.setdefault(vote, len(voters) + 1)
