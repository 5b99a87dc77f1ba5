"""Which domains have labels that look noisy, and what they keep of their share meanwhile."""

from statistics import NormalDist

import torch
from torch import Tensor

from steelyard.training.full_precision import FullPrecision
from steelyard.training.judging import FEWEST_VOTES, Progress
from steelyard.training.transfer import Transfer

_PATIENCE = 2.0  # how long a suspect keeps its whole share, in units of t_e
_DECISION = 3.0  # when the audit says what looks noisy, in the same units; later, so that it is rarely wrong
_LEVEL = 0.01  # of an error, for all domains and both questions about transfer together
_NOT_LEARNED = 0.88  # of a first loss that remains, when the better half of the domains has begun to learn
_RELEASED = 0.8  # of a first loss: a suspect with less has learned something


def beyond_doubt(domains: int) -> float:
    """How many standard errors show something: one-sided, and corrected for two questions about each domain."""
    return NormalDist().inv_cdf(1 - _LEVEL / (2 * domains))


class Suspects(FullPrecision):
    """Domains that do not learn while the better half of the domains does.

    Let t_e be the step at which the better half has begun to learn. A domain becomes a suspect then if 88 % or more of
    its first loss remains, its loss is above the median domain's (a low one was learned before, as in fine-tuning), and
    its steps are not shown to help other samples of its own. A suspect is released for good as soon as less than 80 %
    of its first loss remains: it was only harder than the others. From step 2 t_e on it keeps the part 2 t_e / t of its
    share at step t, but no less than a given part. So a hard domain has time to learn, and wrong labels lose their
    share before they are memorised. A domain that is a suspect still at step 3 t_e looks noisy, which the audit says.

    Nobody is named later than t_e: a domain with fewer than 30 votes by then is never a suspect.

    Args:
        domains: the number of domains.

    Attributes:
        progress: how far the losses have fallen.
    """

    suspected: Tensor
    """For each domain whether it is a suspect now."""
    look_noisy: Tensor
    """For each domain whether it was a suspect still at step 3 t_e; later releases do not change it."""
    own_in_errors: Tensor
    """What each domain's steps had done to itself by step t_e, in standard errors; 0 before."""
    remaining: Tensor
    """The part of each first loss that remained at step 3 t_e; 0 before."""
    decided: Tensor
    """Whether step 3 t_e is over."""

    def __init__(self, domains: int) -> None:
        super().__init__()
        self.progress = Progress(domains)
        self.register_buffer("suspected", torch.zeros(domains, dtype=torch.bool))
        self.register_buffer("look_noisy", torch.zeros(domains, dtype=torch.bool))
        self.register_buffer("own_in_errors", torch.zeros(domains, dtype=torch.float64))
        self.register_buffer("remaining", torch.zeros(domains, dtype=torch.float64))
        self.register_buffer("decided", torch.zeros((), dtype=torch.bool))

    def observe(self, losses: Tensor, step: int, transfer: Transfer) -> bool:
        """Take in the losses of a vote; return whether step 3 t_e has just come.

        Args:
            losses: of each domain; NaN for absent ones.
            step: the number of training steps so far, this one included.
            transfer: what was measured so far, this vote included.
        """
        if self.progress.observe(losses, step):
            self._name(transfer)
        self.suspected &= self.progress.remaining >= _RELEASED
        if bool(self.decided) or self.progress.time < _DECISION:
            return False
        self.decided.fill_(True)
        self.look_noisy.copy_(self.suspected)
        self.remaining.copy_(self.progress.remaining)
        return True

    def _name(self, transfer: Transfer) -> None:
        """Name the suspects: the better half of the domains has begun to learn."""
        self.own_in_errors.copy_(transfer.own_in_errors)
        helps_itself = self.own_in_errors <= -beyond_doubt(len(self.suspected))
        enough = self.own_in_errors.isfinite() & (transfer.count.diagonal() >= FEWEST_VOTES)
        levels = self.progress.current / transfer.loss_scale  # in the same units
        high = levels > levels.nanquantile(0.5)
        self.suspected.copy_((self.progress.remaining >= _NOT_LEARNED) & high & enough & ~helps_itself)

    def kept_shares(self, least: float) -> Tensor:
        """What each domain keeps of its share: 1, or less for a suspect after step 2 t_e, but not below `least`."""
        parts = torch.ones(len(self.suspected), dtype=torch.float64)
        if self.progress.time > _PATIENCE:
            parts[self.suspected.cpu()] = max(least, _PATIENCE / self.progress.time)
        return parts
