"""Weights for the domain that learns most slowly."""

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from steelyard.measurement import Measurement, Outcome, Statistic, Verdict
from steelyard.weighting.weighting import Weighting


@final
class DynamicWeightAverage(Weighting):
    """Weights after how fast each domain's loss has been falling: λ = softmax(r / T), r_d = L̄_d(t−1) / L̄_d(t−2).

    L̄_d(t) is the domain's mean loss over the t-th period. The paper's weights sum to K; these are divided by K. Equal
    until two periods are complete. Losses should keep one sign. Needs no probe and has no trainable parameters.

    Args:
        period: steps in a period; the paper's is an epoch.
        temperature: T; a larger one makes the weights more alike.

    Reference: Liu, Johns and Davison, End-to-End Multi-Task Learning with Attention, CVPR 2019.

    >>> from steelyard import Measurement
    >>> weighting = DynamicWeightAverage(period=1, temperature=1.0)
    >>> weighting.start(domains=2)
    >>> for losses in ([4.0, 1.0], [2.0, 1.0]):
    ...     verdict = weighting.observe(Measurement.of(torch.tensor(losses)))
    >>> [round(weight, 3) for weight in weighting.weights()]
    [0.378, 0.622]
    """

    statistic: ClassVar[Statistic] = Statistic.LOSSES
    sums: Tensor
    counts: Tensor
    previous: Tensor
    current: Tensor
    steps: Tensor

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

    def _update(self, measurement: Measurement) -> Verdict:
        present = measurement.present.to(self.sums.device)
        self.sums[present] += measurement.values.to(self.sums.device)[present] / self.period
        self.counts += present
        self.steps += 1
        if int(self.steps) % self.period:
            return Verdict(Outcome.HELD)
        # A domain that was absent for a whole period has the mean of the last one it was in.
        means = torch.where(self.counts > 0, self.sums / self.counts * self.period, self.previous)
        rates = means / self.previous
        self.previous.copy_(means)
        self.sums.zero_()
        self.counts.zero_()
        if not rates.isfinite().all():
            return Verdict(Outcome.NOT_FINITE)
        self.current.copy_((rates / self.temperature).softmax(0))
        return Verdict(Outcome.UPDATED)

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        return f"period={self.period}, temperature={self.temperature}"
