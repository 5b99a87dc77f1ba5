"""Hypothetical losses to first order, from gradients."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from steelyard.probing.gradient_probe import Leaves, Pass, check_moves, give_gradients
from steelyard.probing.hypothetical_step import RULES, Rule
from steelyard.probing.linear_step import inner, linear_moves, linear_steps
from steelyard.probing.shadow import Shadow
from steelyard.probing.shared import Gradients, weighted_sum


def expand(
    trained: Mapping[str, Pass],
    tested: Sequence[Pass],
    shadow: Shadow,
    leaves: Leaves,
    *,
    optimizer: Optimizer,
    rule: Rule,
) -> dict[str, Tensor]:
    """Σ_j L_j + ⟨Δ_d, G⟩ for each domain.

    Args:
        trained: Each domain's pass over its meta-train half.
        tested: Passes over the meta-test halves, whose gradients add up to G.
        shadow: Stand-ins on which steps may be taken; they are taken back.
        leaves: What the passes were differentiated for.
        optimizer: Whose state and rates the steps have.
        rule: How they are taken.
    """
    check_moves([each.gradients for each in trained.values()], leaves)
    level = torch.stack([loss.double() for each in tested for loss in each.losses.values()]).sum()
    total = tested[0].gradients if len(tested) == 1 else weighted_sum([(1.0, each.gradients) for each in tested])
    steps = linear_steps(optimizer, rule)
    with torch.no_grad():
        if steps is not None:
            linear = [steps.get(live) for live in leaves.live]
            moves = linear_moves([each.gradients for each in trained.values()], total, linear, live=leaves.live)
        else:
            moves = [_move(each.gradients, total, shadow, leaves, optimizer, rule) for each in trained.values()]
    return {name: level + move.to(level) for name, move in zip(trained, moves, strict=True)}


def _move(
    gradients: Gradients, total: Gradients, shadow: Shadow, leaves: Leaves, optimizer: Optimizer, rule: Rule
) -> Tensor:
    """⟨Δ, G⟩ for a step that is taken on the stand-ins and taken back."""
    give_gradients(leaves, gradients, optimizer)
    RULES[rule](optimizer, shadow.parameters)
    products = [
        inner(stepped - live, g)
        for live, stepped, g in zip(leaves.live, leaves.stand_ins, total, strict=True)
        if g is not None
    ]
    torch._foreach_copy_(leaves.stand_ins, leaves.live)
    return torch.stack(products).sum() if products else torch.zeros(())
