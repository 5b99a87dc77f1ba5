"""Weights that make all losses count by their relative change."""

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from steelyard.measurement import Measurement, Outcome, Statistic, Update
from steelyard.weighting.weighting import Weighting


@final
class LogLoss(Weighting):
    """The weights of minimising Σ_d log(L_d + shift): λ_d ∝ 1 / (L_d + shift).

    A loss that falls by a tenth counts the same for every domain, whatever the scale of its losses. This is IMTL-L with
    its learned scales at their optimum: min over s of e^s L − s is 1 + log L, at e^s = 1 / L. The weights here sum to
    1, so the length of the step differs from that of Σ_d log(L_d + shift); the direction is the same. With learned
    scales, IMTL-L is `sy.FromScalarizer(torchjd.scalarization.IMTLL(K))` for K domains.

    Needs no probe. A domain absent from a batch keeps its last loss. A domain that was never present has weight 0.

    Args:
        shift: added to every loss, for losses that can be 0 or negative. A loss that is not above −shift raises a
            `ValueError`. If several ranks hold different domains, losses are fitted over the ranks; a fitted loss can
            be negative even if no loss is.

    Reference: Liu et al., Towards Impartial Multi-task Learning, ICLR 2021.

    >>> from steelyard import Measurement
    >>> weighting = LogLoss()
    >>> weighting.start(domains=2)
    >>> _ = weighting.observe(Measurement.of(torch.tensor([3.0, 1.0])))
    >>> [round(weight, 3) for weight in weighting.weights()]
    [0.25, 0.75]
    """

    statistic: ClassVar[Statistic] = Statistic.LOSSES
    last: Tensor
    """Each domain's last loss; NaN for a domain that was never present."""

    def __init__(self, *, shift: float = 0.0) -> None:
        super().__init__()
        if not math.isfinite(shift):
            raise ValueError(f"shift must be finite; got {shift}.")
        self.shift = shift

    def weights(self) -> tuple[float, ...]:
        """λ; equal before the first losses."""
        was_present = self.last.isfinite()
        if not was_present.any():
            return (1 / self.domains,) * self.domains
        # 1 / (L + shift) by logarithms, because the reciprocal of a very small number overflows.
        log_ratios = -(self.last + self.shift).log()
        return tuple(log_ratios.where(was_present, -math.inf).softmax(0).tolist())

    def _start(self, domains: int) -> None:
        self.register_buffer("last", torch.full((domains,), math.nan, dtype=torch.float64))

    def _update(self, measurement: Measurement) -> Update:
        lowest = measurement.values[measurement.present].min().item()
        if lowest + self.shift <= 0:
            raise ValueError(
                f"LogLoss takes the logarithm of each loss plus shift, which must be above 0; got a loss of {lowest} "
                f"and shift={self.shift}. Pass a larger shift=, here above {0.0 - lowest}."
            )
        present = measurement.present.to(self.last.device)
        self.last.copy_(torch.where(present, measurement.values.to(self.last.device), self.last))
        return Update(Outcome.UPDATED)

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        return f"shift={self.shift}"
