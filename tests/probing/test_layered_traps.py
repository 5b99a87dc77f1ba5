"""Networks that look as if gradients could be read off their layers, and cannot, or not of every batch."""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import steelyard as sy
from steelyard.probing.first_order import FirstOrder
from toys import balancer, batch

WEIGHTS = (0.3, 0.7)


class Heads(nn.Module):
    """One for each domain: what a domain does not reach, its step does not move."""

    def __init__(self):
        super().__init__()
        self.body, self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x):
        x = self.body(x).tanh()
        return self.a(x), self.b(x)


def own_head(domain):
    return lambda outputs, y: mse_loss(outputs["ab".index(domain)], y)


def weightless():
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 1))
    model[1].weight = None
    nn.init.normal_(model[1].bias)
    return model


class Tripled(nn.LayerNorm):
    """Known by its name only."""

    def forward(self, x):
        return 3 * super().forward(x)


def without_shift(norm):
    norm.bias = None
    return nn.Sequential(nn.Linear(6, 8), nn.Unflatten(1, (4, 2)), norm, nn.Flatten(), nn.Linear(8, 1))


class OneByOne(nn.Module):
    """Normalises single images, without a dimension of samples."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.last = nn.Conv2d(1, 3, 1), nn.InstanceNorm2d(3, affine=True), nn.Linear(18, 1)

    def forward(self, x):
        return self.last(torch.stack([self.norm(self.layer(each.view(1, 2, 3))).flatten() for each in x]))


class Coded(nn.Module):
    """A layer, and perhaps a normalisation, of a code that is no sample; as many outputs as there are samples."""

    def __init__(self, *, normalised):
        super().__init__()
        self.register_buffer("code", torch.randn(12))
        self.norm = nn.LayerNorm(12) if normalised else nn.Identity()
        self.layer, self.mixed, self.last = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 1)

    def forward(self, x):
        return self.last((self.layer(x) * self.mixed(self.norm(self.code))).tanh())


class Stop(torch.autograd.Function):
    """Lets nothing back."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, *_):
        return None


class Stopped(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other, self.last = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.last((self.one(x) + Stop.apply(self.other(x))).tanh())


def empty():
    return nn.Sequential(nn.Linear(6, 0), nn.Linear(0, 4), nn.Linear(4, 1))


TRAPS = {
    "no scale": (weightless, False),
    "a kind by inheritance": (lambda: nn.Sequential(nn.Linear(6, 8), Tripled(8), nn.Linear(8, 1)), False),
    "no shift in groups": (lambda: without_shift(nn.GroupNorm(2, 4)), True),
    "no shift in instances": (lambda: without_shift(nn.InstanceNorm1d(4, affine=True)), True),
    "images one by one": (OneByOne, False),
    "a code": (lambda: Coded(normalised=False), False),
    "a normalised code": (lambda: Coded(normalised=True), False),
    "nothing comes back": (Stopped, False),
    "no elements": (empty, True),
}


def judged(model, samples, *, probe, loss=mse_loss, optimizer=None):
    """What is measured, and the outer gradients."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    judge = balancer(weighting=sy.Fixed(WEIGHTS), probe=probe, loss=loss)
    model.zero_grad()
    judge(model, samples, optimizer).backward()
    return judge.last.measured, [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def in_passes():
    probe = FirstOrder()
    probe.unlayered.fill_(True)
    return probe


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("along", ["domains", "sum"])
@pytest.mark.parametrize(("make", "fit"), TRAPS.values(), ids=TRAPS)
def test_values_and_gradients_are_those_of_separate_passes(make, fit, along, layered):
    model, samples = make().double(), batch(dtype=torch.float64)
    measured, gradients = judged(model, samples, probe=FirstOrder(along=along))
    expected, outer = judged(model, samples, probe=in_passes())
    assert layered == [fit]
    assert measured == pytest.approx(expected, rel=1e-6)  # a finite difference, where it is one
    for mine, theirs in zip(gradients, outer, strict=True):
        mine, theirs = (each if each is not None else torch.zeros(()) for each in (mine, theirs))
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12, check_stride=False)


@pytest.mark.parametrize("momentum", [True, False])
def test_a_head_of_another_domain_is_not_stepped(momentum, layered):
    model, samples = Heads().double(), batch(dtype=torch.float64)
    loss = {name: own_head(name) for name in "ab"}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)
    if momentum:
        for _ in range(3):
            sum(own_head(name)(model(x), y) for name, (x, y) in samples.items()).backward()
            optimizer.step()
    found = [judged(model, samples, probe=p, loss=loss, optimizer=optimizer) for p in (FirstOrder(), in_passes())]
    assert layered == [False]
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)


def test_a_patched_class_is_not_known(monkeypatch, layered):
    own = nn.LayerNorm.forward
    model, samples = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 1)), batch()
    monkeypatch.setattr(nn.LayerNorm, "forward", lambda self, x: 3 * own(self, x))
    found = [judged(model, samples, probe=probe) for probe in (FirstOrder(), in_passes())]
    assert layered == [False]
    assert found[0][0] == pytest.approx(found[1][0])


def test_a_replaced_normalisation_is_compared_with_the_network(monkeypatch, layered):
    """Were it wrong, automatic differentiation of what is run would not tell."""
    monkeypatch.setattr("steelyard.probing.scaling_layers.layer_norm", lambda x, *_, **__: 3 * x)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 1))
    found = [judged(model, batch(), probe=probe) for probe in (FirstOrder(), in_passes())]
    assert layered == [False]
    assert found[0][0] == pytest.approx(found[1][0])


@pytest.mark.parametrize("mixed", [True, False])
def test_normalisations_in_bfloat16_are_left_as_they_are(mixed, layered):
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 1)).bfloat16()
    if mixed:
        model[1].float()
    samples = {name: (x.bfloat16(), y) for name, (x, y) in batch().items()}
    found = [judged(model, samples, probe=p, loss=in_float) for p in (FirstOrder(), in_passes())]
    assert layered == [False]
    assert found[0][0] == found[1][0]


def in_float(output, y):
    return mse_loss(output.float(), y)


class Turned(nn.Module):
    """Turns the samples round for its first layer."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.last(self.first(x.flip(0)).tanh().flip(0))


@pytest.mark.parametrize("along", ["domains", "sum"])
def test_gradients_that_are_not_finite_verify_nothing(along, layered):
    model, samples = Turned().double(), batch(dtype=torch.float64)
    probe = FirstOrder(along=along)
    judge = balancer(weighting=sy.Fixed(WEIGHTS), probe=probe)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    spoilt = {name: (x, torch.full_like(y, torch.inf)) for name, (x, y) in samples.items()}
    judge(model, spoilt, optimizer)
    assert layered == [None]
    assert not probe.unlayered
    judge(model, samples, optimizer).backward()
    assert layered == [None, False]
    plain = sum(w * mse_loss(model(x), y) for w, (x, y) in zip(WEIGHTS, samples.values(), strict=True))
    for parameter, gradient in zip(
        model.parameters(), torch.autograd.grad(plain, list(model.parameters())), strict=True
    ):
        torch.testing.assert_close(parameter.grad, gradient)


def test_inputs_that_require_gradients_are_left_to_detection(layered):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    probe = FirstOrder()
    judged(model, {name: (x.requires_grad_(), y) for name, (x, y) in batch().items()}, probe=probe)
    assert layered == [False]
    assert "outside the model and the loss" in probe.reuse.reason


class Averaged(nn.Module):
    """Takes sequences of any length."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(2, 5), nn.Linear(5, 1)

    def forward(self, x):
        return self.last(self.first(x.unflatten(1, (-1, 2))).tanh()).mean(1)


def test_a_batch_that_cannot_be_joined_is_run_in_passes_and_the_next_is_not(layered):
    model, probe = Averaged(), FirstOrder()
    judge = balancer(weighting=sy.Fixed(WEIGHTS), probe=probe)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    samples = batch()
    short = samples | {"b": (samples["b"][0][:, :4], samples["b"][1])}
    for each in (samples, short, samples):
        judge(model, each, optimizer).backward()
        assert judge.last.measured
    assert layered == [True, None, True]


def test_an_absent_domain_settles_nothing(layered):
    """Its head is not run; with three domains the others vote."""
    model, names = Heads(), ("a", "b", "c")
    probe = FirstOrder(along="sum")
    loss = {"a": own_head("a"), "b": own_head("b"), "c": own_head("a")}
    judge = balancer(domains=names, weighting=sy.Fixed([0.2, 0.3, 0.5]), probe=probe, loss=loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    samples = batch(sizes=(4, 4, 4), names=names)
    judge(model, {name: samples[name] for name in "ac"}, optimizer)
    assert layered == [None]
    judge(model, samples, optimizer)
    assert layered == [None, True]


def test_a_checkpoint_from_before_goes_on_in_passes():
    judge = balancer(probe=FirstOrder())
    state = judge.state_dict()
    del state["probe.unlayered"]
    fresh = balancer(probe=FirstOrder())
    fresh.load_state_dict(state)
    assert fresh.probe.unlayered
    fresh.load_state_dict(judge.state_dict())
    assert not fresh.probe.unlayered
