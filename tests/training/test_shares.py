"""One scale: units of a loss do not matter for shares of the update, and weights keep the size of the step."""

import copy
import math

import pytest
import torch
from torch.nn.functional import mse_loss

import steelyard as sy
from toys import balancer as toy_balancer
from toys import batch, smooth, take_step

NAMES = ("a", "b", "c")
PROBES = {"exact": sy.InnerLoop, "first order": sy.FirstOrder}


def alike(step):
    """Domains with gradients of about one size."""
    generator = torch.Generator().manual_seed(step)
    samples = {}
    for name in NAMES:
        x = torch.randn(8, 6, generator=generator, dtype=torch.float64)
        noise = torch.randn(8, 1, generator=generator, dtype=torch.float64)
        samples[name] = (x, x.sum(1, keepdim=True) + 0.3 * noise)
    return samples


def train(factors, *, probe, steps=25, **settings):
    """Train with one factor for each domain's loss."""
    torch.manual_seed(0)
    model = smooth().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)  # so that no step overshoots, which the exact probe sees
    losses = {name: lambda o, y, factor=factor: factor * mse_loss(o, y) for name, factor in factors.items()}
    weighting = sy.Evidence(**{"rate": 0.2, "caution": 0.5, **settings})
    balancer = sy.Balancer(NAMES, loss=losses, weighting=weighting, probe=probe())
    for step in range(steps):
        take_step(balancer(model, alike(step), optimizer), optimizer)
    return balancer


def with_norms(norms, **settings):
    """A balancer that has seen gradients of these norms, and no evidence."""
    balancer = sy.Balancer(NAMES, loss=mse_loss, weighting=sy.Evidence(**settings))
    scores = torch.zeros(len(NAMES) + 1, len(NAMES), dtype=torch.float64)
    balancer.transfer.observe(scores, torch.tensor(norms, dtype=torch.float64))
    return balancer


@pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES)
@pytest.mark.parametrize("factor", [1e-2, 10.0, 100.0])
def test_units_of_a_loss_leave_the_shares_alone(probe, factor):
    plain = train({"a": 1.0, "b": 1.0, "c": 1.0}, probe=probe)
    scaled = train({"a": 1.0, "b": factor, "c": 1.0}, probe=probe)
    assert scaled.shares == pytest.approx(plain.shares, abs=0.03)
    ratio = scaled.weights["b"] / scaled.weights["a"]
    assert ratio * factor == pytest.approx(plain.weights["b"] / plain.weights["a"], rel=0.1)


@pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES)
def test_a_loss_times_500_gets_a_500th_of_the_weight_at_the_first_vote(probe):
    torch.manual_seed(0)
    model = smooth().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    weights, shares = [], []
    for factor in (1.0, 500.0):
        losses = {"a": mse_loss, "b": lambda o, y, factor=factor: factor * mse_loss(o, y), "c": mse_loss}
        weighting = sy.Evidence(caution=0.0)
        balancer = sy.Balancer(NAMES, loss=losses, weighting=weighting, probe=probe())
        balancer(model, alike(0), optimizer)
        weights.append(balancer.weights)
        shares.append(balancer.shares)
    assert shares[1] == pytest.approx(shares[0], rel=0.01)
    relative = [by_name["b"] / by_name["a"] for by_name in weights]
    assert relative[1] * 500 == pytest.approx(relative[0], rel=0.01)


def test_shares_are_weights_times_sizes_of_gradients():
    balancer = with_norms([1.0, 4.0, 2.0])
    assert balancer.shares == pytest.approx(dict.fromkeys(NAMES, 1 / 3))
    inverse = {"a": 1.0, "b": 1 / 4, "c": 1 / 2}
    ratios = {name: balancer.weights[name] / balancer.weights["a"] for name in NAMES}
    assert ratios == pytest.approx(inverse)


def test_shares_of_fixed_weights_show_what_the_sizes_of_gradients_do():
    balancer = sy.Balancer(NAMES, loss=mse_loss, weighting=sy.Fixed([0.5, 0.25, 0.25]), probe=sy.InnerLoop())
    assert balancer.shares == pytest.approx({"a": 0.5, "b": 0.25, "c": 0.25})  # nothing measured yet
    model = smooth().double()
    samples = alike(0)
    balancer(model, samples, torch.optim.SGD(model.parameters(), lr=0.1))
    sizes = []
    for x, y in samples.values():
        gradients = torch.autograd.grad(mse_loss(model(x[:4]), y[:4]), list(model.parameters()))
        sizes.append(torch.cat([gradient.flatten() for gradient in gradients]).norm().item())
    parts = [weight * size for weight, size in zip((0.5, 0.25, 0.25), sizes, strict=True)]
    assert list(balancer.shares.values()) == pytest.approx([part / sum(parts) for part in parts])
    assert balancer.weights == {"a": 0.5, "b": 0.25, "c": 0.25}


@pytest.mark.parametrize("norms", [[1.0, 1.0, 1.0], [1.0, 2.9, 0.4], [0.35, 1.0, 2.9], [1.0, math.nan, 2.0]])
def test_weights_sum_to_1_while_sizes_are_within_a_factor_of_3_of_the_median(norms):
    assert sum(with_norms(norms).weights.values()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("outlier", [1e-6, 1e-3, 0.1, 10.0, 1e3, 1e6])
def test_an_outlier_does_not_change_the_weights_of_the_others_by_much(outlier):
    plain, spoiled = with_norms([1.0, 1.0, 1.0]), with_norms([1.0, outlier, 1.0])
    for name in ("a", "c"):
        assert 0.5 < spoiled.weights[name] / plain.weights[name] < 2
    update = sum(weight * size for weight, size in zip(spoiled.weights.values(), (1.0, outlier, 1.0), strict=True))
    assert update < 2 or outlier > 1e3  # ratios beyond a thousand are not made up for


def test_the_outer_loss_has_the_weights_and_not_the_shares():
    balancer = with_norms([1.0, 2.0, 0.5])
    model = smooth().double()
    samples = alike(1)
    balancer.eval()
    expected = sum(balancer.weights[name] * mse_loss(model(x), y) for name, (x, y) in samples.items())
    assert balancer(model, samples).item() == pytest.approx(expected.item(), rel=1e-12)
    assert balancer.weights != pytest.approx(balancer.shares)


@pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES)
def test_an_enabled_gradient_scaler_changes_nothing_but_the_scale(probe):
    plain, scaled = (model := smooth()), copy.deepcopy(model)
    optimizers = [torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9) for network in (plain, scaled)]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    settings = {"rate": 0.5, "caution": 0.0}
    balancers = []
    for given in (None, scaler):
        balancers.append(toy_balancer(weighting=sy.Evidence(**settings), probe=probe(scaler=given)))
    if probe is sy.FirstOrder:
        balancers[0].probe.vmapping.refused.fill_(True)  # as with a scaler, for equal rounding
    for seed in range(6):
        take_step(balancers[0](plain, batch(seed=seed), optimizers[0]), optimizers[0])
        optimizers[1].zero_grad()
        scaler.scale(balancers[1](scaled, batch(seed=seed), optimizers[1])).backward()
        scaler.step(optimizers[1])
        scaler.update()
        assert balancers[0].last.measured == pytest.approx(balancers[1].last.measured, rel=1e-5)
    assert scaler.get_scale() > 1024
    assert balancers[1].weights == pytest.approx(balancers[0].weights, rel=1e-5)
    assert balancers[1].weights["a"] != pytest.approx(0.5, abs=0.01)
    torch.testing.assert_close(balancers[1].transfer.mean, balancers[0].transfer.mean, rtol=1e-3, atol=1e-7)


def test_gradients_that_overflow_do_not_enter_what_was_measured():
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    balancer = toy_balancer(weighting=sy.Evidence(), probe=sy.FirstOrder())
    balancer(model, batch(), optimizer)
    before = copy.deepcopy(balancer.transfer.state_dict())
    samples = batch(seed=1)
    samples["b"][1][0] = math.inf
    balancer(model, samples, optimizer)
    assert balancer.last.outcome is sy.Outcome.NOT_FINITE
    for name, tensor in balancer.transfer.state_dict().items():
        assert torch.equal(tensor, before[name])
