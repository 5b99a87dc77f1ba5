"""What would make shared gradients silently wrong: each is found, or does no harm."""

import random
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import steelyard as sy
from toys import balancer, batch, smooth

DETECTING = {
    "first-order": sy.FirstOrder,
    "inner loop": partial(sy.InnerLoop, reuse="detect"),
    "Gramian": sy.Gramian,
}
detecting = pytest.mark.parametrize("probe", DETECTING.values(), ids=DETECTING)
means = pytest.mark.parametrize("probe", [DETECTING[name] for name in ("first-order", "inner loop")])


def held(**kwargs):
    """A balancer that holds uneven weights, whatever is measured."""
    return balancer(weighting=sy.Fixed([0.3, 0.7]), **kwargs)


def gradients(loss, model):
    model.zero_grad()
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def assert_plain(model, probe, *, samples=None, optimizer=None, **kwargs):
    """The gradients are those of the plain weighted loss."""
    samples = samples or batch()
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05)
    found = gradients(held(probe=probe, **kwargs)(model, samples, optimizer), model)
    torch.testing.assert_close(found, gradients(held(**kwargs)(model, samples), model), rtol=1e-4, atol=1e-6)


def assert_not_shared(probe, model, samples):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    finder = probe()
    held(probe=finder)(model, samples, optimizer)
    assert "float16" in finder.reuse.reason
    with pytest.raises(ValueError, match="give the probe the outer loop's scaler="):
        held(probe=probe(reuse=True))(model, samples, optimizer)


@detecting
def test_float16_parameters_without_the_scaler_are_not_shared(probe):
    assert_not_shared(probe, smooth().half(), batch(dtype=torch.float16))


def test_one_float16_layer_is_enough():
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 1).half())
    model[1].register_forward_pre_hook(lambda _, inputs: (inputs[0].half(),))
    model[1].register_forward_hook(lambda *given: given[2].float())
    assert_not_shared(sy.FirstOrder, model, batch())


@detecting
def test_float16_by_autocast_without_the_scaler_is_not_shared(probe):
    with torch.autocast("cpu", dtype=torch.float16):
        assert_not_shared(probe, smooth(), batch())


class Writing(torch.optim.SGD):
    """Writes weight decay into the gradients that it is given, as many hand-made optimizers do."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.add_(parameter.detach(), alpha=0.5)
                parameter.data.add_(parameter.grad, alpha=-group["lr"])


@means
def test_an_optimizer_that_writes_into_gradients_does_no_harm(probe):
    model, finder = smooth(), probe()
    assert_plain(model, finder, optimizer=Writing(model.parameters(), lr=0.05))
    assert finder.reuse.reason is None


@means
def test_a_large_loss_does_not_hide_that_another_is_not_a_mean(probe):
    def masked(outputs, targets):
        kept = (targets > 0).float()
        return ((outputs - targets) ** 2 * kept).sum() / kept.sum().clamp(min=1)

    model, finder, samples = smooth(), probe(), batch()
    samples["b"][1][0] = 1.0
    losses = {"a": lambda o, y: mse_loss(o, y) + 1e5, "b": masked}
    assert_plain(model, finder, samples=samples, loss=losses)
    assert "the loss of domain 'b'" in finder.reuse.reason


def test_two_parameters_with_one_gradient_each_have_it_once():
    class Tempered(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Parameter(torch.tensor(0.3)), nn.Parameter(torch.tensor(0.1))

        def forward(self, outputs, targets):
            return mse_loss(outputs, targets) * (self.one + self.other).exp()

    model, losses, found = smooth(), {"a": Tempered(), "b": Tempered()}, []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for probe in (sy.FirstOrder(), None):
        losses["a"].zero_grad()
        (8 * held(probe=probe, loss=losses)(model, batch(), optimizer)).backward()
        found.append(losses["a"].one.grad.item())
    assert found[0] == pytest.approx(found[1], rel=1e-5)


@detecting
def test_what_is_kept_from_autocast_is_kept_from_it_backwards_too(probe):
    class Careful(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = smooth()

        def forward(self, x):
            with torch.autocast("cpu", enabled=False):
                return self.inside(x)

    model, finder = Careful(), probe()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = held(probe=finder)(model, batch(), optimizer)
    found = gradients(loss, model)
    assert finder.reuse.reason is None
    torch.testing.assert_close(found, gradients(held()(model, batch()), model))


@detecting
@pytest.mark.parametrize("kind", ["torch", "python"])
def test_a_modules_own_generator_is_watched_at_every_vote(probe, kind):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.output, self.noisy = nn.Linear(6, 1), False
            self.generator = torch.Generator().manual_seed(0) if kind == "torch" else random.Random(0)

        def forward(self, x):
            if not self.noisy:
                return self.output(x)
            noise = torch.randn((), generator=self.generator) if kind == "torch" else self.generator.random()
            return self.output(x + noise)

    model, finder = Noisy(), probe()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    judge = held(probe=finder)
    judge(model, batch(), optimizer)
    assert finder.reuse.reason is None
    model.noisy = True
    judge(model, batch(), optimizer)
    assert finder.reuse.reason == "the forward pass draws random numbers"


def test_parameters_of_two_precisions():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 8).double(), nn.Linear(8, 1)

        def forward(self, x):
            return self.second(self.first(x.double()).float())

    model, probe = Mixed(), sy.FirstOrder()
    samples, optimizer = batch(), torch.optim.SGD(model.parameters(), lr=0.05)
    held(probe=probe)(model, samples, optimizer).backward()
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    held()(model, samples).backward()
    for parameter, gradient in zip(model.parameters(), found, strict=True):
        torch.testing.assert_close(gradient, parameter.grad)
    assert probe.reuse.reason is None
