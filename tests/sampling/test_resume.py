"""A run that is stopped between two batches continues with the same batches, bit for bit."""

import json
import os
import random
import re
import signal
from collections import deque
from pathlib import Path

import pytest
import torch
from torch import multiprocessing
from torch.nn.functional import mse_loss
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import steelyard as sy
from toys import smooth, take_step

STEPS = 7  # in an epoch
EPOCHS = 3


class Augmented(Dataset):
    """Samples with random numbers, so that batches are equal only if these are."""

    def __init__(self, length, slope):
        generator = torch.Generator().manual_seed(length)
        self.x = torch.randn(length, 6, generator=generator)
        self.slope = slope

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index] + 0.1 * torch.randn(6) + 0.1 * random.random()
        return x, self.slope * x.prod(0, keepdim=True)


class Shuffled(IterableDataset):
    """Numbers in a random order, divided among the workers."""

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        numbers = list(range(first, 23, step))
        random.shuffle(numbers)
        for number in numbers:
            yield torch.full((6,), float(number)), torch.rand(1)


def make(streams, workers, sampling=None):
    """A loader, and what it trains; the weights change fast, and the batches follow them."""
    torch.manual_seed(0)
    balancer = sy.Balancer(("a", "b"), loss=mse_loss, weighting=sy.GroupDRO(rate=0.1))
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    datasets = {"a": Augmented(30, 0.0), "b": Shuffled() if streams else Augmented(11, 4.0)}
    loader = sy.DomainLoader(datasets, 12, sampling=sampling or balancer, steps=STEPS, seed=3, num_workers=workers)
    return loader, balancer, model, optimizer


def train(parts, *, epoch=0, stop=None, save=None):
    """Train to the end, or until so many batches; return the batches and weights, and the last checkpoint."""
    loader, balancer, model, optimizer = parts
    record, checkpoint = deque(), None
    while epoch < EPOCHS:
        for batch in loader:
            take_step(balancer(model, batch, optimizer), optimizer)
            record.append((dict(batch), batch.factors, balancer.weights))
            states = [part.state_dict() for part in parts]
            if save is not None:
                torch.save({"epoch": epoch, "states": states}, f"{save}.new")
                Path(f"{save}.new").replace(save)
            checkpoint = {"epoch": epoch, "states": states}
            if len(record) == stop:
                return record, checkpoint
        epoch += 1
    return record, checkpoint


def resume(parts, checkpoint):
    for part, state in zip(parts, checkpoint["states"], strict=True):
        part.load_state_dict(state)
    return train(parts, epoch=checkpoint["epoch"])[0]


def assert_same(records, others):
    assert len(records) == len(others) > 0
    for (batch, factors, weights), (other, *rest) in zip(records, others, strict=True):
        assert [factors, weights] == rest
        assert list(batch) == list(other)
        for name, pair in batch.items():
            assert all(torch.equal(mine, theirs) for mine, theirs in zip(pair, other[name], strict=True))


# In the first epoch, one batch before its end, at its end, and in another one.
@pytest.mark.parametrize("stop", [3, 6, 7, 12])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("streams", [False, True], ids=["indexed", "iterable"])
def test_a_resumed_run_has_the_same_batches(tmp_path, streams, workers, stop):
    whole, _ = train(make(streams, workers))
    first, checkpoint = train(make(streams, workers), stop=stop)
    torch.save(checkpoint, tmp_path / "checkpoint.pt")
    torch.manual_seed(99)
    rest = resume(make(streams, workers), torch.load(tmp_path / "checkpoint.pt"))
    assert_same(whole, [*first, *rest])
    assert len({tuple(weights.values()) for _, _, weights in whole}) > EPOCHS  # or there was nothing to follow


def test_a_run_can_be_resumed_with_other_workers_where_batches_do_not_follow_weights():
    whole, _ = train(make(False, 0, "balanced"))
    first, checkpoint = train(make(False, 2, "balanced"), stop=4)
    rest = resume(make(False, 1, "balanced"), checkpoint)
    assert_same(whole, [*first, *rest])


def test_a_state_is_plain_and_survives_a_second_stop():
    whole, _ = train(make(False, 2))
    first, checkpoint = train(make(False, 2), stop=4)
    loader = make(False, 2)[0]
    loader.load_state_dict(json.loads(json.dumps(checkpoint["states"][0])))
    assert loader.state_dict() == checkpoint["states"][0]  # loaded and saved before any batch
    rest = resume(make(False, 2), {**checkpoint, "states": [loader.state_dict(), *checkpoint["states"][1:]]})
    assert_same(whole, [*first, *rest])


def test_a_state_of_a_whole_epoch_is_followed_by_a_whole_one():
    loader, again = (make(False, 0, "balanced")[0] for _ in range(2))
    assert len(list(loader)) == STEPS
    again.load_state_dict(loader.state_dict())
    assert_same([(batch, {}, {}) for batch in loader], [(batch, {}, {}) for batch in again])


def test_the_seed_is_that_of_the_state():
    whole, _ = train(make(False, 0))
    first, checkpoint = train(make(False, 0), stop=4)
    parts = make(False, 0)
    other = sy.DomainLoader(
        {"a": Augmented(30, 0.0), "b": Augmented(11, 4.0)}, 12, sampling=parts[1], steps=STEPS, seed=8
    )
    assert_same(whole, [*first, *resume((other, *parts[1:]), checkpoint)])


def train_until_killed(save):
    torch.set_num_threads(1)
    parts = make(True, 2)
    loader = parts[0]
    deliver = loader._draws.note_delivery

    def deliver_or_die():
        if loader.state_dict()["batches"] == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        deliver()

    loader._draws.note_delivery = deliver_or_die
    train(parts, save=save)


def test_a_killed_run_continues_from_its_last_checkpoint(tmp_path):
    save = tmp_path / "checkpoint.pt"
    process = multiprocessing.get_context("spawn").Process(target=train_until_killed, args=(str(save),))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    checkpoint = torch.load(save)
    assert checkpoint["states"][0]["batches"] == 9
    whole, _ = train(make(True, 2))
    assert_same([*whole][9:], resume(make(True, 2), checkpoint))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 0}, "the state of a loader must have the format version 1; got 0."),
        ({"lengths": {"a": 30, "b": 12}}, "the state is of datasets of the lengths {'a': 30, 'b': 12}; this loader"),
        ({"world_size": 2}, "the state is of 2 ranks; this loader is of 1."),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change, message):
    loader = make(False, 0)[0]
    with pytest.raises(ValueError, match=re.escape(message)):
        loader.load_state_dict({**loader.state_dict(), **change})


def test_streams_need_the_same_workers():
    state = make(True, 2)[0].state_dict()
    with pytest.raises(ValueError, match="domain 'b' is an iterable dataset that was read by 2 workers"):
        make(True, 1)[0].load_state_dict(state)
