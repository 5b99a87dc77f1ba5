"""What a training loop sees: composition, order, epochs, options; and what is refused."""

import os
import random
import re
from collections import Counter

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

import steelyard as sy
from toys import smooth, take_step


class Noisy(Dataset):
    """Samples with random numbers of Python and torch, as an augmentation has."""

    def __init__(self, first, length):
        self.first, self.length = first, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.tensor([self.first + index, random.random(), torch.rand(()).item()], dtype=torch.float64)


class Counting(IterableDataset):
    """Numbers that the workers divide among each other."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for number in range(first, self.length, step):
            yield torch.tensor(float(number))


def two():
    return {"a": Noisy(0, 20), "b": Noisy(100, 7)}


def as_lists(batches):
    return [({name: samples.tolist() for name, samples in batch.items()}, batch.factors) for batch in batches]


def first_numbers(batches, name):
    return [int(row[0]) for batch in batches for row in batch.get(name, [])]


def test_an_epoch_has_as_many_samples_as_all_datasets_and_repeats_the_shorter_in_another_order():
    loader = sy.DomainLoader(two(), batch_size=6)
    batches = list(loader)
    assert len(batches) == len(loader) == 5  # ⌈27 / 6⌉
    assert all(list(batch) == ["a", "b"] and len(batch["a"]) == len(batch["b"]) == 3 for batch in batches)
    assert all(batch.factors == {"a": 1.0, "b": 1.0} for batch in batches)
    few = first_numbers(batches, "b")
    assert sorted(few[:7]) == sorted(few[7:14]) == list(range(100, 107))
    assert few[:7] != few[7:14]
    many = first_numbers(batches, "a") + first_numbers(list(loader), "a")
    assert sorted(many[:20]) == list(range(20))  # the pass goes on in the next epoch


@pytest.mark.parametrize(
    ("sampling", "counts"),
    [("proportional", (9, 3)), ("sqrt", (8, 4)), ({"a": 1, "b": 1}, (6, 6)), ({"a": 0, "b": 1}, (2, 10))],
)
def test_compositions(sampling, counts):
    for batch in sy.DomainLoader(two(), 12, sampling=sampling):
        assert (len(batch["a"]), len(batch["b"])) == counts


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_seed_gives_the_same_batches_with_any_number_of_workers(workers):
    reference = as_lists(sy.DomainLoader(two(), 6, seed=5))
    torch.manual_seed(workers)
    random.seed(workers)
    assert as_lists(sy.DomainLoader(two(), 6, seed=5, num_workers=workers)) == reference
    assert as_lists(sy.DomainLoader(two(), 6, seed=6, num_workers=workers)) != reference


def test_a_generator_gives_the_seed():
    loaders = [sy.DomainLoader(two(), 6, seed=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    first, second, third = (as_lists(loader) for loader in loaders)
    assert first == second != third


@pytest.mark.parametrize("workers", [0, 2])
def test_the_programs_random_numbers_are_left_unchanged(workers):
    before = random.getstate(), torch.get_rng_state()
    list(sy.DomainLoader(two(), 6, num_workers=workers))
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_a_domain_is_read_alike_whatever_the_others_are():
    alone = first_numbers(sy.DomainLoader({"b": Noisy(100, 7)}, 3, steps=5), "b")
    assert first_numbers(sy.DomainLoader(two(), 6), "b") == alone


def test_an_epoch_that_was_left_is_followed_by_a_new_one():
    loader, undisturbed = (sy.DomainLoader(two(), 6, num_workers=2) for _ in range(2))
    batches = iter(loader)
    next(batches), next(batches)
    reference = as_lists(undisturbed) + as_lists(undisturbed)
    # What the workers had read ahead comes again, so that no sample is lost.
    assert as_lists(loader) == reference[2:7]


def test_an_epoch_after_one_that_was_left_follows_the_present_weights():
    weights = {"a": 3.0, "b": 1.0}
    loader = sy.DomainLoader(two(), 8, sampling=lambda: weights, num_workers=1)
    assert len(next(iter(loader))["a"]) == 6
    weights = {"a": 1.0, "b": 3.0}
    assert len(next(iter(loader))["a"]) == 2


def test_a_sample_has_other_random_numbers_in_each_pass():
    rows = [tuple(row) for batch in sy.DomainLoader(two(), 6, steps=20) for row in batch["b"].tolist()]
    assert len(rows) == 60
    assert len(set(rows)) == len({noise for _, *noises in rows for noise in noises}) / 2 == 60


def test_labels_make_domains_of_one_dataset():
    dataset = TensorDataset(torch.arange(10))
    labels = [1, 0, 0, 1, 0, 0, 0, 0, 0, 1]
    settings = {"batch_size": 4, "sampling": "sqrt", "steps": 30}
    by_number = sy.DomainLoader.from_labels(dataset, torch.tensor(labels), ("a", "b"), **settings)
    by_name = sy.DomainLoader.from_labels(dataset, ["ab"[label] for label in labels], ("a", "b"), **settings)
    seen = Counter()
    for batch, other in zip(by_number, by_name, strict=True):
        for name, (numbers,) in batch.items():
            assert torch.equal(numbers, other[name][0])
            seen.update((name, number) for number in numbers.tolist())
    assert set(seen) == {("ab"[label], number) for number, label in enumerate(labels)}
    with pytest.raises(ValueError, match=r"labels must have a sample of each of \('a', 'b', 'c'\); got none of 'c'"):
        sy.DomainLoader.from_labels(dataset, labels, ("a", "b", "c"), batch_size=4)


def test_a_balancer_is_followed_while_it_learns():
    torch.manual_seed(0)
    data = {}
    for name, slope in (("easy", 0.0), ("hard", 5.0)):
        x = torch.randn(50, 6)
        data[name] = TensorDataset(x, slope * x.prod(1, keepdim=True))
    balancer = sy.Balancer(tuple(data), loss=mse_loss, weighting=sy.GroupDRO(rate=0.05))
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    counts = []
    for batch in sy.DomainLoader(data, 20, sampling=balancer, steps=60, num_workers=2):
        counts.append(len(batch["hard"][1]))
        take_step(balancer(model, batch, optimizer), optimizer)
    assert balancer.weights["hard"] > 0.7
    assert counts[0] == 10
    assert counts[-1] == pytest.approx(20 * balancer.weights["hard"], abs=2)


def test_collate_function_and_options_are_passed_on():
    loader = sy.DomainLoader(two(), 6, collate_fn=len, num_workers=1, prefetch_factor=3, persistent_workers=True)
    assert [dict(batch) for batch in loader] == [{"a": 3, "b": 3}] * 5
    assert [dict(batch) for batch in loader] == [{"a": 3, "b": 3}] * 5


class Several(Noisy):
    def __getitems__(self, indices):
        return [("several", index) for index in indices]


def test_a_dataset_that_reads_several_samples_at_once_does():
    (batch,) = sy.DomainLoader({"a": Several(0, 4), "b": list(range(4))}, 4, steps=1, collate_fn=list)
    assert all(word == "several" for word, _ in batch["a"])
    assert set(batch["b"]) < set(range(4))


@pytest.mark.parametrize("workers", [0, 2])
def test_iterable_datasets_go_on_over_epochs(workers):
    loader = sy.DomainLoader({"a": Counting(12), "b": Noisy(100, 7)}, 6, steps=3, num_workers=workers)
    epochs = []
    for _ in range(4):
        epochs.append([number for batch in loader for number in batch["a"].tolist()])
    assert {*epochs[0], *epochs[1]} == set(range(12))  # each worker read its own part
    if workers == 0:
        assert epochs[0] + epochs[1] == list(range(12)) + list(range(6))


class Processes(IterableDataset):
    def __iter__(self):
        while True:
            yield os.getpid()


def test_streams_are_read_by_the_same_workers_in_each_epoch():
    loader = sy.DomainLoader({"a": Processes()}, 3, steps=4, num_workers=2)
    epochs = [{tuple(batch["a"].tolist()) for batch in loader} for _ in range(2)]
    assert epochs[0] == epochs[1]
    assert len(epochs[0]) == 2


REFUSED = [
    ({"batch_size": 0}, ValueError, "batch_size must be a whole number of at least 1; got 0."),
    ({"batch_size": 2.5}, ValueError, "batch_size must be a whole number of at least 1; got 2.5."),
    ({"minimum": -1}, ValueError, "minimum must be a whole number of at least 0; got -1."),
    ({"steps": 0}, ValueError, "steps must be a whole number of at least 1; got 0."),
    ({"shuffle": True}, TypeError, "DomainLoader has no argument 'shuffle'; of DataLoader's it takes num_workers,"),
    ({"in_order": False}, TypeError, "DomainLoader has no argument 'in_order'"),
    ({"rank": 1}, ValueError, "give both rank and world_size, or none; got 1 and None."),
    ({"rank": 2, "world_size": 2}, ValueError, "rank must be at least 0 and less than world_size (2); got 2."),
    ({"datasets": [1, 2]}, TypeError, "datasets must map domain names to datasets; got [1, 2]."),
    ({"datasets": {}}, TypeError, "datasets must map domain names to datasets; got {}."),
    ({"datasets": {"a": []}}, ValueError, "the dataset of domain 'a' must have a sample; it has none."),
    ({"datasets": {"a": Counting(3)}}, ValueError, "steps must be given: the length of domain 'a' is unknown."),
    ({"batch_size": 1}, ValueError, "a batch of 1 samples has none of domain 'b': raise batch_size"),
]


@pytest.mark.parametrize(("settings", "error", "message"), REFUSED, ids=[str(index) for index in range(len(REFUSED))])
def test_what_is_refused(settings, error, message):
    with pytest.raises(error, match=re.escape(message)):
        sy.DomainLoader(**{"datasets": two(), "batch_size": 6, **settings})


def test_the_options_are_arguments_of_torchs_loader():
    from inspect import signature

    from steelyard.sampling.loader import _OPTIONS

    assert set(_OPTIONS) < set(signature(DataLoader.__init__).parameters)
