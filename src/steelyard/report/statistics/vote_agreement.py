"""How far cheaper votes agree with exact ones, step by step, and how far the curves of weights do."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean

import numpy as np

from steelyard.errors import UserError
from steelyard.files.checks import parse_number, parse_whole
from steelyard.files.records import read_rows
from steelyard.imaging.runs.method import Method
from steelyard.report.data.names import canonical_method
from steelyard.report.data.runs import RunRecord
from steelyard.report.statistics.bootstrap import UNKNOWN, Design, Estimate, estimate_mean
from steelyard.report.statistics.grid import Array

_PREFIX = "hypothetical_"


@dataclass(frozen=True)
class StepVote:
    """One method's vote at one step.

    Args:
        vote: The domain voted for; an empty name where there was no vote.
        hypothetical_losses: In the order of the domains; none where nothing was measured.
    """

    vote: str
    hypothetical_losses: tuple[float, ...]


@dataclass(frozen=True)
class Trace:
    """One run's votes, of several methods at the same weights.

    Args:
        votes: By method, a vote at every step; all methods' are of the same length.
        epochs: How many epochs they span.
    """

    votes: dict[str, list[StepVote]]
    epochs: int


@dataclass(frozen=True, kw_only=True)
class VoteAgreement:
    """How one method's votes compare with exact ones in one run.

    Args:
        steps: The number of steps on which both had a vote.
        share: The share of these steps on which it was the same.
        kappa: Cohen's kappa: agreement beyond that of random votes of the same frequencies; NaN if all votes of both
            are for one domain.
        share_between: The share on steps without a vote of its own, where the last one stays in force; NaN if there are
            none.
        correlation: Of the differences between domains' hypothetical losses, over all steps on which both measured; NaN
            for a method that measures exactly, but not on every step.
    """

    steps: int
    share: float
    kappa: float
    share_between: float
    correlation: float


def read_trace(path: Path) -> Trace:
    """Read the votes that a run was retraced with; methods get their readable names.

    Raises:
        UserError: It is not such a table.
    """
    votes: dict[str, list[StepVote]] = {}
    epochs = 0
    try:
        for where, row in read_rows(path, ("method", "vote", "epoch")):
            votes.setdefault(canonical_method(row["method"]), []).append(_step_vote(where, row))
            epochs = max(epochs, parse_whole(f"{where}: epoch", row["epoch"]) + 1)
    except UserError as error:
        raise UserError(f"{path}: is damaged; remove it to have the run retraced.") from error
    lengths = set(map(len, votes.values()))
    if len(lengths) != 1:
        raise UserError(f"{path}: is damaged; remove it to have the run retraced.")
    return Trace(votes, epochs)


def _step_vote(where: str, row: dict[str, str]) -> StepVote:
    losses = []
    for name, text in row.items():
        if name.startswith(_PREFIX) and text:
            losses.append(parse_number(f"{where}: {name}", text))
        elif name.startswith(_PREFIX):
            return StepVote(row["vote"].strip(), ())
    return StepVote(row["vote"].strip(), tuple(losses))


def vote_agreement(trace: Trace, exact: str, method: str) -> VoteAgreement:
    """Compare a method's votes with the exact ones at every step.

    A method that votes on each n-th step only keeps its last vote in between.
    """
    every = Method.parse_or_unknown(method).every or 1
    probed = every_step_method(method)
    exact_votes, own_votes = trace.votes[exact], trace.votes[probed]
    in_force = votes_in_force([step.vote for step in own_votes], every)
    pairs, agreed_between = [], []
    for number, (step, vote) in enumerate(zip(exact_votes, in_force, strict=True), start=1):
        if not step.vote or not vote:
            continue
        pairs.append((step.vote, vote))
        if number % every != 0:
            agreed_between.append(step.vote == vote)
    loss_correlation = math.nan
    if probed != exact:
        loss_correlation = correlation(*_loss_differences(exact_votes, own_votes))
    return VoteAgreement(
        steps=len(pairs),
        share=_share([first == second for first, second in pairs]),
        kappa=cohens_kappa(pairs),
        share_between=_share(agreed_between),
        correlation=loss_correlation,
    )


def every_step_method(method: str) -> str:
    """Return the method with the same probe and a vote on every step; an unknown one stays as it is.

    >>> every_step_method("conservative-25+first-order+every-4")
    'conservative-25+first-order'
    """
    return Method.parse_or_unknown(method).voting_on_each_step.name


def votes_exactly(method: str) -> bool:
    """Whether a method votes on every step with the exact probe."""
    rule = Method.parse_or_unknown(method)
    return not rule.first_order and rule.every in (None, 1)


def variants_of(method: str, methods: Sequence[str]) -> list[str]:
    """Return the other methods that count votes in the same way and differ only in how votes are taken.

    >>> variants_of("greedy-25", ["equal", "greedy-25", "greedy-25+first-order", "greedy-100"])
    ['greedy-25+first-order']
    """
    return [name for name in methods if name != method and _counting_rule(name) == _counting_rule(method)]


def has_variants(method: str, methods: Sequence[str]) -> bool:
    """Whether some other method is this one with something added after a plus."""
    rule = Method.parse_or_unknown(method)
    for name in variants_of(method, methods):
        variant = Method.parse_or_unknown(name)
        keeps_mode = rule.meta_test in (None, variant.meta_test)
        keeps_interval = rule.every in (None, variant.every)
        if keeps_mode and keeps_interval and (variant.first_order or not rule.first_order):
            return True
    return False


def _counting_rule(method: str) -> Method:
    """Return a method without what says how its votes are taken."""
    return replace(Method.parse_or_unknown(method), first_order=False, meta_test=None, every=None)


def votes_in_force(votes: Sequence[str], every: int) -> list[str]:
    """Return the vote in force at each step if only each n-th step's counts, until the next.

    >>> votes_in_force(["a", "b", "b", "a", "a", "b"], 2)
    ['', 'b', 'b', 'a', 'a', 'b']
    """
    in_force, last = [], ""
    for step, vote in enumerate(votes, start=1):
        if step % every == 0 and vote:
            last = vote
        in_force.append(last)
    return in_force


def cohens_kappa(pairs: Sequence[tuple[str, str]]) -> float:
    """Return Cohen's kappa of paired votes; NaN where agreement is certain.

    >>> cohens_kappa([("a", "a"), ("a", "b"), ("b", "b"), ("b", "b")])
    0.5
    """
    if not pairs:
        return math.nan
    first, second = zip(*pairs, strict=True)
    expected = sum(first.count(name) * second.count(name) for name in set(first)) / len(pairs) ** 2
    if expected == 1:
        return math.nan
    observed = _share([vote == other for vote, other in pairs])
    return (observed - expected) / (1 - expected)


def correlation(first: Array, second: Array) -> float:
    """Return Pearson's correlation; NaN if there are fewer than two pairs or one side does not vary."""
    if len(first) < 2 or not np.ptp(first) or not np.ptp(second):
        return math.nan
    return float(np.corrcoef(first, second)[0, 1])


def curve_agreement(first: RunRecord, second: RunRecord) -> tuple[float, float]:
    """Return correlation and mean absolute difference of two runs' weights over the steps that both took.

    Means over the domains but the last, whose weight follows from the others'.
    """
    correlations, differences = [], []
    for domain in first.trained[:-1]:
        first_curve = np.array(first.step_weights(domain), dtype=float)
        second_curve = np.array(second.step_weights(domain), dtype=float)
        steps = min(len(first_curve), len(second_curve))
        if steps == 0:
            return math.nan, math.nan
        correlations.append(correlation(first_curve[:steps], second_curve[:steps]))
        differences.append(float(np.abs(first_curve[:steps] - second_curve[:steps]).mean()))
    return fmean(correlations), fmean(differences)


def mean_over_runs(values: Sequence[float]) -> Estimate:
    """Return the mean over runs, or pairs of runs, and its bootstrap interval; NaN is left out.

    >>> mean_over_runs([0.5, 0.7]).value
    0.6
    """
    if not values:
        return UNKNOWN
    # Each run is a case of its own.
    runs = np.arange(len(values))
    return estimate_mean(np.array(values)[:, None], Design(fold_of_case=runs, subject_of_case=runs))


def _loss_differences(exact: Sequence[StepVote], own: Sequence[StepVote]) -> tuple[Array, Array]:
    """Return H_a − H_b of every two domains at every step that both measured, exactly and otherwise."""
    exact_differences: list[float] = []
    own_differences: list[float] = []
    for exact_step, own_step in zip(exact, own, strict=True):
        if _is_measured(exact_step) and _is_measured(own_step):
            exact_differences += _pairwise_differences(exact_step.hypothetical_losses)
            own_differences += _pairwise_differences(own_step.hypothetical_losses)
    return np.array(exact_differences), np.array(own_differences)


def _is_measured(step: StepVote) -> bool:
    losses = step.hypothetical_losses
    return len(losses) > 0 and all(map(math.isfinite, losses))


def _pairwise_differences(losses: Sequence[float]) -> list[float]:
    return [first - second for first, second in combinations(losses, 2)]


def _share(agreed: Sequence[bool]) -> float:
    if not agreed:
        return math.nan
    return sum(agreed) / len(agreed)
