"""What a probe has computed of the outer losses on the way to its measurement."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from steelyard.batches import Tree

Gradients = Sequence[Tensor | None]


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Part of each domain's outer loss, known with its gradient, and what is left to run.

    Attributes:
        losses: the known part of each domain's loss, detached.
        combine: given each domain's weight, Σ_d λ_d ∇(known part of d), one gradient per parameter; called once.
        parameters: the live parameters that the gradients belong to.
        rest: domain name to the samples left to run and their share in the domain's loss.
    """

    losses: Mapping[str, Tensor]
    combine: Callable[[Mapping[str, float]], Gradients]
    parameters: Sequence[Tensor]
    rest: Mapping[str, tuple[float, Tree]] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """The loss on some of a domain's samples: their share in it, its value there, detached, and its gradients."""

    domain: str
    share: float
    loss: Tensor
    gradients: Gradients


def share_parts(
    parts: Sequence[Part], parameters: Sequence[Tensor], *, rest: Mapping[str, tuple[float, Tree]]
) -> Shared:
    """What parts of the domains' samples add to the outer losses, where losses are means over samples."""
    losses: dict[str, Tensor] = {}
    for part in parts:
        value = part.share * part.loss
        losses[part.domain] = losses[part.domain] + value if part.domain in losses else value

    def combine(weights: Mapping[str, float]) -> Gradients:
        return weighted_sum([(weights[part.domain] * part.share, part.gradients) for part in parts])

    return Shared(losses=losses, combine=combine, parameters=parameters, rest=rest)


def weighted_sum(terms: Sequence[tuple[float, Gradients]]) -> Gradients:
    """Σ_i c_i g_i for each parameter; `None` where no term has a gradient."""
    total: dict[int, Tensor] = {}
    with torch.no_grad():
        if len(terms) > 1 and terms[0][1] and all(g is not None for _, gradients in terms for g in gradients):
            return _weighted_sum([(factor, [g for g in gradients if g is not None]) for factor, gradients in terms])
        for factor, gradients in terms:
            given = {i: g for i, g in enumerate(gradients) if g is not None}
            old, new = [i for i in given if i in total], [i for i in given if i not in total]
            if old:
                torch._foreach_add_([total[i] for i in old], [given[i] for i in old], alpha=factor)
            if new:
                total.update(zip(new, torch._foreach_mul([given[i] for i in new], factor), strict=True))
    return [total.get(i) for i in range(len(terms[0][1]))]


def _weighted_sum(terms: Sequence[tuple[float, list[Tensor]]]) -> list[Tensor]:
    """The same where no gradient is missing."""
    (first, begun), (second, added), *rest = terms
    if first == 1:
        total = list(torch._foreach_add(begun, added, alpha=second))
    else:
        total = list(torch._foreach_mul(begun, first))
        torch._foreach_add_(total, added, alpha=second)
    for factor, gradients in rest:
        torch._foreach_add_(total, gradients, alpha=factor)
    return total
