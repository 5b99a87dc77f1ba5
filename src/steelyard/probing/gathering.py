"""Samples kept from batch to batch until there are enough to divide."""

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import nn

from steelyard.batches import Samples, Tree, can_join, clone_samples, count_samples, join_samples, take_samples

torch.serialization.add_safe_globals([Samples])  # so that a checkpoint that holds kept samples loads as usual


@final
class Gathering(nn.Module):
    """Keeps copies of the newest samples of each domain until there are enough of at least two.

    They are part of the state, so that a run that was stopped between two batches continues identically.

    Args:
        enough: samples of a domain, at least two: one for each half.
    """

    def __init__(self, enough: int) -> None:
        super().__init__()
        if enough < 2:
            raise ValueError(f"gather must be True or at least 2 samples of each domain; got {enough}.")
        self.enough = enough
        self.kept: dict[str, Tree] = {}

    def add(self, batch: Mapping[str, Tree]) -> None:
        """Take in a batch; beyond enough, older samples give way."""
        for name, domain_batch in batch.items():
            joined = domain_batch
            if name in self.kept and can_join([self.kept[name], domain_batch]):
                joined = join_samples([self.kept[name], domain_batch])
            size, most = count_samples(joined), max(self.enough, count_samples(domain_batch))
            self.kept[name] = clone_samples(take_samples(joined, slice(max(size - most, 0), size)))

    def take(self) -> dict[str, Tree]:
        """The domains that have enough, if they are at least two, to start anew for them; else none."""
        ready: dict[str, Tree] = {}
        waiting: dict[str, Tree] = {}
        for name, samples in self.kept.items():
            domains = ready if count_samples(samples) >= self.enough else waiting
            domains[name] = samples
        if len(ready) < 2:
            return {}
        self.kept = waiting
        return ready

    def get_extra_state(self) -> dict[str, Any]:
        """The samples kept, for a checkpoint."""
        return self.kept

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """The samples kept, from a checkpoint."""
        self.kept = dict(state)
