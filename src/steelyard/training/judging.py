"""How scores are judged, and how far the losses behind them have fallen."""

import torch
from torch import Tensor

from steelyard.measurement import Scores
from steelyard.training.full_precision import FullPrecision
from steelyard.training.transfer import follow

FEWEST_VOTES = 30
"""Before that, neither losses nor transfer say anything."""

_RATE = 0.05  # by which the running mean of a loss follows a new vote
_FIRST_VOTES = 5  # whose mean is the first loss: a single one of few samples may be far off
_LEARNED = 0.7  # of a first loss that remains, if a domain has begun to learn


class Judging(FullPrecision):
    """Turns losses into bounded scores J = 1 − exp(−L / L0), where L0 is a domain's loss at its first vote.

    A loss as such rewards steps that soften over-confident outputs on wrong labels; the bounded form does so much less.
    It needs losses that are not negative. A domain whose loss was ever negative is judged by the loss as it is.

    Args:
        domains: the number of domains.
        bounded: whether scores are losses to be bounded; otherwise they are left as they are.
    """

    first_losses: Tensor
    """L0; 0 until a domain's first vote."""
    negative: Tensor
    """For each domain whether its loss was ever negative."""

    def __init__(self, domains: int, *, bounded: bool) -> None:
        super().__init__()
        self.bounded = bounded
        self.register_buffer("first_losses", torch.zeros(domains, dtype=torch.float64))
        self.register_buffer("negative", torch.zeros(domains, dtype=torch.bool))

    def forward(self, scores: Scores) -> Tensor:
        """The judged scores after each step, shaped as `scores.after`."""
        if not self.bounded:
            return scores.after
        self._note(scores)
        scale = self.first_losses.cpu()
        bounded = 1 - torch.exp(-scores.after / scale)
        # First-order scores may lie far outside of the losses' range, so the bounded form is expanded, too.
        slope = torch.exp(-scores.before / scale) / scale
        expanded = 1 - torch.exp(-scores.before / scale) + slope * (scores.after - scores.before)
        judged = torch.where(scores.before.isnan(), bounded, expanded)
        unbounded = self.negative.cpu() | (scale == 0)
        return torch.where(unbounded, scores.after, judged)

    def _note(self, scores: Scores) -> None:
        """Remember each domain's first loss, and which domains have negative losses."""
        levels = scores.losses
        zero_step = scores.after[-1]
        # A domain that is judged and has no step has no loss of its own; its score after the zero step serves.
        levels = torch.where(levels.isnan(), zero_step, levels).to(self.first_losses.device)
        # A first-order score may be below 0 where no loss is, so then only scores before any step tell.
        lowest = torch.where(scores.before.isnan(), scores.after.nan_to_num(nan=torch.inf).amin(0), scores.before)
        self.negative |= (levels < 0) | (lowest.to(levels.device) < 0)
        unseen = (self.first_losses == 0) & (levels > 0)
        self.first_losses[unseen] = levels[unseen]

    def extra_repr(self) -> str:
        """How scores are judged, for `print(balancer)`."""
        if not self.bounded:
            return "as they are"
        if not bool(self.negative.any()):
            return "bounded losses, 1 - exp(-L / L0)"
        return "losses can be negative and are judged as they are: judge= with a bounded score is advised"


class Progress(FullPrecision):
    """The part of each domain's first loss that remains, and when the better half of the domains began to learn.

    What a network learns first holds for other samples, too. Later it memorises the samples, wrong labels included. So
    domains are compared early: from the step at which half of them have lost 30 % of their losses.

    Args:
        domains: the number of domains.
    """

    first: Tensor
    """The mean of each domain's losses at its first votes; 0 before."""
    loss_counts: Tensor
    """The number of losses seen of each domain."""
    running: Tensor
    """The running mean of each domain's loss, and the sum of the factors in it."""
    votes: Tensor
    """The number of votes so far."""
    step: Tensor
    """The number of training steps, votes or not, up to the last vote."""
    early_step: Tensor
    """The step at which the better half had begun to learn; 0 before."""

    def __init__(self, domains: int) -> None:
        super().__init__()
        self.register_buffer("first", torch.zeros(domains, dtype=torch.float64))
        self.register_buffer("loss_counts", torch.zeros(domains, dtype=torch.long))
        self.register_buffer("running", torch.zeros(2, domains, dtype=torch.float64))
        self.register_buffer("votes", torch.zeros((), dtype=torch.long))
        self.register_buffer("step", torch.zeros((), dtype=torch.long))
        self.register_buffer("early_step", torch.zeros((), dtype=torch.long))

    @property
    def current(self) -> Tensor:
        """The running mean of each domain's loss; NaN for a domain without a vote."""
        means, factors = self.running
        return torch.where(factors > 0, means / factors, torch.nan)

    @property
    def remaining(self) -> Tensor:
        """The part of each first loss that remains; NaN for a domain without a vote, or a first loss not above 0.

        A loss that became negative counts as 0.
        """
        return torch.where(self.first > 0, (self.current / self.first).clamp(min=0), torch.nan)

    @property
    def better_half_learns(self) -> bool:
        """Whether at least half of the domains have lost 30 % of their first losses."""
        learning = self.remaining <= _LEARNED
        return 2 * int(learning.sum()) >= len(learning)

    @property
    def time(self) -> float:
        """The steps so far, in units of those that the better half needed to begin to learn; 0 before."""
        if int(self.early_step) == 0:
            return 0.0
        return int(self.step) / int(self.early_step)

    def observe(self, losses: Tensor, step: int) -> bool:
        """Take in the losses of a vote, NaN for absent domains; return whether the better half has just begun to learn.

        Args:
            losses: of each domain.
            step: the number of training steps so far, this one included.
        """
        losses = losses.to(self.first.device)
        self.loss_counts += losses.isfinite()
        at_start = losses.isfinite() & (self.loss_counts <= _FIRST_VOTES)
        self.first += torch.where(at_start, (losses - self.first) / self.loss_counts, 0.0)
        means, factors = self.running
        follow(means, factors, losses, rate=_RATE)
        self.votes += 1
        self.step.fill_(step)
        if int(self.early_step) or int(self.votes) < FEWEST_VOTES or not self.better_half_learns:
            return False
        self.early_step.fill_(step)
        return True
