"""Which domains have labels that look noisy."""

from statistics import NormalDist

import torch
from torch import Tensor

from steelyard.training.judging import FEWEST_VOTES, Progress
from steelyard.training.transfer import Transfer

_LEVEL = 0.01  # of an error, for all domains and both questions about transfer together
_NOT_LEARNED = 0.88  # of a first loss that remains, while the better half of the domains has learned
_LEARNED = 0.7  # of their first losses that remains for the better half, if they have learned something


def beyond_doubt(domains: int) -> float:
    """How many standard errors show something: one-sided, and corrected for two questions about each domain."""
    return NormalDist().inv_cdf(1 - _LEVEL / (2 * domains))


def noisy_domains(transfer: Transfer, progress: Progress) -> Tensor:
    """For each domain whether its labels look noisy: it learned next to nothing, and its steps do not help itself.

    A domain with right labels that is much harder than the others looks the same, unless its steps help other samples
    of its own already.
    """
    remaining, own = progress.remaining, transfer.early[0]
    if not progress.of_the_better_half <= _LEARNED:
        return torch.zeros_like(remaining, dtype=torch.bool)
    helps_itself = own <= -beyond_doubt(len(remaining))
    enough = own.isfinite() & (transfer.early_votes >= FEWEST_VOTES)
    return (remaining >= _NOT_LEARNED) & ~helps_itself & enough
