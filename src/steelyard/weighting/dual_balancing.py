"""Weights that give all domains' gradients the same norm."""

from typing import ClassVar, final

import torch
from torch import Tensor

from steelyard.measurement import Measurement, Outcome, Statistic, Update
from steelyard.weighting.weighting import Weighting


@final
class DualBalancing(Weighting):
    """Dual balancing (DB-MTL): λ_d ∝ 1 / n_d, where n_d is the running mean of the gradient's norm ‖g_d‖.

    The paper takes the logarithm of each loss, then scales each gradient to the largest norm among them. The logarithm
    cancels: the gradient of log L_d is g_d / L_d, and scaled to a given norm only the direction g_d / ‖g_d‖ remains.
    So the Gramian is enough, and losses may be negative.

    It differs from the paper in three ways:

    - The paper averages gradients over the steps, with a share of 1 − β for the newest. A Gramian has only their norms,
      so norms are averaged here, and directions are those of the current batch.
    - The weights sum to 1, so the weighted gradients have equal norms, but not the largest norm. At `forgetting=1` the
      step has the direction of the paper's without averaging; its length differs.
    - The norms are over all parameters that the optimizer steps; the paper's are over those that the tasks share.

    Use it with the probe `Gramian`. A domain absent from a batch keeps its running mean. So does a domain whose
    gradient is 0, because 0 cannot be scaled to any other norm. Until a domain's first norm its weight is 1/K, for K
    domains; the others divide the rest.

    Args:
        forgetting: the share of the newest norm in the running mean, the paper's 1 − β; at 1 only the newest counts.

    Reference: Lin et al., Dual-Balancing for Multi-Task Learning, 2023.

    >>> from steelyard import Measurement
    >>> weighting = DualBalancing()
    >>> weighting.start(domains=2)
    >>> _ = weighting.observe(Measurement.of(torch.tensor([[9.0, 0.0], [0.0, 1.0]])))
    >>> [round(weight, 3) for weight in weighting.weights()]
    [0.25, 0.75]
    """

    statistic: ClassVar[Statistic] = Statistic.GRAMIAN
    norms: Tensor
    """n; 0 for a domain that has no norm yet."""

    def __init__(self, *, forgetting: float = 0.1) -> None:
        super().__init__()
        if not 0 < forgetting <= 1:
            raise ValueError(f"forgetting must be above 0 and at most 1; got {forgetting}.")
        self.forgetting = forgetting

    def weights(self) -> tuple[float, ...]:
        """λ."""
        has_norm = self.norms > 0
        weights = torch.full_like(self.norms, 1 / self.domains)
        # 1 / n by logarithms, because the sum of reciprocals of very small numbers overflows.
        shares = (-self.norms[has_norm].log()).softmax(0)
        weights[has_norm] = shares * (len(shares) / self.domains)
        return tuple(weights.tolist())

    def _start(self, domains: int) -> None:
        self.register_buffer("norms", torch.zeros(domains, dtype=torch.float64))

    def _update(self, measurement: Measurement) -> Update:
        newest = measurement.values.diagonal().sqrt().to(self.norms.device)
        counts = measurement.present.to(self.norms.device) & (newest > 0)
        before = torch.where(self.norms > 0, self.norms, newest)  # the mean starts with the first norm, not with 0
        self.norms.copy_(torch.where(counts, before.lerp(newest, self.forgetting), self.norms))
        return Update(Outcome.UPDATED)

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        return f"forgetting={self.forgetting}"
