"""Meta-train and meta-test halves of each domain's batch."""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from steelyard.batches import Tree, count_samples, take_samples


class Halves(NamedTuple):
    """One domain's samples, divided: what a hypothetical step learns from, what it is judged by, and their sizes."""

    meta_train: Tree
    meta_test: Tree
    sizes: tuple[int, int]

    @property
    def share(self) -> float:
        """The meta-train half's in all samples."""
        return self.sizes[0] / sum(self.sizes)


def halve(batch: Mapping[str, Tree], *, seed: int | None = None) -> dict[str, Halves]:
    """Divide the batch of every domain that has at least two samples.

    m = ⌊min_d n_d / 2⌋ samples of each are meta-train, the rest meta-test: the first m, as the authors'
    code has it, or, if there is a seed, m drawn at random, as the paper says.
    """
    sizes = {name: count_samples(domain_batch) for name, domain_batch in batch.items()}
    sizes = {name: size for name, size in sizes.items() if size >= 2}
    if not sizes:
        return {}
    m = min(sizes.values()) // 2
    if seed is None:
        return {
            name: Halves(
                take_samples(batch[name], slice(0, m)), take_samples(batch[name], slice(m, size)), (m, size - m)
            )
            for name, size in sizes.items()
        }
    generator = torch.Generator().manual_seed(seed)
    orders = {name: torch.randperm(size, generator=generator).tolist() for name, size in sizes.items()}
    return {
        name: Halves(take_samples(batch[name], order[:m]), take_samples(batch[name], order[m:]), (m, len(order) - m))
        for name, order in orders.items()
    }


def meta_trains(halves: Mapping[str, Halves]) -> dict[str, Tree]:
    """What every domain's step learns from."""
    return {name: half.meta_train for name, half in halves.items()}


def meta_tests(halves: Mapping[str, Halves]) -> dict[str, Tree]:
    """What every domain's step is judged by."""
    return {name: half.meta_test for name, half in halves.items()}
