"""How far cheaper votes agree with exact ones, step by step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from steelyard.errors import UserError
from steelyard.files.checks import parse_number, parse_whole
from steelyard.files.records import read_rows
from steelyard.imaging.runs.method import Method
from steelyard.report.statistics.grid import Array

_PREFIX = "hypothetical_"


@dataclass(frozen=True)
class Cast:
    """What one method made of one step.

    Args:
        vote: The domain voted for; an empty name where there was no vote.
        hypothetical: The hypothetical losses in the order of the domains; none where nothing was measured.
    """

    vote: str
    hypothetical: tuple[float, ...]


@dataclass(frozen=True)
class Trace:
    """One run's votes: by method, a cast at every step.

    Args:
        casts: All methods' are of the same length.
        epochs: How many epochs they span.
    """

    casts: dict[str, list[Cast]]
    epochs: int


@dataclass(frozen=True, kw_only=True)
class VoteAgreement:
    """How one method's votes compare with exact ones in one run.

    Args:
        steps: On how many steps both had a vote.
        share: On which part of them it was the same.
        kappa: Cohen's: the share beyond what votes of the same frequencies, cast by chance, would share; NaN if either
            way all votes are for one domain.
        held: The share on steps without a vote of its own, where the last one stood; NaN if there are none.
        correlation: Of the differences between domains' hypothetical losses, over all steps on which both measured; NaN
            for a method that measures exactly, if now and then.
    """

    steps: int
    share: float
    kappa: float
    held: float
    correlation: float


def read_trace(path: Path) -> Trace:
    """Read the votes that a run was retraced with.

    Raises:
        UserError: It is no such table.
    """
    casts: dict[str, list[Cast]] = {}
    epochs = 0
    try:
        for where, row in read_rows(path, ("method", "vote", "epoch")):
            values = {name: text for name, text in row.items() if name.startswith(_PREFIX)}
            losses = tuple(parse_number(f"{where}: {name}", text) for name, text in values.items())
            cast = Cast(row["vote"].strip(), losses if all(values.values()) else ())
            casts.setdefault(row["method"], []).append(cast)
            epochs = max(epochs, parse_whole(f"{where}: epoch", row["epoch"]) + 1)
    except UserError as error:
        raise UserError(f"{path}: is damaged; remove it to have the run retraced.") from error
    if not casts or len({len(each) for each in casts.values()}) > 1:
        raise UserError(f"{path}: is damaged; remove it to have the run retraced.")
    return Trace(casts, epochs)


def vote_agreement(trace: Trace, exact: str, method: str) -> VoteAgreement:
    """Compare a method's votes with the exact ones at every step; one that asks now and then holds on to its last."""
    parsed = Method.parse(method)
    asked, every = parsed.with_every_vote.name, parsed.every or 1
    true, own = trace.casts[exact], trace.casts[asked]
    held = held_votes([cast.vote for cast in own], every)
    pairs = [(one.vote, other) for one, other in zip(true, held, strict=True) if one.vote and other]
    between = [
        one.vote == other
        for step, (one, other) in enumerate(zip(true, held, strict=True))
        if one.vote and other and (step + 1) % every
    ]
    return VoteAgreement(
        steps=len(pairs),
        share=_share([one == other for one, other in pairs]),
        kappa=cohens_kappa(pairs),
        held=_share(between),
        correlation=math.nan if asked == exact else correlation(*_differences(true, own)),
    )


def held_votes(votes: Sequence[str], every: int) -> list[str]:
    """Return the vote in force at each step if each `every`-th step's is cast and stands until the next.

    >>> held_votes(["a", "b", "b", "a", "a", "b"], 2)
    ['', 'b', 'b', 'a', 'a', 'b']
    """
    held, last = [], ""
    for step, vote in enumerate(votes, start=1):
        if step % every == 0 and vote:
            last = vote
        held.append(last)
    return held


def cohens_kappa(pairs: Sequence[tuple[str, str]]) -> float:
    """Return Cohen's kappa of paired votes; NaN where chance alone must agree.

    >>> cohens_kappa([("a", "a"), ("a", "b"), ("b", "b"), ("b", "b")])
    0.5
    """
    if not pairs:
        return math.nan
    ones, others = zip(*pairs, strict=True)
    expected = sum(ones.count(name) * others.count(name) for name in set(ones)) / len(pairs) ** 2
    observed = _share([one == other for one, other in pairs])
    return math.nan if expected == 1 else (observed - expected) / (1 - expected)


def correlation(ones: Array, others: Array) -> float:
    """Return Pearson's correlation; NaN if there are fewer than two pairs or one side does not vary."""
    if len(ones) < 2 or not np.ptp(ones) or not np.ptp(others):
        return math.nan
    return float(np.corrcoef(ones, others)[0, 1])


def _differences(true: Sequence[Cast], own: Sequence[Cast]) -> tuple[Array, Array]:
    """Return H_a − H_b of every two domains at every step that both measured, exactly and otherwise."""
    both = [(one.hypothetical, other.hypothetical) for one, other in zip(true, own, strict=True)]
    measured = [pair for pair in both if all(side and np.isfinite(side).all() for side in pair)]
    places = list(combinations(range(len(measured[0][0])), 2)) if measured else []
    sides = [[losses[a] - losses[b] for losses in side for a, b in places] for side in zip(*measured, strict=True)]
    return np.array(sides[0] if sides else []), np.array(sides[1] if sides else [])


def _share(agreed: Sequence[bool]) -> float:
    return sum(agreed) / len(agreed) if agreed else math.nan
