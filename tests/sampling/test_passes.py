"""Passes over a dataset: every sample once, in a new order, disjoint over ranks."""

from collections import Counter

import pytest

from steelyard.sampling.passes import Shard, ShuffledPasses


def test_every_pass_has_each_sample_once_in_another_order():
    passes = ShuffledPasses("a", 10, Shard(0, 1))
    taken = passes.take(0, 30, seed=0)
    orders = [taken[0:10], taken[10:20], taken[20:30]]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


def test_an_order_depends_on_seed_and_name_alone():
    first = ShuffledPasses("a", 50, Shard(0, 1))
    assert first.take(40, 20, seed=1) == ShuffledPasses("a", 50, Shard(0, 1)).take(0, 60, seed=1)[40:]
    assert first.take(0, 50, seed=1) != first.take(0, 50, seed=2)
    assert first.take(0, 50, seed=1) != ShuffledPasses("b", 50, Shard(0, 1)).take(0, 50, seed=1)


@pytest.mark.parametrize(("length", "ranks"), [(12, 3), (14, 3), (3, 3)])
def test_ranks_have_disjoint_parts_of_one_size_in_every_pass(length, ranks):
    sources = [ShuffledPasses("a", length, Shard(rank, ranks)) for rank in range(ranks)]
    per_pass = length // ranks
    seen = Counter()
    for number in range(40):
        parts = [source.take(number * per_pass, per_pass, seed=0) for source in sources]
        together = [index for part in parts for index in part]
        assert len(set(together)) == len(together) == ranks * per_pass
        seen.update(together)
    assert len(seen) == length  # what is left over is not always the same
    assert max(seen.values()) <= 40


def test_fewer_samples_than_ranks_are_shared():
    sources = [ShuffledPasses("a", 2, Shard(rank, 5)) for rank in range(5)]
    for source in sources:
        assert set(source.take(0, 40, seed=0)) == {0, 1}
