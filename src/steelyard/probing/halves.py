"""Meta-train and meta-test halves of each domain's batch."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch

from steelyard.batches import Tree, count_samples, join_samples, take_samples

Split = Literal["first", "random"]


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


class Half(NamedTuple):
    """One half of one domain's samples, and its share in the domain's loss."""

    domain: str
    samples: Tree
    share: float


def halve(batch: Mapping[str, Tree], *, split: Split = "first", seed: int = 0) -> dict[str, Halves]:
    """Divide the batch of every domain that has at least two samples.

    m = ⌊min_d n_d / 2⌋ samples of each are meta-train, the rest meta-test.

    Args:
        batch: each domain's samples.
        split: which samples are meta-train: the `first` m, as in the authors' code, or m at `random`, as in the paper.
        seed: of a random split.
    """
    sizes: dict[str, int] = {}
    for name, samples in batch.items():
        size = count_samples(samples)
        if size >= 2:
            sizes[name] = size
    if not sizes:
        return {}
    m = min(sizes.values()) // 2
    generator = torch.Generator().manual_seed(seed)
    halves: dict[str, Halves] = {}
    for name, size in sizes.items():
        meta_train: slice | list[int] = slice(0, m)
        meta_test: slice | list[int] = slice(m, size)
        if split == "random":
            order = torch.randperm(size, generator=generator).tolist()
            meta_train, meta_test = order[:m], order[m:]
        samples = batch[name]
        halves[name] = Halves(take_samples(samples, meta_train), take_samples(samples, meta_test), (m, size - m))
    return halves


def meta_tests(halves: Mapping[str, Halves]) -> dict[str, Tree]:
    """The half of every domain that steps are judged by."""
    return {name: half.meta_test for name, half in halves.items()}


def in_order(halves: Mapping[str, Halves]) -> list[Half]:
    """All meta-train halves, then all meta-test halves."""
    trains = [Half(name, half.meta_train, half.share) for name, half in halves.items()]
    tests = [Half(name, half.meta_test, 1 - half.share) for name, half in halves.items()]
    return trains + tests
