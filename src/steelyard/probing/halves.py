"""Meta-train and meta-test halves of each domain's batch."""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from steelyard.batches import Tree, count_samples, join_samples, take_samples


class Halves(NamedTuple):
    """One domain's samples, divided.

    Attributes:
        meta_train: the half that a hypothetical step is taken from.
        meta_test: the half that the step is judged by.
        sizes: the numbers of samples of both.
    """

    meta_train: Tree
    meta_test: Tree
    sizes: tuple[int, int]

    @property
    def share(self) -> float:
        """The meta-train half's share in all samples."""
        return self.sizes[0] / sum(self.sizes)

    @property
    def whole(self) -> Tree:
        """All samples, meta-train first."""
        return join_samples([self.meta_train, self.meta_test])


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
    generator = torch.Generator().manual_seed(seed or 0)
    halves: dict[str, Halves] = {}
    for name, size in sizes.items():
        meta_train: slice | list[int] = slice(0, m)
        meta_test: slice | list[int] = slice(m, size)
        if seed is not None:
            order = torch.randperm(size, generator=generator).tolist()
            meta_train, meta_test = order[:m], order[m:]
        samples = batch[name]
        halves[name] = Halves(take_samples(samples, meta_train), take_samples(samples, meta_test), (m, size - m))
    return halves


def meta_tests(halves: Mapping[str, Halves]) -> dict[str, Tree]:
    """The half of every domain that steps are judged by."""
    return {name: half.meta_test for name, half in halves.items()}
