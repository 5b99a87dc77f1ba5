"""What a balancer is called with."""

from collections.abc import Mapping
from typing import NamedTuple

from torch import nn
from torch.optim import Optimizer

from steelyard.batches import Tree


class Call(NamedTuple):
    """The arguments of one call of a balancer, checked.

    Attributes:
        model: the live model.
        batch: the domains that have samples, in the balancer's order.
        optimizer: the one that will step the model.
        held_out: samples to judge by.
        factors: f_d for each domain, from a batch that was sampled by the weights; otherwise 1.
    """

    model: nn.Module
    batch: dict[str, Tree]
    optimizer: Optimizer | None
    held_out: Mapping[str, Tree] | None
    factors: dict[str, float]

    def outer_weights(self, weights: Mapping[str, float]) -> dict[str, float]:
        """λ_d f_d, what each domain's loss is multiplied by in the outer loss."""
        return {name: weight * self.factors[name] for name, weight in weights.items()}
