"""The K-domain core follows the paper's formulas.

With two domains the weights are the mode of the paper's beta posterior. What a vote compares is, on split halves,
H_A − H_B = η⟨g_B − g_A, G⟩ + O(η²); on duplicated ones η(‖g_B‖² − ‖g_A‖²) + O(η²).
"""

import random
from itertools import pairwise

import pytest
import torch
from torch.nn.functional import mse_loss

import steelyard as sy
from toys import balancer, batch, first_halves, smooth


@pytest.mark.parametrize("window", [1, 10, 25])
def test_two_domains_follow_the_beta_formula(window):
    draw, alpha, beta = random.Random(window), 5.0, 3.0
    weighting = sy.DirichletVote("conservative", window=window, prior=[alpha, beta])
    weighting.start(2)
    history = []
    for _ in range(60):
        losses = [draw.random(), draw.random()]
        history.append(losses[0] > losses[1])
        weighting.observe(sy.Measurement.of(torch.tensor(losses, dtype=torch.float64)))
        votes = history[-window:]
        expected = (alpha + sum(votes) - 1) / (alpha + beta + len(votes) - 2)
        assert weighting.weights() == pytest.approx((expected, 1 - expected), abs=1e-15)


def gradient(model, pairs):
    loss = sum(mse_loss(model(x), y) for x, y in pairs)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def difference(model, samples, rate):
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    judge = balancer(probe=sy.InnerLoop())
    judge(model, samples, optimizer)
    return judge.last.measured["a"] - judge.last.measured["b"]


def check_order_two(model, samples, slope):
    """The remainder falls by four when the rate is halved."""
    rates = [4e-4, 2e-4, 1e-4]
    remainders = [abs(difference(model, samples, rate) - rate * slope) for rate in rates]
    assert all(remainder < 0.2 * abs(rate * slope) for remainder, rate in zip(remainders, rates, strict=True))
    for larger, smaller in pairwise(remainders):
        assert larger / smaller == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_split_halves(seed):
    torch.manual_seed(seed)
    model, samples = smooth().double(), batch(sizes=(8, 8), seed=seed, dtype=torch.float64)
    halves = first_halves(samples, 4)
    g = {name: gradient(model, [halves[name][0]]) for name in halves}
    total = gradient(model, [half[1] for half in halves.values()])
    check_order_two(model, samples, torch.dot(g["b"] - g["a"], total).item())


@pytest.mark.parametrize("seed", range(3))
def test_duplicated_halves_give_the_papers_norms(seed):
    torch.manual_seed(seed)
    model, samples = smooth().double(), batch(sizes=(4, 4), seed=seed, dtype=torch.float64)
    doubled = {name: (torch.cat([x, x]), torch.cat([y, y])) for name, (x, y) in samples.items()}
    g = {name: gradient(model, [samples[name]]) for name in samples}
    check_order_two(model, doubled, (g["b"].square().sum() - g["a"].square().sum()).item())


def test_any_optimizers_step_agrees_to_first_order():
    model, samples = smooth().double(), batch(sizes=(8, 8), dtype=torch.float64)
    halves = first_halves(samples, 4)
    start = sum(mse_loss(model(x), y) for _, (x, y) in halves.values()).item()
    total = gradient(model, [half[1] for half in halves.values()])
    remainders = []
    for rate in (4e-5, 2e-5):
        judge = balancer(probe=sy.InnerLoop())
        judge(model, samples, torch.optim.Adam(model.parameters(), lr=rate))
        g = gradient(model, [halves["a"][0]])
        step = -rate * g / (g.abs() + 1e-8)  # Adam's first step
        remainders.append(abs(judge.last.measured["a"] - start - torch.dot(step, total).item()))
    assert remainders[0] / remainders[1] == pytest.approx(4, rel=0.1)
