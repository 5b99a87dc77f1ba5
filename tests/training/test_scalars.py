"""What a balancer gives to a logger."""

import math

import torch
from torch.nn.functional import mse_loss

import steelyard as sy
from toys import batch, smooth, take_step


def test_scalars_are_numbers_under_names_of_domains():
    torch.manual_seed(0)
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    balancer = sy.Balancer(("a", "b"), loss=lambda x, y: 30 * mse_loss(x, y))
    assert balancer.scalars()["weight/a"] == 0.5  # before the first call
    for seed in range(3):
        take_step(balancer(model, batch(seed=seed), optimizer), optimizer)
    scalars = balancer.scalars("train/")
    assert all(isinstance(value, float) and math.isfinite(value) for value in scalars.values())
    assert scalars["train/loss/a"] == float(balancer.last.losses["a"])
    assert scalars["train/weight/b"] == balancer.weights["b"]
    assert scalars["train/share/b"] == balancer.shares["b"]
    assert scalars["train/transfer/a/b"] == float(balancer.transfer.mean[0, 1])
    assert not any("flag" in name for name in scalars)


def test_a_flag_is_a_number_and_unmeasured_transfer_is_left_out():
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)
    losses = {"a": mse_loss, "b": mse_loss, "c": lambda x, y: 100 * mse_loss(x, y)}
    balancer = sy.Balancer(("a", "b", "c"), loss=losses)
    assert not any("transfer" in name for name in balancer.scalars())
    for seed in range(3):
        take_step(balancer(model, batch((6, 6, 6), names=("a", "b", "c"), seed=seed), optimizer), optimizer)
    assert balancer.scalars()["flag/c/out of scale"] == 1.0
