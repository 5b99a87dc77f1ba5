"""Mini-batches of slices of several domains."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from steelyard.errors import UserError
from steelyard.imaging.runs.config import Mixing

Batch = dict[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class DomainSlices:
    """The slices of one domain.

    Args:
        images: Samples × 1 × rows × columns.
        masks: Of the same shape, zeros and ones.
        owners: Whose each slice is.
    """

    images: Tensor
    masks: Tensor
    owners: tuple[str, ...]

    def of(self, subjects: tuple[str, ...]) -> "DomainSlices":
        """Return the slices of some subjects."""
        picked = [index for index, owner in enumerate(self.owners) if owner in subjects]
        return DomainSlices(self.images[picked], self.masks[picked], tuple(self.owners[index] for index in picked))

    def by_subject(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return images and masks of each subject."""
        return {owner: (one.images, one.masks) for owner in dict.fromkeys(self.owners) for one in [self.of((owner,))]}

    def __len__(self) -> int:
        return len(self.owners)


Pool = Mapping[str, DomainSlices]


@dataclass(frozen=True)
class Draw:
    """Which slices make one mini-batch: by domain, the indices of its slices."""

    indices: dict[str, list[int]]

    def gather(self, pool: Pool) -> Batch:
        """Return the images and masks; a domain without samples is left out."""
        return {
            name: (pool[name].images[picked], pool[name].masks[picked])
            for name, picked in self.indices.items()
            if picked
        }

    def describe(self, pool: Pool) -> str:
        """Name the subjects of the slices, for a message."""
        return "; ".join(
            f"{name}: {', '.join(sorted({pool[name].owners[index] for index in picked}))}"
            for name, picked in self.indices.items()
            if picked
        )


def draw_epoch(pool: Pool, *, batch_size: int, mixing: Mixing, generator: torch.Generator) -> Iterator[Draw]:
    """Yield the mini-batches of one epoch; an incomplete last one is dropped.

    A domain with fewer slices has them repeated at random until all domains are of one size. `random` draws from the
    pool of all slices, so that a batch holds what chance puts there; `balanced` takes equally many of each domain.

    Raises:
        UserError: There are too few slices for a single batch.
    """
    largest = max(len(slices) for slices in pool.values())
    orders = {name: _filled(len(slices), largest, generator) for name, slices in pool.items()}
    batches = list(_DEALS[mixing](orders, batch_size, generator))
    if not batches:
        raise UserError(f"batches of {batch_size} need more slices; the training subjects have {largest} a domain.")
    yield from batches


def _filled(size: int, wanted: int, generator: torch.Generator) -> list[int]:
    """Return every index once, and some again at random until there are enough, in random order."""
    again = torch.randint(size, (wanted - size,), generator=generator)
    indices = torch.cat([torch.arange(size), again])
    order: list[int] = indices[torch.randperm(wanted, generator=generator)].tolist()
    return order


def _mixed(orders: dict[str, list[int]], batch_size: int, generator: torch.Generator) -> Iterator[Draw]:
    everything = [(name, index) for name, order in orders.items() for index in order]
    shuffled = torch.randperm(len(everything), generator=generator).tolist()
    for start in range(0, len(everything) - batch_size + 1, batch_size):
        batch = [everything[place] for place in shuffled[start : start + batch_size]]
        yield Draw({name: [index for owner, index in batch if owner == name] for name in orders})


def _balanced(orders: dict[str, list[int]], batch_size: int, generator: torch.Generator) -> Iterator[Draw]:
    del generator
    if batch_size % len(orders):
        raise UserError(f"balanced batches need a size that {len(orders)} domains divide; got {batch_size}.")
    each = batch_size // len(orders)
    size = len(next(iter(orders.values())))
    for start in range(0, size - each + 1, each):
        yield Draw({name: order[start : start + each] for name, order in orders.items()})


_DEALS: dict[Mixing, Callable[[dict[str, list[int]], int, torch.Generator], Iterator[Draw]]] = {
    "random": _mixed,
    "balanced": _balanced,
}
