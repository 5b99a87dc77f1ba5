"""Two ranks: disjoint samples, equally many batches, one composition."""

import gc
from datetime import timedelta

import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import steelyard as sy
from toys import take_step

PATIENCE = timedelta(seconds=60)
SIZES = {"a": 24, "b": 9}


def on_each_rank(rank, folder, work):
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=PATIENCE
    )
    try:
        torch.save(work(rank), f"{folder}/{rank}.pt")
        gc.collect()
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


def run(folder, work):
    multiprocessing.spawn(on_each_rank, args=(str(folder), work), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


def datasets(sizes):
    data = {}
    for number, (name, size) in enumerate(sizes.items()):
        x = torch.randn(size, 6, generator=torch.Generator().manual_seed(number))
        data[name] = TensorDataset(x, 4 * number * x.prod(1, keepdim=True), torch.arange(size))
    return data


def train(loader, epochs):
    """Numbers of the samples, factors and weights of every batch."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    balancer = loader.balancer
    record = []
    for _ in range(epochs):
        for batch in loader.loader:
            factors = batch.factors
            numbers = {name: tree[2].tolist() for name, tree in batch.items()}
            for name, (x, y, _) in batch.items():
                batch[name] = (x, y)
            take_step(balancer(model, batch, optimizer), optimizer)
            record.append((numbers, factors, balancer.weights))
    return record, [parameter.detach() for parameter in model.parameters()]


class Made:
    def __init__(self, data, **settings):
        weighting = sy.DirichletVote("conservative", window=5)
        self.balancer = sy.Balancer(("a", "b"), loss=mse_loss, weighting=weighting, probe=sy.InnerLoop())
        self.loader = sy.DomainLoader(data, 6, sampling=self.balancer, **settings)


def train_on_shared_data(rank):
    return train(Made(datasets(SIZES), num_workers=0), epochs=4)


def train_on_own_data(rank):
    """The ranks hold different datasets, of other lengths; and rank 1 lacks a domain."""
    sizes = {"a": 40} if rank else SIZES
    return train(Made(datasets(sizes), steps=5, rank=0, world_size=1), epochs=2)


def train_both(rank):
    return train_on_shared_data(rank), train_on_own_data(rank)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return run(tmp_path_factory.mktemp("ranks"), train_both)


def test_ranks_draw_disjoint_samples_in_one_composition(records):
    (first, parameters), (second, elsewhere) = (rank[0] for rank in records)
    assert len(first) == len(second) == 4 * 3  # ⌈33 / (2 · 6)⌉ in an epoch
    used = {"a": ([], []), "b": ([], [])}
    for (numbers, factors, weights), (others, *rest) in zip(first, second, strict=True):
        assert [factors, weights] == rest
        for name in SIZES:
            assert len(numbers[name]) == len(others[name])
            used[name][0].extend(numbers[name])
            used[name][1].extend(others[name])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(parameters, elsewhere, strict=True))
    for name, size in SIZES.items():
        half = size // 2  # of a pass
        for start in range(0, len(used[name][0]) - half + 1, half):
            in_pass = [number for rank in used[name] for number in rank[start : start + half]]
            assert len(set(in_pass)) == len(in_pass) == 2 * half
    assert len({weights["b"] for _, _, weights in first}) > 2


def test_ranks_with_datasets_of_their_own_have_equally_many_batches(records):
    (first, parameters), (second, elsewhere) = (rank[1] for rank in records)
    assert len(first) == len(second) == 10
    assert {tuple(numbers) for numbers, _, _ in second} == {("a",)}
    assert [weights for _, _, weights in first] == [weights for _, _, weights in second]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(parameters, elsewhere, strict=True))


def test_ranks_can_be_given_without_processes():
    loaders = [sy.DomainLoader(datasets(SIZES), 6, rank=rank, world_size=3) for rank in range(3)]
    assert [len(loader) for loader in loaders] == [2, 2, 2]
    numbers = [[number for batch in loader for number in batch["a"][2].tolist()] for loader in loaders]
    assert len(set(numbers[0]) | set(numbers[1]) | set(numbers[2])) == 18
