"""The paper's heuristic baseline, Simple."""

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from steelyard.measurement import Measurement, Outcome, Statistic, Update
from steelyard.weighting.weighting import Weighting


@final
class RelativeShift(Weighting):
    """Shift the first domain's weight by the relative difference of the two hypothetical losses.

    λ ← clip(λ + γ (H_0 − H_1) / |H_0|, 0, 1), from λ = 0.5; the weights are (λ, 1 − λ). H_0 and H_1 are the
    hypothetical losses after a step that favours the first and the second domain. Only for two domains, and not
    symmetric in them: differences are relative to the first.

    Args:
        gamma: γ, the size of a shift: the paper's Simple-C has +0.1, its Simple-G −0.1.

    Reference: Sicilia et al., Multi-Domain Learning by Meta-Learning, ISBI 2021 (the baseline "Simple").

    >>> from steelyard import Measurement
    >>> weighting = RelativeShift(gamma=0.1)
    >>> weighting.start(domains=2)
    >>> _ = weighting.observe(Measurement.of(torch.tensor([1.0, 0.5])))
    >>> [round(weight, 3) for weight in weighting.weights()]
    [0.55, 0.45]
    """

    statistic: ClassVar[Statistic] = Statistic.HYPOTHETICAL_LOSSES
    first: Tensor
    """λ, the first domain's weight."""

    def __init__(self, gamma: float = 0.1) -> None:
        super().__init__()
        if not math.isfinite(gamma):
            raise ValueError(f"gamma must be finite; got {gamma}.")
        self.gamma = gamma

    def weights(self) -> tuple[float, ...]:
        """(λ, 1 − λ)."""
        first = self.first.item()
        return (first, 1 - first)

    def _start(self, domains: int) -> None:
        if domains != 2:
            raise ValueError(f"RelativeShift weighs two domains; got {domains}. DirichletVote weighs any number.")
        self.register_buffer("first", torch.tensor(0.5))

    def _update(self, measurement: Measurement) -> Update:
        first_loss, second_loss = measurement.values.tolist()
        if first_loss == 0:
            return Update(Outcome.NOT_FINITE)
        shift = self.gamma * (first_loss - second_loss) / abs(first_loss)
        if not math.isfinite(shift):
            return Update(Outcome.NOT_FINITE)
        self.first.fill_(min(max(self.first.item() + shift, 0.0), 1.0))
        return Update(Outcome.UPDATED)

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        return f"gamma={self.gamma}"
