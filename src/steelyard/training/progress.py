"""How far the losses of the domains have fallen, and when most was learned that other samples could show."""

import torch
from torch import Tensor

from steelyard.training.full_precision import FullPrecision
from steelyard.training.transfer import follow

FEWEST_VOTES = 30
"""Before that, neither losses nor transfer say anything."""

_RATE = 0.05  # by which the running mean of a loss follows a new vote
_HALVED = 0.5


class Progress(FullPrecision):
    """The part of each domain's first loss that remains.

    What a network learns first holds for other samples, too. Later it memorises the samples, wrong labels included. So
    domains are compared at one early moment: when the better half of them has halved its losses. A domain with random
    labels has learned nothing by then.

    Args:
        domains: the number of domains.
    """

    first: Tensor
    """Each domain's loss at its first vote; 0 before."""
    running: Tensor
    """The running mean of each domain's loss, and the sum of the factors in it."""
    early_running: Tensor
    """The same at the early moment; zeros before."""
    votes: Tensor
    """The number of votes so far."""

    def __init__(self, domains: int) -> None:
        super().__init__()
        self.register_buffer("first", torch.zeros(domains, dtype=torch.float64))
        self.register_buffer("running", torch.zeros(2, domains, dtype=torch.float64))
        self.register_buffer("early_running", torch.zeros(2, domains, dtype=torch.float64))
        self.register_buffer("votes", torch.zeros((), dtype=torch.long))

    @property
    def is_over(self) -> bool:
        """Whether the early moment has come."""
        return bool(self.early_running.any())

    @property
    def remaining(self) -> Tensor:
        """The part of each first loss that remained at the early moment, or remains now if it has not come.

        NaN for a domain that had no vote by then, or whose first loss was not above 0.
        """
        means, factors = self.early_running if self.is_over else self.running
        has_level = (factors > 0) & (self.first > 0)
        return torch.where(has_level, means / factors / self.first, torch.nan)

    @property
    def of_the_better_half(self) -> float:
        """The mean of `remaining` over the better half of the domains; NaN if nothing is known."""
        parts = self.remaining[~self.remaining.isnan()].sort().values
        return float(parts[: (len(parts) + 1) // 2].mean())

    def observe(self, losses: Tensor) -> bool:
        """Take in the losses of a vote, NaN for absent domains; return whether the early moment has come with it."""
        losses = losses.to(self.first.device)
        means, factors = self.running
        new = (factors == 0) & losses.isfinite()
        self.first[new] = losses[new]
        follow(means, factors, losses, rate=_RATE)
        self.votes += 1
        if self.is_over or int(self.votes) < FEWEST_VOTES or not self.of_the_better_half <= _HALVED:
            return False
        self.early_running.copy_(self.running)
        return True
