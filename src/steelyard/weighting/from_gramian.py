"""Anybody's function of the gradients' Gramian as weights."""

from collections.abc import Callable
from typing import ClassVar, final

import torch
from torch import Tensor

from steelyard.measurement import Measurement, Outcome, Statistic, Verdict
from steelyard.weighting.weighting import Weighting


@final
class FromGramian(Weighting):
    """Weights from the inner products of the domains' gradients, by a function of the Gramian.

    The weightings of torchjd are such functions (`MGDAWeighting`, `UPGradWeighting`, `PCGradWeighting`, …); with the
    probe `Gramian` they work in a balancer. The weights are taken as the function gives them, on the simplex or not.
    Where a domain is absent, the function sees the Gramian of the others. State that the function keeps is in a
    checkpoint as far as its own `state_dict()` carries it.

    Args:
        function: of a K×K tensor (float32), to K weights; a module or any callable.

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

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def weights(self) -> tuple[float, ...]:
        """As the function gave them last; equal before."""
        return tuple(self.current.tolist())

    def _start(self, domains: int) -> None:
        self.register_buffer("current", torch.full((domains,), 1 / domains, dtype=torch.float64))

    def _update(self, measurement: Measurement) -> Verdict:
        chosen = torch.tensor(measurement.taking_part)
        gramian = measurement.values[chosen][:, chosen].float()
        with torch.no_grad():
            found = self.function(gramian).detach().to(self.current).flatten()
        if len(found) != len(chosen):
            raise ValueError(f"the function must give one weight per domain ({len(chosen)}); got {len(found)}.")
        if not found.isfinite().all():
            return Verdict(Outcome.NOT_FINITE)
        self.current[chosen] = found
        return Verdict(Outcome.UPDATED)

    def extra_repr(self) -> str:
        """The function, for `print(balancer)`."""
        return "" if isinstance(self.function, torch.nn.Module) else getattr(self.function, "__name__", "function")
