"""Weights by any function of the gradients' Gramian."""

from collections.abc import Callable
from typing import ClassVar, final

import torch
from torch import Tensor

from steelyard.measurement import Measurement, Outcome, Statistic, Update
from steelyard.weighting.weighting import Weighting


@final
class FromGramian(Weighting):
    """Weights by a function of the Gramian: the inner products ⟨g_i, g_j⟩ of the domains' gradients.

    The weightings of torchjd are such functions (`MGDAWeighting`, `UPGradWeighting`, `PCGradWeighting`, …); with the
    probe `Gramian` they work in a balancer. The weights are used as the function returns them, on the simplex or not.
    Where a domain is absent, the function gets the Gramian of the others. If the function is a module, its
    `state_dict()` is part of the checkpoint.

    Args:
        function: takes a K×K tensor (float32) and returns K weights; a module or any callable.

    >>> from steelyard import Measurement
    >>> weighting = FromGramian(lambda gramian: 1 / gramian.diagonal().sqrt())
    >>> weighting.start(domains=2)
    >>> _ = weighting.observe(Measurement.of(torch.tensor([[4.0, 0.0], [0.0, 1.0]])))
    >>> weighting.weights()
    (0.5, 1.0)
    """

    statistic: ClassVar[Statistic] = Statistic.GRAMIAN
    on_simplex: ClassVar[bool] = False
    current: Tensor
    """The function's last weights."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def weights(self) -> tuple[float, ...]:
        """The function's last weights; equal before the first."""
        return tuple(self.current.tolist())

    def _start(self, domains: int) -> None:
        self.register_buffer("current", torch.full((domains,), 1 / domains, dtype=torch.float64))

    def _update(self, measurement: Measurement) -> Update:
        present = torch.tensor(measurement.taking_part)
        gramian = measurement.values[present][:, present].float()
        with torch.no_grad():
            weights = self.function(gramian).detach().to(self.current).flatten()
        if len(weights) != len(present):
            raise ValueError(f"the function must give one weight per domain ({len(present)}); got {len(weights)}.")
        if not weights.isfinite().all():
            return Update(Outcome.NOT_FINITE)
        self.current[present] = weights
        return Update(Outcome.UPDATED)

    def extra_repr(self) -> str:
        """The function, for `print(balancer)`."""
        if isinstance(self.function, torch.nn.Module):  # which is printed as a child
            return ""
        return getattr(self.function, "__name__", "function")
