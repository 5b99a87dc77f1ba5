"""Weights that make all losses fall at the same rate."""

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from steelyard.measurement import Measurement, Outcome, Statistic, Verdict
from steelyard.weighting.adam import Adam
from steelyard.weighting.weighting import Weighting

_LEAST = 1e-8


@final
class FAMO(Weighting):
    """Fast adaptive multitask optimisation: λ_d ∝ z_d / (L_d − b), z = softmax(ξ).

    ξ follows, by an Adam of the weighting's own, how much each domain's log(L_d − b) fell from one step to the next:
    who falls less gains. The paper measures the fall on the same batch, with one more forward pass after the step;
    here the next batch's losses stand for those, which costs nothing and is noisier. Needs no probe; no optimizer has
    to be given anything. A domain absent from a batch has the loss it had last.

    Args:
        rate: the learning rate of ξ.
        decay: how strongly ξ is drawn back to 0, equal z.
        lower_bound: b, a number that no loss falls below.

    Reference: Liu et al., FAMO: Fast Adaptive Multitask Optimization, NeurIPS 2023.

    >>> from steelyard import Measurement
    >>> weighting = FAMO()
    >>> weighting.start(domains=2)
    >>> _ = weighting.observe(Measurement.of(torch.tensor([3.0, 1.0])))
    >>> [round(weight, 3) for weight in weighting.weights()]
    [0.25, 0.75]
    """

    statistic: ClassVar[Statistic] = Statistic.LOSSES
    logits: Tensor
    last: Tensor
    current: Tensor

    def __init__(self, *, rate: float = 0.025, decay: float = 0.001, lower_bound: float = 0.0) -> None:
        super().__init__()
        for name, value in (("rate", rate), ("decay", decay)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must not be negative and must be finite; got {value}.")
        self.rate = rate
        self.decay = decay
        self.lower_bound = lower_bound

    def weights(self) -> tuple[float, ...]:
        """λ."""
        return tuple(self.current.tolist())

    def _start(self, domains: int) -> None:
        self.register_buffer("logits", torch.zeros(domains, dtype=torch.float64))
        self.register_buffer("last", torch.full((domains,), math.nan, dtype=torch.float64))
        self.register_buffer("current", torch.full((domains,), 1 / domains, dtype=torch.float64))
        self.adam = Adam(domains, rate=self.rate)

    def _update(self, measurement: Measurement) -> Verdict:
        heights = (measurement.values.to(self.last.device) - self.lower_bound).clamp(min=_LEAST)
        heights = torch.where(measurement.present.to(self.last.device), heights, self.last)
        fall = torch.nan_to_num(self.last.log() - heights.log())  # none where there was no loss before
        shares = self.logits.softmax(0)
        slope = shares * (fall - (shares * fall).sum())  # the fall, through the softmax's derivative
        if self.last.isfinite().any():
            self.adam.step(self.logits, slope + self.decay * self.logits)
        self.last.copy_(heights)
        # A domain never seen yet has no height: it stands aside.
        ratios = torch.nan_to_num(self.logits.softmax(0) / heights)
        self.current.copy_((ratios.log() - ratios.log().logsumexp(0)).exp())
        return Verdict(Outcome.UPDATED)

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        return f"rate={self.rate}, decay={self.decay}, lower_bound={self.lower_bound}"
