"""Weights for the domain that learns most slowly."""

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from steelyard.measurement import Measurement, Outcome, Statistic, Update
from steelyard.weighting.weighting import Weighting


@final
class DynamicWeightAverage(Weighting):
    """Weights that follow how fast each domain's loss falls: λ = softmax(r / T), r_d = L̄_d(t−1) / L̄_d(t−2).

    L̄_d(t) is the domain's mean loss over the t-th period, so r_d is near 1 where the loss hardly falls: that domain
    gains weight. The paper's weights sum to the number of domains; these sum to 1. They are equal until two periods are
    complete. Losses should keep one sign. Needs no probe and has no trainable parameters.

    Args:
        period: the number of steps in a period; the paper's is an epoch.
        temperature: T; the larger, the more equal the weights.

    Reference: Liu, Johns and Davison, End-to-End Multi-Task Learning with Attention, CVPR 2019.

    >>> from steelyard import Measurement
    >>> weighting = DynamicWeightAverage(period=1, temperature=1.0)
    >>> weighting.start(domains=2)
    >>> for losses in ([4.0, 1.0], [2.0, 1.0]):
    ...     update = weighting.observe(Measurement.of(torch.tensor(losses)))
    >>> [round(weight, 3) for weight in weighting.weights()]
    [0.378, 0.622]
    """

    statistic: ClassVar[Statistic] = Statistic.LOSSES
    sums: Tensor
    """Of this period: each domain's losses, divided by the period so that sums of large losses stay finite."""
    counts: Tensor
    """Of this period: the number of steps that each domain took part in."""
    previous: Tensor
    """Each domain's mean loss over the period before; NaN before the first."""
    current: Tensor
    """λ."""
    steps: Tensor
    """The number of steps since the start."""

    def __init__(self, *, period: int = 100, temperature: float = 2.0) -> None:
        super().__init__()
        if period < 1:
            raise ValueError(f"period must be at least 1; got {period}.")
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature must be above 0 and finite; got {temperature}.")
        self.period = period
        self.temperature = temperature

    def weights(self) -> tuple[float, ...]:
        """λ."""
        return tuple(self.current.tolist())

    def _start(self, domains: int) -> None:
        self.register_buffer("sums", torch.zeros(domains, dtype=torch.float64))
        self.register_buffer("counts", torch.zeros(domains, dtype=torch.int64))
        self.register_buffer("previous", torch.full((domains,), math.nan, dtype=torch.float64))
        self.register_buffer("current", torch.full((domains,), 1 / domains, dtype=torch.float64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def _update(self, measurement: Measurement) -> Update:
        present = measurement.present.to(self.sums.device)
        self.sums[present] += measurement.values.to(self.sums.device)[present] / self.period
        self.counts += present
        self.steps += 1
        if int(self.steps) % self.period != 0:
            return Update(Outcome.HELD)
        # A domain that was absent for a whole period keeps the mean of the last period it was in.
        means = torch.where(self.counts > 0, self.sums / self.counts * self.period, self.previous)
        rates = means / self.previous
        self.previous.copy_(means)
        self.sums.zero_()
        self.counts.zero_()
        if not rates.isfinite().all():
            return Update(Outcome.NOT_FINITE)
        self.current.copy_((rates / self.temperature).softmax(0))
        return Update(Outcome.UPDATED)

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        return f"period={self.period}, temperature={self.temperature}"
