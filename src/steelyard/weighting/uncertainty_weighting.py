"""Weights by each domain's learned noise."""

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from steelyard.measurement import Measurement, Outcome, Statistic, Update
from steelyard.weighting.adam import Adam
from steelyard.weighting.weighting import Weighting


@final
class UncertaintyWeighting(Weighting):
    """Homoscedastic uncertainty: λ_d = ½ exp(−s_d), where s minimises Σ_d ½ exp(−s_d) L_d + ½ s_d during training.

    s_d is the logarithm of the domain's noise variance: noisy domains get small weights. It starts at 0 and is learned
    from the losses being weighed, by an Adam that belongs to the weighting. The weights are not on the simplex: they
    scale the step as well. Losses must be positive; otherwise s falls for ever. Needs no probe.

    Args:
        rate: the learning rate of s.

    Reference: Kendall, Gal and Cipolla, Multi-Task Learning Using Uncertainty to Weigh Losses, CVPR 2018.

    >>> from steelyard import Measurement
    >>> weighting = UncertaintyWeighting(rate=0.1)
    >>> weighting.start(domains=2)
    >>> for _ in range(200):
    ...     update = weighting.observe(Measurement.of(torch.tensor([2.0, 0.5])))
    >>> [round(weight, 2) for weight in weighting.weights()]
    [0.25, 1.0]
    """

    statistic: ClassVar[Statistic] = Statistic.LOSSES
    on_simplex: ClassVar[bool] = False
    log_variances: Tensor
    """s."""

    def __init__(self, rate: float = 0.001) -> None:
        super().__init__()
        if not 0 < rate < math.inf:
            raise ValueError(f"rate must be above 0 and finite; got {rate}.")
        self.rate = rate

    def weights(self) -> tuple[float, ...]:
        """λ, which do not sum to 1."""
        return tuple((0.5 * torch.exp(-self.log_variances)).tolist())

    def _start(self, domains: int) -> None:
        self.register_buffer("log_variances", torch.zeros(domains, dtype=torch.float64))
        self.adam = Adam(domains, rate=self.rate)

    def _update(self, measurement: Measurement) -> Update:
        losses = measurement.values.to(self.log_variances.device)
        gradient = 0.5 * (1 - torch.exp(-self.log_variances) * losses)
        gradient[~measurement.present.to(gradient.device)] = 0
        self.adam.step(self.log_variances, gradient)
        return Update(Outcome.UPDATED)

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        return f"rate={self.rate}"
