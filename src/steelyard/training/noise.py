"""Which domains have labels that look noisy, and what they keep of their share meanwhile."""

from statistics import NormalDist

import torch
from torch import Tensor

from steelyard.training.full_precision import FullPrecision
from steelyard.training.judging import FEWEST_VOTES, Progress
from steelyard.training.transfer import Transfer

PATIENCE = 3.0
"""How long a suspect keeps its whole share, in units of the time that the better half needed to begin to learn."""

_LEVEL = 0.01  # of an error, for all domains and both questions about transfer together
_NOT_LEARNED = 0.88  # of a first loss that remains, when the better half of the domains has begun to learn
_RELEASED = 0.8  # of a first loss: a suspect with less has learned something


def beyond_doubt(domains: int) -> float:
    """How many standard errors show something: one-sided, and corrected for two questions about each domain."""
    return NormalDist().inv_cdf(1 - _LEVEL / (2 * domains))


class Suspects(FullPrecision):
    """Domains that do not learn while the better half of the domains does.

    When the better half has begun to learn, at step t_e, a domain becomes a suspect if 88 % or more of its first loss
    remains, its loss is not below the median domain's (it may have been learned before, as in fine-tuning), and its
    steps are not shown to help other samples of its own. A suspect is released for good as soon as less
    than 80 % of its first loss remains: it was only harder than the others. A domain that is a suspect still at step
    3 t_e looks noisy. From then on it keeps the part 3 t_e / t of its share at step t, but no less than a given part.
    So a hard domain has time to learn, and wrong labels lose their share before they are memorised.

    Args:
        domains: the number of domains.
    """

    suspected: Tensor
    """For each domain whether it is a suspect now."""
    look_noisy: Tensor
    """For each domain whether it was a suspect still when the patience ended; later releases do not change it."""
    own_errors: Tensor
    """What each domain's steps did to itself when suspects were named, in standard errors; 0 before."""
    verdict: Tensor
    """Whether the patience has ended."""

    def __init__(self, domains: int) -> None:
        super().__init__()
        self.register_buffer("suspected", torch.zeros(domains, dtype=torch.bool))
        self.register_buffer("look_noisy", torch.zeros(domains, dtype=torch.bool))
        self.register_buffer("own_errors", torch.zeros(domains, dtype=torch.float64))
        self.register_buffer("verdict", torch.zeros((), dtype=torch.bool))

    def observe(self, losses: Tensor, step: int, *, progress: Progress, transfer: Transfer) -> None:
        """Take in the losses of a vote; the transfer matrix has the vote already."""
        began = progress.observe(losses, step)
        if began:
            self.own_errors.copy_(transfer.own_errors)
            self.suspected.copy_(_do_not_learn(progress, transfer))
        self.suspected &= progress.remaining >= _RELEASED
        if not bool(self.verdict) and progress.times_early >= PATIENCE:
            self.verdict.fill_(True)
            self.look_noisy.copy_(self.suspected)
            transfer.keep_early()

    def kept_shares(self, progress: Progress, least: float) -> Tensor:
        """What each domain keeps of its share: 1, or less for a suspect whose patience has ended.

        Args:
            progress: has the time.
            least: the smallest part that is left.
        """
        part = 1.0
        if progress.times_early > PATIENCE:
            part = max(least, PATIENCE / progress.times_early)
        return torch.where(self.suspected, part, 1.0).double()


def _do_not_learn(progress: Progress, transfer: Transfer) -> Tensor:
    """For each domain whether it has not begun to learn, as far as losses and its own steps show."""
    own_errors = transfer.own_errors
    helps_itself = own_errors <= -beyond_doubt(len(own_errors))
    enough = own_errors.isfinite() & (transfer.count.diagonal() >= FEWEST_VOTES)
    high = progress.current >= progress.current.nanquantile(0.5)
    return (progress.remaining >= _NOT_LEARNED) & high & enough & ~helps_itself
