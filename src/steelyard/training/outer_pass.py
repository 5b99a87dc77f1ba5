"""The outer losses on several ranks, which wait for each other in every pass of a wrapped or sharded model."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from steelyard.batches import Tree
from steelyard.probing import Losses
from steelyard.probing.replica import is_sharded, preserved_random_states
from steelyard.probing.sharded.live_passes import unchanged_modules
from steelyard.probing.sharded.shards import Ranks
from steelyard.training.distributed import run_once


def outer_losses(model: nn.Module, losses: Losses, batch: Mapping[str, Tree]) -> dict[str, Tensor]:
    """Each domain's loss; all ranks run equally many passes, also where they hold different domains."""
    if is_sharded(model):
        return _sharded_losses(model, losses, batch)
    return run_once(model, lambda wrapped: losses(wrapped, batch))


def _sharded_losses(model: nn.Module, losses: Losses, batch: Mapping[str, Tree]) -> dict[str, Tensor]:
    """One pass over all samples where all ranks can do that; else one for each domain that any rank holds.

    A rank that lacks a domain runs its own first samples instead. That loss counts zero times.
    """
    present = [float(domain in batch) for domain in losses.domains]
    # The least of −x is −1 for a domain that any rank holds.
    least = Ranks(model).least(-torch.tensor([*present, -float(losses.takes_one_pass(batch))]))
    if least[-1] > 0:
        return losses(model, batch)  # type: ignore[no-any-return]
    first = next(iter(batch))
    domain_losses: dict[str, Tensor] = {}
    unweighted: list[Tensor] = []
    for domain, held_by_nobody in zip(losses.domains, (least[:-1] == 0).tolist(), strict=True):
        if domain in batch:
            domain_losses |= losses(model, {domain: batch[domain]})
        elif not held_by_nobody:
            with preserved_random_states(model.parameters()), unchanged_modules([model, losses]):
                unweighted.append(losses(model, {first: batch[first]})[first])
    for loss in unweighted:
        domain_losses[first] = domain_losses[first] + 0 * loss
    return domain_losses
