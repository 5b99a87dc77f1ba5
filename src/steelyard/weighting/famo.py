"""Weights that make all losses fall at the same rate."""

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from steelyard.measurement import Measurement, Outcome, Statistic, Update
from steelyard.weighting.adam import Adam
from steelyard.weighting.weighting import Weighting

_SMALLEST_HEIGHT = 1e-8  # so that a loss at its lower bound has a logarithm


@final
class FAMO(Weighting):
    """Fast adaptive multitask optimisation: λ_d ∝ z_d / (L_d − b), z = softmax(ξ).

    L_d − b is the height of a domain's loss above its lower bound. A domain whose log height falls less than the
    others' gains weight: ξ follows these falls from step to step, by an Adam that belongs to the weighting. The paper
    measures the fall on the same batch, with one more forward pass after the step. Here the next batch's losses are
    used instead, which costs nothing and is noisier. Needs no probe. A domain absent from a batch keeps its last loss.

    Args:
        rate: the learning rate of ξ.
        decay: how strongly ξ is drawn back to 0, where all z are equal.
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
    """ξ."""
    last: Tensor
    """L − b at each domain's last step; NaN for a domain that was never present."""
    current: Tensor
    """λ."""

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

    def _update(self, measurement: Measurement) -> Update:
        heights = (measurement.values.to(self.last.device) - self.lower_bound).clamp(min=_SMALLEST_HEIGHT)
        heights = torch.where(measurement.present.to(self.last.device), heights, self.last)
        falls = torch.nan_to_num(self.last.log() - heights.log())  # 0 for a domain without a loss before
        shares = self.logits.softmax(0)  # z
        gradient = shares * (falls - (shares * falls).sum())  # of Σ_d z_d fall_d with respect to ξ
        if self.last.isfinite().any():
            self.adam.step(self.logits, gradient + self.decay * self.logits)
        self.last.copy_(heights)
        # A domain that was never present has no height; its weight is 0.
        ratios = torch.nan_to_num(self.logits.softmax(0) / heights)
        # ratios / ratios.sum(), by logarithms, because the sum may overflow
        self.current.copy_((ratios.log() - ratios.log().logsumexp(0)).exp())
        return Update(Outcome.UPDATED)

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        return f"rate={self.rate}, decay={self.decay}, lower_bound={self.lower_bound}"
