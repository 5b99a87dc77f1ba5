"""Mini-batches of slices of several domains."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from steelyard.errors import UserError
from steelyard.imaging.runs.config import Mixing

Batch = dict[str, tuple[Tensor, Tensor]]
"""Images and masks by domain."""


@dataclass(frozen=True)
class DomainSlices:
    """The slices of one domain.

    Args:
        images: Samples × 1 × rows × columns.
        masks: Of the same shape, zeros and ones.
        owners: The subject of each slice.
    """

    images: Tensor
    masks: Tensor
    owners: tuple[str, ...]

    def of(self, subjects: tuple[str, ...]) -> "DomainSlices":
        """Return the slices of some subjects."""
        indices = [index for index, owner in enumerate(self.owners) if owner in subjects]
        owners = tuple(self.owners[index] for index in indices)
        return DomainSlices(self.images[indices], self.masks[indices], owners)

    def by_subject(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return images and masks of each subject."""
        pairs = {}
        for owner in dict.fromkeys(self.owners):
            slices = self.of((owner,))
            pairs[owner] = (slices.images, slices.masks)
        return pairs

    def __len__(self) -> int:
        return len(self.owners)


SlicesByDomain = Mapping[str, DomainSlices]


@dataclass(frozen=True)
class BatchIndices:
    """Which slices make one mini-batch.

    Args:
        indices: By domain, the indices of its slices; a domain may have none.
    """

    indices: dict[str, list[int]]

    def gather(self, slices: SlicesByDomain) -> Batch:
        """Return the images and masks; a domain without samples is left out."""
        batch = {}
        for domain, indices in self.indices.items():
            if indices:
                batch[domain] = (slices[domain].images[indices], slices[domain].masks[indices])
        return batch

    def describe(self, slices: SlicesByDomain) -> str:
        """Return the subjects of the slices, for a message."""
        descriptions = []
        for domain, indices in self.indices.items():
            if indices:
                owners = {slices[domain].owners[index] for index in indices}
                descriptions.append(f"{domain}: {', '.join(sorted(owners))}")
        return "; ".join(descriptions)


def draw_epoch(
    slices: SlicesByDomain, *, batch_size: int, mixing: Mixing, generator: torch.Generator
) -> Iterator[BatchIndices]:
    """Yield the mini-batches of one epoch; an incomplete last one is dropped.

    Slices of a smaller domain are repeated at random until all domains are of one size. `random` draws batches from
    all slices together, so that their composition is left to chance. `balanced` takes equally many of each domain.

    Raises:
        UserError: There are too few slices for a single batch.
    """
    largest = max(len(domain_slices) for domain_slices in slices.values())
    orders = {domain: _fill(len(domain_slices), largest, generator) for domain, domain_slices in slices.items()}
    if mixing == "balanced":
        batches = list(_draw_balanced(orders, batch_size))
    else:
        batches = list(_draw_random(orders, batch_size, generator))
    if not batches:
        raise UserError(f"batches of {batch_size} need more slices; the training subjects have {largest} a domain.")
    yield from batches


def _fill(size: int, needed: int, generator: torch.Generator) -> list[int]:
    """Return every index below `size` once, and random ones again until there are enough, in random order."""
    repeated = torch.randint(size, (needed - size,), generator=generator)
    indices = torch.cat([torch.arange(size), repeated])
    order: list[int] = indices[torch.randperm(needed, generator=generator)].tolist()
    return order


def _draw_random(orders: dict[str, list[int]], batch_size: int, generator: torch.Generator) -> Iterator[BatchIndices]:
    """Shuffle the slices of all domains together, and cut them into batches."""
    samples = []
    for domain, order in orders.items():
        for index in order:
            samples.append((domain, index))
    shuffled = torch.randperm(len(samples), generator=generator).tolist()
    for start in range(0, len(samples) - batch_size + 1, batch_size):
        indices: dict[str, list[int]] = {domain: [] for domain in orders}
        for position in shuffled[start : start + batch_size]:
            domain, index = samples[position]
            indices[domain].append(index)
        yield BatchIndices(indices)


def _draw_balanced(orders: dict[str, list[int]], batch_size: int) -> Iterator[BatchIndices]:
    """Take equally many slices of each domain for every batch."""
    if batch_size % len(orders):
        raise UserError(f"balanced batches need a size that {len(orders)} domains divide; got {batch_size}.")
    per_domain = batch_size // len(orders)
    size = len(next(iter(orders.values())))  # all domains have been filled to the same size
    for start in range(0, size - per_domain + 1, per_domain):
        yield BatchIndices({domain: order[start : start + per_domain] for domain, order in orders.items()})
