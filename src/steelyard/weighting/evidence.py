"""Weights that follow accumulated evidence, with caution."""

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from steelyard.measurement import Measurement, Outcome, Statistic, Update
from steelyard.weighting.weighting import Weighting

_ROUNDING = 8.0  # in units of the last place: differences up to here are a tie
_SPREAD_RATE = 0.05  # by which the running mean of c² follows a new vote


@final
class Evidence(Weighting):
    """Shares that move once the sum of what was measured says clearly that they should.

    A vote measures H_d, what a step for domain d is worth to all domains (lower is better). Over the domains present in
    the vote, c_d = H_d − mean H, and r² is the running mean of c². Evidence is summed up:

        S_d ← S_d + c_d / r,    N_d ← N_d + 1.

    If the domains were alike, S_d would be a random walk of variance N_d. Only what exceeds z standard deviations
    counts, and the shares are

        w = (1 − K f) softmax(a) + f,    a_d = −κ sign(S_d) max(|S_d| − z √N_d, 0).

    So equal shares stay equal until there is evidence, and w is at least f for every domain. A domain that is absent
    from a vote keeps its S and N. w_d is a domain's *share of the update*: the balancer divides it by the size
    of the domain's gradients to get the weight of its loss, so that a loss in other units does not count for more.

    Args:
        rate: κ, how strongly the shares follow the evidence.
        caution: z, how many standard deviations do not count.
        floor: K f, the part of the update that is divided equally whatever the evidence.
        noisy_share: the least part of its share that a domain keeps whose labels look noisy. It loses its share step by
            step, takes no part in votes, and is trusted again as soon as it learns. With 1 no domain is distrusted.

    The defaults were chosen on small problems, see docs/does_it_pay.md.

    >>> from steelyard import Measurement
    >>> weighting = Evidence()
    >>> weighting.start(domains=2)
    >>> for _ in range(100):
    ...     _ = weighting.observe(Measurement.of(torch.tensor([0.0, 1.0])))
    >>> [round(share, 2) for share in weighting.weights()]
    [0.85, 0.15]
    """

    statistic: ClassVar[Statistic] = Statistic.WORTH
    evidence: Tensor
    """S."""
    votes: Tensor
    """N."""
    spread: Tensor
    """The running mean of c², and the sum of the factors in it."""

    def __init__(
        self,
        *,
        rate: float = 0.1,
        caution: float = 3.0,
        floor: float = 0.3,
        noisy_share: float = 0.1,
    ) -> None:
        super().__init__()
        for name, value in (("rate", rate), ("caution", caution)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must not be negative and must be finite; got {value}.")
        if not 0 <= floor < 1:
            raise ValueError(f"floor must be at least 0 and below 1; got {floor}.")
        if not 0 < noisy_share <= 1:
            raise ValueError(f"noisy_share must be above 0 and at most 1; got {noisy_share}.")
        self.rate = rate
        self.caution = caution
        self.floor = floor
        self.noisy_share = noisy_share

    def weights(self) -> tuple[float, ...]:
        """The shares w of the update, which the balancer turns into weights."""
        beyond_doubt = (self.evidence.abs() - self.caution * self.votes.sqrt()).clamp(min=0)
        softmax = (-self.rate * self.evidence.sign() * beyond_doubt).softmax(0)
        return tuple(((1 - self.floor) * softmax + self.floor / self.domains).tolist())

    def _start(self, domains: int) -> None:
        self.register_buffer("evidence", torch.zeros(domains, dtype=torch.float64))
        self.register_buffer("votes", torch.zeros(domains, dtype=torch.float64))
        self.register_buffer("spread", torch.zeros(2, dtype=torch.float64))

    def _update(self, measurement: Measurement) -> Update:
        present = measurement.present.to(self.evidence.device)
        worth = measurement.values.to(self.evidence.device)[present]
        centred = worth - worth.mean()
        square = centred.square().mean()
        if not square.isfinite():  # differences above 1e154, which would end all learning
            return Update(Outcome.NOT_FINITE)
        limits = torch.finfo(square.dtype)
        rounding = _ROUNDING * limits.eps * worth.abs().max()
        if square < limits.tiny or centred.abs().max() <= rounding:  # tiny is reached by differences below 1e-154
            return Update(Outcome.TIE)
        # A mean in which the first votes count as much as they must, so that it needs no starting value.
        self.spread.mul_(1 - _SPREAD_RATE)
        self.spread += _SPREAD_RATE * torch.stack([square, torch.ones_like(square)])
        root_mean_square = (self.spread[0] / self.spread[1]).sqrt()
        self.evidence[present] += centred / root_mean_square
        self.votes[present] += 1
        return Update(Outcome.UPDATED)

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        return f"rate={self.rate}, caution={self.caution}, floor={self.floor}, noisy_share={self.noisy_share}"
