"""Two ranks whose probe is chosen: both vote on the same steps, or one would wait for the other for ever."""

from contextlib import suppress

import pytest
import torch
from test_distributed_votes import run
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import steelyard as sy
from steelyard.training import auto_probe
from toys import batch, smooth, take_step

STEPS = 25
WARM_UP = 5


def summed(outputs, targets):
    """A sum over samples is not a mean over them, so that gradients cannot be shared."""
    return mse_loss(outputs, targets, reduction="sum")


def work(rank):
    """The second rank has one domain alone, so that it never sees that gradients cannot be shared."""
    auto_probe._WARM_UP = WARM_UP
    torch.manual_seed(0)
    model = DistributedDataParallel(smooth())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    balancer = sy.Balancer(("a", "b"), loss=summed)
    weights = []
    for step in range(STEPS):
        samples = batch(seed=100 * rank + step)
        if rank == 1:
            del samples["b"]
        take_step(balancer(model, samples, optimizer), optimizer)
        weights.append(balancer.weights)
    return balancer.probe.every, str(balancer.auto.description), weights, balancer.tally


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return run(tmp_path_factory.mktemp("ranks"), work)


def test_ranks_vote_less_often_together(results):
    first, second = results
    assert first == second
    every, description, _, tally = first
    assert every == 8
    assert "gradients cannot be shared" in description
    assert tally["not due on this step"] == STEPS - WARM_UP - (STEPS - WARM_UP) // every


def fail_between_votes(rank):
    """The first rank fails on a step without a vote, and both skip its batch."""
    torch.manual_seed(0)
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    failing = []

    def loss(outputs, targets):
        if failing:
            raise RuntimeError("out of memory")
        return mse_loss(outputs, targets)

    balancer = sy.Balancer(("a", "b"), loss=loss, probe=sy.FirstOrder(every=3))
    weights = []
    for step in range(12):
        failing[:] = [True] if rank == 0 and step == 4 else []
        with suppress(RuntimeError):
            take_step(balancer(model, batch(seed=100 * rank + step), optimizer), optimizer)
        weights.append(balancer.weights)
    return weights, balancer.tally, balancer.counters.batches, int(balancer.probe.steps)


def test_a_rank_that_fails_between_votes_stays_in_step(tmp_path):
    first, second = run(tmp_path, fail_between_votes)
    assert first == second
    assert first[1]["not due on this step"] == 8
