"""Anybody's function from losses to one loss as weights."""

import math
from collections.abc import Callable
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from steelyard.measurement import Measurement, Outcome, Statistic, Verdict
from steelyard.weighting.weighting import Weighting


@final
class FromScalarizer(Weighting):
    """Weights λ_d = ∂s/∂L_d of a function s of the losses being weighed.

    The scalarizers of torchjd are such functions (`UW`, `FAMO`, `GeometricMean`, …). The gradient of Σ_d λ_d L_d is
    that of s. Parameters that s itself depends on are stepped by −`rate` times their gradient; no optimizer has to be
    given anything. If the scalarizer has a method `update(losses)`, as torchjd's FAMO does, it is called with the next
    batch's losses. Methods that want to be told of an epoch's end are yours to call. The weights are on the simplex or
    not, as s makes them. State is in a checkpoint as far as the scalarizer's own `state_dict()` carries it. A domain
    absent from a batch has the loss it had last; until all have been seen, weights are equal. Needs no probe.

    Args:
        scalarizer: of a vector of K losses (float32), to a scalar; a module or any callable.
        rate: the learning rate of its own parameters.

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
    last: Tensor

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

    def _update(self, measurement: Measurement) -> Verdict:
        known = bool(self.last.isfinite().all())
        losses = torch.where(measurement.present.to(self.last.device), measurement.values.to(self.last), self.last)
        self.last.copy_(losses)
        if not losses.isfinite().all():
            return Verdict(Outcome.TOO_FEW)
        values = losses.float()
        if known and hasattr(self.scalarizer, "update"):
            self.scalarizer.update(values)
        module = self.scalarizer if isinstance(self.scalarizer, nn.Module) else nn.Module()
        own = [p for p in module.parameters() if p.requires_grad]
        with torch.enable_grad():
            values.requires_grad_()
            slopes, *steps = torch.autograd.grad(self.scalarizer(values), [values, *own], allow_unused=True)
        if not slopes.isfinite().all():
            return Verdict(Outcome.NOT_FINITE)
        with torch.no_grad():
            for parameter, step in zip(own, steps, strict=True):
                if step is not None:
                    parameter.sub_(self.rate * step)
        self.current.copy_(slopes)
        return Verdict(Outcome.UPDATED)

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        module = isinstance(self.scalarizer, nn.Module)
        name = "" if module else f"{getattr(self.scalarizer, '__name__', 'function')}, "
        return f"{name}rate={self.rate}"
