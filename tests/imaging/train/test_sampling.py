from collections import Counter

import pytest
import torch

from steelyard.errors import UserError
from steelyard.imaging.train.sampling import DomainSlices, draw_epoch


def slices(count, owner="a"):
    images = torch.arange(count, dtype=torch.float32).reshape(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    return DomainSlices(images, images, tuple(f"{owner}{index // 2}" for index in range(count)))


def epoch(pool, seed=0, **settings):
    generator = torch.Generator().manual_seed(seed)
    return list(draw_epoch(pool, **({"batch_size": 8, "mixing": "random"} | settings), generator=generator))


def test_random_batches_hold_what_chance_puts_there_and_every_slice_comes_once():
    batches = epoch({"flair": slices(40), "t1": slices(40)})
    assert len(batches) == 10
    sizes = {len(draw.indices["flair"]) for draw in batches}
    assert len(sizes) > 1
    seen = Counter(index for draw in batches for index in draw.indices["flair"])
    assert seen == Counter(range(40))


def test_the_rarer_domain_is_repeated_at_random_until_both_are_of_one_size():
    batches = epoch({"flair": slices(10), "t1": slices(40)})
    seen = Counter(index for draw in batches for index in draw.indices["flair"])
    assert set(seen) == set(range(10))
    assert sum(seen.values()) == 40
    assert len(set(seen.values())) > 1
    assert Counter(index for draw in batches for index in draw.indices["t1"]) == Counter(range(40))


def test_balanced_batches_hold_as_many_of_each_domain_and_the_last_is_dropped_if_incomplete():
    batches = epoch({"flair": slices(10), "t1": slices(19)}, mixing="balanced")
    assert len(batches) == 4
    assert all(len(draw.indices[name]) == 4 for draw in batches for name in ("flair", "t1"))
    with pytest.raises(UserError, match="a size that 2 domains divide; got 7"):
        epoch({"flair": slices(10), "t1": slices(19)}, mixing="balanced", batch_size=7)


def test_an_absent_domain_is_left_out_and_the_subjects_are_named():
    pool = {"flair": slices(1, "f"), "t1": slices(40, "t")}
    batches = epoch(pool | {"flair": slices(40, "f")}, batch_size=2)
    alone = next(draw for draw in batches if not draw.indices["flair"])
    assert set(alone.gather(pool | {"flair": slices(40, "f")})) == {"t1"}
    assert alone.describe(pool).startswith("t1: t")


def test_the_seed_settles_the_order():
    pool = {"flair": slices(16), "t1": slices(16)}
    assert epoch(pool, seed=1) == epoch(pool, seed=1)
    assert epoch(pool, seed=1) != epoch(pool, seed=2)


def test_too_few_slices_for_a_batch_are_refused():
    with pytest.raises(UserError, match="batches of 8 need more slices; the training subjects have 3 a domain"):
        epoch({"flair": slices(3), "t1": slices(3)})


def test_slices_are_found_by_their_owner():
    pool = slices(6)
    assert pool.of(("a1",)).images[:, 0, 0, 0].tolist() == [2, 3]
    assert {name: len(pair[0]) for name, pair in pool.by_subject().items()} == {"a0": 2, "a1": 2, "a2": 2}
