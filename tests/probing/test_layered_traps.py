"""Networks that look as if gradients could be read off their layers, and cannot, or not of every batch."""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import steelyard as sy
from steelyard.probing.first_order import FirstOrder
from steelyard.probing.reuse import leaf_uses
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


def both_heads(outputs, y):
    return mse_loss(outputs[0] + outputs[1], y)


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
    """Nothing comes back to one of its layers."""

    def __init__(self):
        super().__init__()
        self.one, self.other, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        x = self.one(x).tanh()
        return self.last((x + Stop.apply(self.other(x))).tanh())


class Frozen(nn.Module):
    """Runs a normalisation outside automatic differentiation, though it could be trained."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 1)

    def forward(self, x):
        with torch.no_grad():
            scale = self.norm(x.repeat(1, 2)[:, :8])
        return self.last(self.first(x).tanh() * scale)


class Clamped(nn.Module):
    """What comes back to a layer is changed on the way, by a hook on its output."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        x = self.first(x).tanh()
        x = self.middle(x)
        if x.requires_grad:
            x.register_hook(lambda delta: -0.5 * delta)
        return self.last(x.tanh())


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
    "no elements": (empty, True),
    "outside differentiation": (Frozen, False),
    "a hook on an output": (Clamped, True),
}


def judged(model, samples, *, probe, loss=mse_loss, optimizer=None):
    """What is measured; the outer gradients are those of a plain step."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    judge = balancer(weighting=sy.Fixed(WEIGHTS), probe=probe, loss=loss)
    gradients = []
    for of in (judge, plain_loss):
        model.zero_grad()
        (judge(model, samples, optimizer) if of is judge else of(model, samples, loss)).backward()
        gradients.append([torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()])
    coarse = any(p.dtype is torch.bfloat16 for p in model.parameters())
    largest = max(float(each.abs().max()) for each in gradients[1] if each.numel())
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=(0.02 if coarse else 1e-6) * largest)
    return judge.last.measured


def plain_loss(model, samples, loss):
    each = loss if isinstance(loss, dict) else dict.fromkeys(samples, loss)
    return sum(w * each[name](model(x), y) for w, (name, (x, y)) in zip(WEIGHTS, samples.items(), strict=True))


def in_passes():
    probe = FirstOrder()
    probe.unlayered.fill_(True)
    return probe


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("along", ["domains", "sum"])
@pytest.mark.parametrize(("make", "fit"), TRAPS.values(), ids=TRAPS)
def test_values_and_gradients_are_those_of_separate_passes(make, fit, along, layered):
    model, samples = make().double(), batch(dtype=torch.float64)
    measured = judged(model, samples, probe=FirstOrder(along=along))
    expected = judged(model, samples, probe=in_passes())
    assert layered == [fit]
    assert measured == pytest.approx(expected, rel=1e-6)  # a finite difference, where it is one


@pytest.mark.parametrize("along", ["domains", "sum"])
def test_where_nothing_comes_back_nothing_is_read(along, layered):
    model, samples = Stopped().double(), batch(dtype=torch.float64)
    measured = judged(model, samples, probe=FirstOrder(along=along))
    assert layered == [False]
    if along == "domains":  # a finite difference sees what gradients do not
        assert measured == pytest.approx(judged(model, samples, probe=in_passes()), rel=1e-12)


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
    assert found[0] == pytest.approx(found[1], rel=1e-12)


def test_a_class_that_is_patched_is_no_longer_known(monkeypatch, layered):
    own, probe = nn.LayerNorm.forward, FirstOrder()
    model, samples = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 1)), batch()
    judged(model, samples, probe=probe)
    monkeypatch.setattr(nn.LayerNorm, "forward", lambda self, x: 3 * own(self, x))
    assert judged(model, samples, probe=probe) == pytest.approx(judged(model, samples, probe=in_passes()))
    assert layered == [True, False]


def test_a_replaced_normalisation_is_compared_with_the_network(monkeypatch, layered):
    """Were it wrong, automatic differentiation of what is run would not tell."""
    monkeypatch.setattr("steelyard.probing.scaling_layers.layer_norm", lambda x, *_, **__: 3 * x)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 1))
    found = [judged(model, batch(), probe=probe) for probe in (FirstOrder(), in_passes())]
    assert layered == [False]
    assert found[0] == pytest.approx(found[1])


@pytest.mark.parametrize("mixed", [True, False])
def test_normalisations_in_bfloat16_are_left_as_they_are(mixed, layered):
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 1)).bfloat16()
    if mixed:
        model[1].float()
    samples = {name: (x.bfloat16(), y) for name, (x, y) in batch().items()}
    found = [judged(model, samples, probe=p, loss=in_float) for p in (FirstOrder(), in_passes())]
    assert layered == [False]
    assert found[0] == found[1]


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


@pytest.mark.parametrize("along", ["domains", "sum"])
def test_coarse_gradients_are_not_read_off(along, layered):
    """Nothing could be told from their rounding."""
    model = Turned().bfloat16()
    samples = {name: (x.bfloat16(), y) for name, (x, y) in batch().items()}
    judged(model, samples, probe=FirstOrder(along=along), loss=in_float)
    assert layered == [False]


def test_a_backward_pass_of_the_loss_itself_is_not_listened_to(layered):
    """It is the first that comes back to the layers."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    def adaptive(output, y):
        error = (output - y).square().mean()
        if output.requires_grad:
            torch.autograd.grad(error, list(leaf_uses(output)), retain_graph=True)
        return error

    judged(model, batch(dtype=torch.float64), probe=FirstOrder(), loss=adaptive)
    assert layered == [True]


def test_a_domain_that_comes_later_is_looked_at_too(layered):
    """Its loss leaves out a head that the others' reach."""
    model, names = Heads().double(), ("a", "b", "c")
    loss = {"a": both_heads, "b": own_head("b"), "c": both_heads}
    judge = balancer(domains=names, weighting=sy.Fixed([0.2, 0.3, 0.5]), probe=FirstOrder(), loss=loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    samples = batch(sizes=(4, 4, 4), names=names, dtype=torch.float64)
    for chosen in ("ac", "ac", "abc"):
        judge(model, {name: samples[name] for name in chosen}, optimizer)
    assert layered == [True, True, False]


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
    assert layered == [True, True]
    assert not probe.unlayered


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
