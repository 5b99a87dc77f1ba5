"""Samples kept from batch to batch until there are enough to divide."""

from collections.abc import Mapping
from typing import Any, final

from torch import nn

from steelyard.batches import Tree, can_join, count_samples, join_samples, take_samples

_ENOUGH = 2


@final
class Gathering(nn.Module):
    """Keeps samples of consecutive batches until every domain seen has two, one for each half.

    The newest two of each domain are kept at most. They are part of the state, so that a run that was stopped between
    two batches continues identically.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, Tree] = {}

    def add(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        """What has been gathered once it is enough, and then start anew; until then an empty mapping."""
        gathered = dict(self.kept)
        for name, domain_batch in batch.items():
            older = [self.kept[name]] if name in self.kept and can_join([self.kept[name], domain_batch]) else []
            gathered[name] = join_samples([*older, domain_batch])
        sizes = {name: count_samples(samples) for name, samples in gathered.items()}
        if len(sizes) >= 2 and min(sizes.values()) >= _ENOUGH:
            self.kept = {}
            return gathered
        self.kept = {
            name: take_samples(samples, slice(max(sizes[name] - _ENOUGH, 0), sizes[name]))
            for name, samples in gathered.items()
        }
        return {}

    def get_extra_state(self) -> dict[str, Any]:
        """The samples kept, for a checkpoint."""
        return self.kept

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """The samples kept, from a checkpoint."""
        self.kept = state
