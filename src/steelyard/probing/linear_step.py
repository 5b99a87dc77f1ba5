"""Steps that are linear in the gradient."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from steelyard.probing.hypothetical_step import Rule
from steelyard.probing.shared import Gradients


def inner(one: Tensor, other: Tensor) -> Tensor:
    """The inner product of two tensors of one shape, flattened in the order of their memory: no copy if it is dense."""
    one, other = (each.to_dense() if each.is_sparse else each for each in (one, other))
    if one.is_complex():
        one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
    if one.dim() == 1 and one.dtype == other.dtype:  # most are, and there are many
        return torch.dot(one, other)
    if one.is_contiguous() and other.is_contiguous() and one.dtype == other.dtype:
        return torch.dot(one.view(-1), other.view(-1))
    order = sorted(range(one.dim()), key=one.stride, reverse=True)
    return torch.dot(one.permute(order).reshape(-1), other.permute(order).reshape(-1).to(one.dtype))


class LinearStep(NamedTuple):
    """Δ = factor · g + decay · θ + inertia · buffer, one parameter's step."""

    factor: float
    decay: float = 0.0
    inertia: float = 0.0
    buffer: Tensor | None = None

    def drift(self, parameter: Tensor, direction: Tensor) -> Tensor | None:
        """⟨Δ, direction⟩ but for the gradient's part."""
        decay = self.decay * inner(parameter, direction) if self.decay else None
        if not self.inertia or self.buffer is None:
            return decay
        inertia = self.inertia * inner(self.buffer, direction)
        return inertia if decay is None else decay + inertia


def linear_steps(optimizer: Optimizer, rule: Rule) -> dict[Tensor, LinearStep] | None:
    """Each parameter's step, where the rule is plain gradient descent or the optimizer is torch's own SGD."""
    if rule == "optimizer" and type(optimizer) is not torch.optim.SGD:
        return None
    take = _own if rule == "optimizer" else _plain
    return {p: take(group, optimizer.state.get(p, {})) for group in optimizer.param_groups for p in group["params"]}


def _plain(group: dict[str, Any], _: dict[str, Any]) -> LinearStep:
    return LinearStep(-float(group["lr"]))


def _own(group: dict[str, Any], state: dict[str, Any]) -> LinearStep:
    """SGD steps by −η d without momentum, d = ±g + w θ; with it by −η b, b = μ b + (1 − τ) d, which starts as d.

    Nesterov's steps by −η (d + μ b).
    """
    rate, momentum = float(group["lr"]), group["momentum"]
    buffer = state.get("momentum_buffer") if momentum else None
    fresh = 1.0 if buffer is None else 1 - group["dampening"]
    if momentum and group["nesterov"]:
        along, inertia = 1 + momentum * fresh, momentum**2
    else:
        along, inertia = (fresh, momentum) if momentum else (1.0, 0.0)
    sign = -1.0 if group["maximize"] else 1.0
    return LinearStep(-rate * along * sign, -rate * along * group["weight_decay"], -rate * inertia, buffer)


def linear_moves(
    gradients: Sequence[Gradients], total: Gradients, steps: Sequence[LinearStep | None], *, live: Sequence[Tensor]
) -> list[Tensor]:
    """⟨Δ_d, G⟩ for each domain; a parameter that a domain has no gradient for is not stepped at all."""
    terms: list[list[Tensor]] = [[] for _ in gradients]
    factors: list[list[float]] = [[] for _ in gradients]
    for i, (parameter, g, step) in enumerate(zip(live, total, steps, strict=True)):
        if g is None or step is None:
            continue
        drift = step.drift(parameter, g)
        for d, each in enumerate(gradients):
            mine = each[i]
            if mine is not None:
                terms[d] += [inner(mine, g)] if drift is None else [inner(mine, g), drift]
                factors[d] += [step.factor] if drift is None else [step.factor, 1.0]
    return [_weighed(*each) if each[0] else torch.zeros(()) for each in zip(terms, factors, strict=True)]


def _weighed(terms: list[Tensor], factors: list[float]) -> Tensor:
    found = torch.stack(terms).double()
    return torch.dot(found, torch.tensor(factors, dtype=found.dtype, device=found.device))
