"""Weights by any function that turns the domains' losses into one loss."""

import math
from collections.abc import Callable
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from steelyard.measurement import Measurement, Outcome, Statistic, Update
from steelyard.weighting.weighting import Weighting


@final
class FromScalarizer(Weighting):
    """Weights λ_d = ∂s/∂L_d of a function s of the losses being weighed.

    With these weights the gradient of Σ_d λ_d L_d is the gradient of s. The scalarizers of torchjd are such functions
    (`UW`, `FAMO`, `GeometricMean`, …). The weights are on the simplex or not, as s makes them. Needs no probe.

    If the scalarizer is a module, this class trains its parameters by steps of −`rate` times their gradient, and the
    checkpoint contains its `state_dict()`. If it has a method `update(losses)`, as torchjd's FAMO does, that is called
    with the next batch's losses. A method to be called at the end of an epoch is left to you. A domain absent from a
    batch keeps its last loss. Until every domain has been present, weights are equal.

    Args:
        scalarizer: takes a vector of K losses (float32) and returns a scalar; a module or any callable.
        rate: the learning rate of the scalarizer's own parameters.

    >>> from steelyard import Measurement
    >>> weighting = FromScalarizer(lambda losses: losses.log().sum())
    >>> weighting.start(domains=2)
    >>> _ = weighting.observe(Measurement.of(torch.tensor([4.0, 0.5])))
    >>> weighting.weights()
    (0.25, 2.0)
    """

    statistic: ClassVar[Statistic] = Statistic.LOSSES
    on_simplex: ClassVar[bool] = False
    current: Tensor
    """λ."""
    last: Tensor
    """Each domain's last loss; NaN for a domain that was never present."""

    def __init__(self, scalarizer: Callable[[Tensor], Tensor], *, rate: float = 0.001) -> None:
        super().__init__()
        self.scalarizer = scalarizer
        self.rate = rate

    def weights(self) -> tuple[float, ...]:
        """The scalarizer's derivatives at the last losses; equal before."""
        return tuple(self.current.tolist())

    def _start(self, domains: int) -> None:
        self.register_buffer("current", torch.full((domains,), 1 / domains, dtype=torch.float64))
        self.register_buffer("last", torch.full((domains,), math.nan, dtype=torch.float64))

    def _update(self, measurement: Measurement) -> Update:
        had_all_losses = bool(self.last.isfinite().all())
        losses = torch.where(measurement.present.to(self.last.device), measurement.values.to(self.last), self.last)
        self.last.copy_(losses)
        if not losses.isfinite().all():
            return Update(Outcome.TOO_FEW)
        losses = losses.float()
        if had_all_losses and hasattr(self.scalarizer, "update"):
            self.scalarizer.update(losses)
        parameters = self._trainable_parameters()
        with torch.enable_grad():
            losses.requires_grad_()
            scalar = self.scalarizer(losses)
            weights, *gradients = torch.autograd.grad(scalar, [losses, *parameters], allow_unused=True)
        if not weights.isfinite().all():
            return Update(Outcome.NOT_FINITE)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:  # the scalar does not depend on this parameter
                    parameter.sub_(self.rate * gradient)
        self.current.copy_(weights)
        return Update(Outcome.UPDATED)

    def _trainable_parameters(self) -> list[nn.Parameter]:
        if not isinstance(self.scalarizer, nn.Module):
            return []
        return [parameter for parameter in self.scalarizer.parameters() if parameter.requires_grad]

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        if isinstance(self.scalarizer, nn.Module):  # which is printed as a child
            return f"rate={self.rate}"
        name = getattr(self.scalarizer, "__name__", "function")
        return f"{name}, rate={self.rate}"
