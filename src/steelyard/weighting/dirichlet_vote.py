"""The paper's weights: count votes, and take the mode of the posterior."""

import operator
from collections.abc import Sequence
from typing import ClassVar, Literal, final, get_args

import torch
from torch import Tensor

from steelyard.measurement import Measurement, Outcome, Statistic, Update
from steelyard.weighting.posterior import DirichletPosterior
from steelyard.weighting.weighting import Weighting

Choice = Literal["greedy", "conservative"]


@final
class DirichletVote(Weighting):
    r"""Maximum a posteriori weights from a window of votes.

    Each step casts one vote. H_d is the hypothetical loss: how all domains fare after a step that favours domain d.
    `greedy` votes for the domain with the lowest, argmin_d H_d; `conservative` for the one with the highest,
    argmax_d H_d. The last `window` votes count as independent draws from a categorical distribution with a
    Dirichlet(α) prior. The weights are the posterior's mode, λ_d = (α_d + N_d − 1) / (Σα + n − K): N_d of n votes
    were for domain d, and there are K domains. In words: a domain's share of all votes, where the prior counts as
    α_d − 1 votes for each domain. A tie casts no vote.

    A domain may be absent from a vote. With k of K domains present, the winner gets k/K of the vote and each absent
    domain gets 1/K. So domains that are alike get equal weights, however often each is present. With all domains
    present this is the paper's rule.

    Args:
        choice: `greedy` or `conservative`. To first order greedy favours the domain whose gradient agrees most with
            the sum of all gradients, conservative the one whose gradient agrees least.
        window: how many votes count. With many domains it should grow with their number.
        prior: α, one number or one per domain, each above 1. A prior of 5 is worth 4 votes for each domain.
        prior_votes: instead of `prior`, how many votes it is worth in all: α_d = 1 + prior_votes / K for any K.

    Reference: Sicilia et al., Multi-Domain Learning by Meta-Learning, ISBI 2021.

    >>> from steelyard import Measurement
    >>> weighting = DirichletVote("conservative", window=25, prior=5.0)
    >>> weighting.start(domains=2)
    >>> weighting.weights()
    (0.5, 0.5)
    >>> update = weighting.observe(Measurement.of(torch.tensor([0.9, 1.0])))
    >>> update.vote, [round(weight, 3) for weight in weighting.weights()]
    (1, [0.444, 0.556])
    """

    statistic: ClassVar[Statistic] = Statistic.HYPOTHETICAL_LOSSES
    votes: Tensor
    """The last votes, one row each with every domain's share. The newest vote overwrites the oldest row."""
    votes_cast: Tensor
    """The number of votes since the start, also those that have left the window."""

    def __init__(
        self,
        choice: Choice = "conservative",
        *,
        window: int = 25,
        prior: float | Sequence[float] | None = None,
        prior_votes: float | None = None,
    ) -> None:
        super().__init__()
        if choice not in get_args(Choice):
            raise ValueError(f"choice must be 'greedy' or 'conservative'; got {choice!r}.")
        if not isinstance(window, int) or window < 1:
            raise ValueError(f"window must be a whole number, at least 1; got {window!r}.")
        if prior is not None and prior_votes is not None:
            raise ValueError("give prior or prior_votes, not both.")
        if prior_votes is not None and not 0 < prior_votes < float("inf"):
            raise ValueError(f"prior_votes must be above 0 and finite; got {prior_votes}.")
        self.choice = choice
        self.window = window
        self._prior = _checked_prior(5.0 if prior is None else prior)  # one number, or one per domain
        self._prior_votes = prior_votes

    @property
    def prior(self) -> tuple[float, ...]:
        """α, one number per domain."""
        if self._prior_votes is not None:
            return (1 + self._prior_votes / self.domains,) * self.domains
        if len(self._prior) == 1:
            return self._prior * self.domains
        return self._prior

    @property
    def posterior(self) -> DirichletPosterior:
        """The posterior given the votes in the window: its mode, mean and credible intervals."""
        prior = self.prior  # before `votes`, because it raises if the weighting has not been started
        counts = self.votes.sum(0).tolist()  # rows of votes that are not yet cast are zero
        return DirichletPosterior(tuple(map(operator.add, prior, counts)))

    def weights(self) -> tuple[float, ...]:
        """The posterior's mode; before any vote, the prior's."""
        return self.posterior.mode

    def _start(self, domains: int) -> None:
        if len(self._prior) not in (1, domains):
            raise ValueError(f"prior must be one number or one per domain ({domains}); got {len(self._prior)}.")
        self.register_buffer("votes", torch.zeros(self.window, domains, dtype=torch.float64))
        self.register_buffer("votes_cast", torch.zeros((), dtype=torch.int64))

    def _update(self, measurement: Measurement) -> Update:
        losses = {domain: measurement.values[domain].item() for domain in measurement.taking_part}
        extreme = max if self.choice == "conservative" else min
        winning_loss = extreme(losses.values())
        winners = [domain for domain, loss in losses.items() if loss == winning_loss]
        if len(winners) > 1:
            return Update(Outcome.TIE)
        winner = winners[0]
        self.votes[int(self.votes_cast) % self.window] = self._divided_vote(winner, measurement.present)
        self.votes_cast += 1
        return Update(Outcome.UPDATED, vote=winner)

    def _divided_vote(self, winner: int, present: Tensor) -> Tensor:
        """One vote: k/K for the winner among k domains present, 1/K for each domain that is absent."""
        shares = torch.where(present, 0.0, 1 / self.domains).to(self.votes)
        shares[winner] = int(present.sum()) / self.domains
        return shares

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        prior = f"prior={self._prior}"
        if self._prior_votes is not None:
            prior = f"prior_votes={self._prior_votes}"
        return f"{self.choice!r}, window={self.window}, {prior}"


def _checked_prior(prior: float | Sequence[float]) -> tuple[float, ...]:
    if isinstance(prior, Sequence) and not isinstance(prior, str):
        numbers = tuple(map(float, prior))
    else:
        numbers = (float(prior),)
    if not numbers or not all(1 < alpha < float("inf") for alpha in numbers):
        raise ValueError(
            f"every prior must be finite and above 1, or the posterior has no mode and starves domains; got {prior}."
        )
    return numbers
