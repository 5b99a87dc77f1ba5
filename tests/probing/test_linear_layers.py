"""Networks of linear layers: gradients read off inputs and what comes back, equal to automatic differentiation."""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import steelyard as sy
from steelyard.probing.first_order import FirstOrder
from steelyard.probing.layered_sum import LayeredSum
from toys import balancer, batch

NAMES = ("a", "b", "c")


class Positions(nn.Module):
    """Linear layers over the last of three dimensions; the first is the samples, or is not."""

    def __init__(self, *, samples_first=True):
        super().__init__()
        self.first, self.last = nn.Linear(2, 5, bias=False), nn.Linear(5, 1)
        self.samples_first = samples_first

    def forward(self, x):
        x = x.unflatten(1, (3, 2))
        if not self.samples_first:
            x = x.transpose(0, 1)
        x = self.last(self.first(x).tanh())
        return x.mean(1) if self.samples_first else x.mean(0)


def layers(activation):
    return nn.Sequential(nn.Linear(6, 8), activation, nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


@pytest.fixture
def layered(monkeypatch):
    """How each attempt to read gradients off went."""
    record, run = [], LayeredSum.run
    monkeypatch.setattr(LayeredSum, "run", lambda self, **k: record.append(run(self, **k)) or record[-1])
    return record


@pytest.mark.parametrize("make", [lambda: layers(nn.ReLU()), Positions], ids=["layers", "positions"])
@pytest.mark.parametrize("stepped", ["all", "last"])
def test_values_and_gradients_are_those_of_separate_passes(make, stepped, layered):
    model = make().double()
    samples = batch(sizes=(6, 4, 7), names=NAMES, dtype=torch.float64)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters if stepped == "all" else parameters[-2:], lr=0.1, momentum=0.9)
    found = []
    for along in ("domains", "sum"):
        judge = balancer(domains=NAMES, weighting=sy.Fixed([0.2, 0.3, 0.5]), probe=FirstOrder(along=along))
        for _ in range(2):  # audited, then not
            model.zero_grad()
            judge(model, samples, optimizer).backward()
        found.append((judge.last.measured, [p.grad.clone() for p in parameters]))
    assert layered == [True, True]
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-10)
    for mine, theirs in zip(found[1][1], found[0][1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda: layers(nn.ReLU(inplace=True)),
        lambda: Positions(samples_first=False),
        lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 1)),
    ],
    ids=["in place", "samples not first", "another kind of layer"],
)
def test_other_networks_are_measured_by_a_difference(make, layered):
    model = make().double()
    samples = batch(sizes=(2, 2, 2), names=NAMES, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = [0.2, 0.3, 0.5]
    judge = balancer(domains=NAMES, weighting=sy.Fixed(weights), probe=FirstOrder(along="sum"))
    for _ in range(2):
        model.zero_grad()
        judge(model, samples, optimizer).backward()
    assert not any(layered)
    expected = sum(w * mse_loss(model(x), y) for w, (x, y) in zip(weights, samples.values(), strict=True))
    for parameter, gradient in zip(
        model.parameters(), torch.autograd.grad(expected, list(model.parameters())), strict=True
    ):
        torch.testing.assert_close(parameter.grad, gradient)


def test_a_loss_that_is_no_mean_is_measured_by_a_difference(layered):
    model = layers(nn.ReLU())
    judge = balancer(probe=FirstOrder(along="sum"), loss=lambda o, y: (o - y).square().sum() ** 0.5)
    judge(model, batch(), torch.optim.SGD(model.parameters(), lr=0.1)).backward()
    assert layered == [False]
    assert judge.last.vote
    assert judge.probe.reuse.reason is None
