"""A batch of several domains that knows how it was sampled."""

from collections.abc import Mapping
from typing import Any, Self

import torch

from steelyard.batches import Tree


class DomainBatch(dict[str, Tree]):
    """Domain name to samples, with a factor for each domain's weight.

    The outer loss of a balancer is Σ_d λ_d f_d L_d, with the factors f_d of the batch. Entries may be replaced in
    place. A plain `dict` made of a batch has no factors, and every f_d is 1; so use `to` to move a batch.

    Args:
        samples: domain name to `(inputs, targets)`, or to whatever the collate function makes.
        factors: f_d, not negative; a domain without one has 1.

    Attributes:
        factors: f_d for each domain that has one.

    >>> batch = DomainBatch({"a": (torch.ones(3), torch.ones(3))}, {"a": 1.5})
    >>> batch.to("cpu").factors
    {'a': 1.5}
    """

    def __init__(self, samples: Mapping[str, Tree], factors: Mapping[str, float] | None = None) -> None:
        super().__init__(samples)
        self.factors: dict[str, float] = dict(factors or {})

    def to(self, device: torch.device | str | int, *, non_blocking: bool = False) -> Self:
        """Return the batch on another device, with the same factors; whatever has no method `to` stays as it is."""
        samples = {name: _moved(tree, device, non_blocking) for name, tree in self.items()}
        return type(self)(samples, self.factors)


def _moved(tree: Any, device: torch.device | str | int, non_blocking: bool) -> Any:
    """Return the same nesting of lists, tuples and mappings on another device."""
    if isinstance(tree, torch.Tensor):
        return tree.to(device, non_blocking=non_blocking)
    if hasattr(tree, "to"):  # a tokenizer's encoding or a graph, which may not know `non_blocking`
        return tree.to(device)
    if isinstance(tree, Mapping):
        return {key: _moved(part, device, non_blocking) for key, part in tree.items()}
    if isinstance(tree, tuple | list):
        parts = [_moved(part, device, non_blocking) for part in tree]
        if hasattr(tree, "_fields"):  # a named tuple takes its fields one by one
            return type(tree)(*parts)
        return type(tree)(parts)
    return tree
