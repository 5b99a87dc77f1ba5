"""The outer loss: weighted losses, some of which may carry gradients computed before."""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.probing import Losses, Shared


def weighted_loss(losses: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """Σ_d λ_d L_d."""
    weighted: list[Tensor] = [weights[name] * loss for name, loss in losses.items()]
    return reduce(add, weighted)


def complete(
    domain_losses: Losses, shared: Shared, weights: Mapping[str, float], model: nn.Module
) -> tuple[dict[str, Tensor], Tensor]:
    """Each domain's loss and their weighted sum, from what a probe knows of them and a pass over the rest."""
    samples = {name: rest for name, (_, rest) in shared.rest.items()}
    live = domain_losses(model, samples) if samples else {}
    parts = {name: shared.rest[name][0] * loss for name, loss in live.items()}
    known = weighted_loss(shared.losses, weights)
    total = stored_loss(known, shared.combine(weights), shared.parameters)
    if parts:
        total = total + weighted_loss(parts, weights)
    everyone = [name for name in domain_losses.domains if name in shared.losses or name in parts]
    losses = {name: _sum(shared.losses.get(name), parts.get(name)) for name in everyone}
    return losses, total


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor:
    if first is None or second is None:
        assert first is not None or second is not None  # noqa: S101
        return first if first is not None else second  # type: ignore[return-value]
    return first + second.detach()


def stored_loss(value: Tensor, gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    """The value as a scalar whose `backward()` gives each parameter its stored gradient, times what comes from above.

    Scaling, accumulation, clipping, hooks on parameters and distributed data parallelism see ordinary gradients. They
    are handed out once.
    """
    given = [(g, p) for g, p in zip(gradients, parameters, strict=True) if g is not None]
    result: Tensor = _Stored.apply(value, [g for g, _ in given], *(p for _, p in given))  # type: ignore[no-untyped-call]
    return result


class _Stored(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        ctx.count = len(parameters)
        return value.detach().clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "gradients that the probe has stored cannot be differentiated again (create_graph=True): "
                "pass reuse=False to the probe."
            )
        if ctx.gradients is None:
            raise RuntimeError(
                "the gradients that the probe has stored are handed out once, and were (a second backward() through "
                "the same loss): pass reuse=False to the probe."
            )
        gradients, ctx.gradients = ctx.gradients, None
        if gradients:  # not in place: parameters that are only ever added to each other have one gradient
            gradients = torch._foreach_mul(gradients, upstream[0])
        return None, None, *gradients
