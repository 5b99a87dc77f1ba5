"""Which samples of a dataset come next: passes over all of them, each in an order of its own."""

from typing import NamedTuple, final

import torch
from torch import Tensor

from steelyard.sampling.seeds import seed_of


class Shard(NamedTuple):
    """One of the processes that train together."""

    rank: int
    world_size: int


@final
class ShuffledPasses:
    """The samples of one domain as one rank draws them.

    In each pass, every rank has an equal part of the dataset, which is another one in each pass. No sample is on two
    ranks, unless there are fewer samples than ranks. What is left over, less than one sample for each rank, is left out
    of the pass.

    Args:
        name: of the domain; its order does not depend on the other domains.
        length: the number of samples in the dataset.
        shard: which rank draws.
    """

    slots = 1  # one counter of samples, whichever worker reads them

    def __init__(self, name: str, length: int, shard: Shard) -> None:
        self.name = name
        self.length = length
        self.shard = shard
        self.per_pass = max(length // shard.world_size, 1)
        self._purpose: tuple[object, ...] | None = None  # of the order that is kept
        self._order = torch.empty(0)

    def take(self, start: int, count: int, *, seed: int) -> list[int]:
        """Return the indices of consecutive samples, the first of which is number `start` over all passes."""
        indices: list[int] = []
        while len(indices) < count:
            number, offset = divmod(start + len(indices), self.per_pass)
            order = self._order_of_pass(number, seed)
            indices += order[offset : offset + count - len(indices)].tolist()
        return indices

    def _order_of_pass(self, number: int, seed: int) -> Tensor:
        purpose = (seed, "order", self.name, number)
        if purpose != self._purpose:
            generator = torch.Generator().manual_seed(seed_of(*purpose))
            everyone = torch.randperm(self.length, generator=generator)
            # Modulo the length only matters where there are fewer samples than ranks.
            own = (self.shard.rank * self.per_pass + torch.arange(self.per_pass)) % self.length
            self._purpose, self._order = purpose, everyone[own]
        return self._order
