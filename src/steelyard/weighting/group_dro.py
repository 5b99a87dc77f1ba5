"""Weights for the worst domain."""

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from steelyard.measurement import Measurement, Outcome, Statistic, Update
from steelyard.weighting.weighting import Weighting


@final
class GroupDRO(Weighting):
    """Distributionally robust weights: domains with higher losses gain weight exponentially.

    λ_d ← λ_d exp(γ L_d) / Z at each step, from equal weights. L_d is the loss being weighed; Z makes the weights sum
    to 1. A domain absent from a batch keeps its weight. Needs no probe and has no trainable parameters.

    Args:
        rate: γ, the size of a step.

    Reference: Sagawa et al., Distributionally Robust Neural Networks for Group Shifts, ICLR 2020.

    >>> from steelyard import Measurement
    >>> weighting = GroupDRO(rate=1.0)
    >>> weighting.start(domains=2)
    >>> _ = weighting.observe(Measurement.of(torch.tensor([2.0, 1.0])))
    >>> [round(weight, 3) for weight in weighting.weights()]
    [0.731, 0.269]
    """

    statistic: ClassVar[Statistic] = Statistic.LOSSES
    logarithms: Tensor
    """log λ."""

    def __init__(self, rate: float = 0.01) -> None:
        super().__init__()
        if not 0 < rate < math.inf:
            raise ValueError(f"rate must be above 0 and finite; got {rate}.")
        self.rate = rate

    def weights(self) -> tuple[float, ...]:
        """λ."""
        return tuple(self.logarithms.softmax(0).tolist())

    def _start(self, domains: int) -> None:
        self.register_buffer("logarithms", torch.zeros(domains, dtype=torch.float64))

    def _update(self, measurement: Measurement) -> Update:
        present = measurement.present.to(self.logarithms.device)
        losses = measurement.values.to(self.logarithms.device)
        before = self.logarithms[present]
        # Shares among the present domains; not below exp(−700), so that no weight becomes 0 and stays there.
        log_shares = (before + self.rate * losses[present]).log_softmax(0).clamp(min=-700)
        # Absent domains keep their weights: the present ones divide among them what they had together.
        self.logarithms[present] = log_shares + before.logsumexp(0)
        self.logarithms.sub_(self.logarithms.logsumexp(0))  # removes rounding errors, which would add up
        return Update(Outcome.UPDATED)

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        return f"rate={self.rate}"
