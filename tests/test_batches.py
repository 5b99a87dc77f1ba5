from collections import OrderedDict, namedtuple

import pytest
import torch

from steelyard.batches import (
    Samples,
    can_join,
    count_samples,
    join_samples,
    split_by_domain,
    split_samples,
    take_samples,
)

Pair = namedtuple("Pair", "image mask")


def tree(samples, offset=0.0):
    values = torch.arange(samples, dtype=torch.float32) + offset
    return ({"image": values[:, None], "pair": Pair(values, values + 10)}, ["name"] * samples, "shared", None)


def test_counts_samples_through_any_nesting():
    assert count_samples(tree(3)) == 3


@pytest.mark.parametrize("bad", [(torch.zeros(2), torch.zeros(3)), ("nothing", torch.tensor(1.0))])
def test_refuses_what_has_no_one_number_of_samples(bad):
    with pytest.raises(ValueError, match="the same number of samples; got"):
        count_samples(bad)


def test_join_and_split_are_inverse():
    parts = [tree(2), tree(3, offset=100)]
    joined = join_samples(parts)
    assert count_samples(joined) == 5
    for part, again in zip(parts, split_samples(joined, [2, 3]), strict=True):
        assert torch.equal(part[0]["image"], again[0]["image"])
        assert isinstance(again[0]["pair"], Pair)
        assert torch.equal(part[0]["pair"].mask, again[0]["pair"].mask)
        assert again[1:] == part[1:]


def test_takes_by_slice_and_by_index():
    assert take_samples(tree(4), slice(1, 3))[0]["pair"].image.tolist() == [1, 2]
    taken = take_samples((torch.arange(4), ["a", "b", "c", "d"]), [3, 0])
    assert taken[0].tolist() == [3, 0]
    assert taken[1] == ["d", "a"]


def test_what_a_data_loader_makes_of_pairs_is_structure():
    dataset = [(torch.full((2,), float(i)), {"name": f"scan {i}", "label": i}) for i in range(4)]
    inputs, rest = loaded = next(iter(torch.utils.data.DataLoader(dataset, batch_size=4)))
    assert isinstance(loaded, list)
    assert count_samples(loaded) == 4
    taken = take_samples(loaded, slice(1, 3))
    assert torch.equal(taken[0], inputs[1:3])
    assert taken[1]["name"] == ["scan 1", "scan 2"]
    assert taken[1]["label"].tolist() == rest["label"].tolist()[1:3]
    assert count_samples(join_samples([taken, loaded])) == 6


def test_samples_of_different_sizes():
    images = Samples([torch.zeros(3, 4, 4), torch.ones(3, 5, 6), torch.zeros(3, 2, 2)])
    assert count_samples(images) == 3
    taken = take_samples(images, [1])
    assert isinstance(taken, Samples)
    assert taken[0].shape == (3, 5, 6)
    assert len(join_samples([images, taken])) == 4


def test_keeps_the_class_of_a_mapping():
    taken = take_samples(OrderedDict(x=torch.arange(3)), slice(0, 2))
    assert isinstance(taken, OrderedDict)
    assert taken["x"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (torch.zeros(2, 3), torch.zeros(5, 3), True),
        (torch.zeros(2, 3), torch.zeros(2, 4), False),
        (torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.float64), False),
        ((torch.zeros(2),), (torch.zeros(2), torch.zeros(2)), False),
        ({"a": torch.zeros(2)}, {"b": torch.zeros(2)}, False),
        ((torch.zeros(2), "t1"), (torch.zeros(2), "flair"), False),
        ((torch.zeros(2), torch.tensor(1.0)), (torch.zeros(2), torch.tensor(2.0)), False),
        ([torch.zeros(2)], [torch.zeros(3), torch.zeros(4)], False),
        (Samples([torch.zeros(2)]), Samples([torch.zeros(3), torch.zeros(4)]), True),
        ((torch.zeros(1), ("a",)), (torch.zeros(2), ("b", "c")), True),
    ],
)
def test_joins_only_what_agrees(first, second, expected):
    assert can_join([first, second]) is expected


def test_splitting_an_output_that_lost_its_samples_says_what_to_do():
    with pytest.raises(ValueError, match=r"one output per sample \(5\); got 1\. Pass join=False"):
        split_samples(torch.zeros(1), [2, 3])


def test_split_by_domain_keeps_order_and_leaves_out_the_absent():
    x, y = torch.arange(5), torch.arange(5) * 10
    split = split_by_domain((x, y), torch.tensor([2, 0, 2, 2, 0]), ("a", "b", "c"))
    assert list(split) == ["a", "c"]
    assert split["a"][0].tolist() == [1, 4]
    assert split["c"][1].tolist() == [0, 20, 30]


@pytest.mark.parametrize("label", ["d", 3, -1, 0.5])
def test_split_by_domain_refuses_an_unknown_label(label):
    with pytest.raises(ValueError, match="a domain label must be one of"):
        split_by_domain(torch.zeros(1), [label], ("a", "b", "c"))


def test_split_by_domain_wants_a_label_per_sample():
    with pytest.raises(ValueError, match=r"one domain per sample \(2\); got 1"):
        split_by_domain(torch.zeros(2), ["a"], ("a",))
