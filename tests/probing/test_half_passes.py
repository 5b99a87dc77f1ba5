"""All halves in one pass by vmap: equal to separate passes, and given up where it fails, differs or does not pay."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.functional import linear, mse_loss
from torch.utils.checkpoint import checkpoint

import steelyard as sy
from steelyard.probing import half_passes, sharing
from steelyard.probing.passes import GradientRows, Pass
from toys import balancer, batch, smooth

NAMES = ("a", "b", "c")
WEIGHTS = (0.2, 0.3, 0.5)


def layers(activation):
    return nn.Sequential(nn.Linear(6, 8), activation, nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def convolutions():
    """Of many settings, with activations written into outputs, and two kinds of normalisation."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 6)),
        nn.Conv1d(1, 4, 3, padding=2, stride=2, bias=False),
        nn.ReLU(inplace=True),
        nn.Conv1d(4, 8, 2, dilation=2, groups=2),
        nn.InstanceNorm1d(8, affine=True),
        nn.ReLU(inplace=True),
        nn.ConvTranspose1d(8, 6, 2, stride=2, output_padding=1, groups=2),
        nn.GroupNorm(3, 6),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(30, 1),
    )


def images():
    """Channels last in memory."""
    model = nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(24, 1)
    )
    return model.to(memory_format=torch.channels_last)


def half_frozen():
    model = layers(nn.ReLU())
    model[0].requires_grad_(False)
    model[2].weight.requires_grad_(False)
    return model


def hooked():
    """A hook returns something else than a layer's output."""
    model = layers(nn.ReLU())
    model[0].register_forward_hook(lambda _, inputs, output: 2 * output)
    return model


class Tied(nn.Module):
    """Uses a layer's weights once more, behind a gate that starts as zero."""

    def __init__(self):
        super().__init__()
        self.layer, self.gate, self.last = nn.Linear(6, 6), nn.Linear(6, 6, bias=False), nn.Linear(6, 1)
        nn.init.zeros_(self.gate.weight)

    def forward(self, x):
        return self.last(self.layer(x).tanh() + self.gate(linear(x.relu(), self.layer.weight)))


VMAPPED = {
    "layers": lambda: layers(nn.ReLU()),
    "in place": lambda: layers(nn.ReLU(inplace=True)),
    "learned activation": lambda: layers(nn.PReLU()),
    "convolutions": convolutions,
    "images": images,
    "normalised": lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8, bias=False), nn.ReLU(), nn.Linear(8, 1)),
    "half frozen": half_frozen,
    "hooked": hooked,
    "tied": Tied,
    "batch normalisation in evaluation mode": lambda: nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8).eval(), nn.Linear(8, 1)
    ),
}


class Stop(torch.autograd.Function):
    """Without `setup_context`, as most hand-written functions are."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 0.5 * gradient


class Applied(nn.Module):
    """Applies a function between two layers."""

    def __init__(self, function):
        super().__init__()
        self.first, self.last, self.function = nn.Linear(6, 8), nn.Linear(8, 1), function

    def forward(self, x):
        return self.last(self.function(self.first(x)))


def masked(x):
    x = x.clone()
    x[x > 0] = 0.5 * x[x > 0]
    return x


def doubled_if_large(x):
    return x * 2 if x.abs().max() > 100 else x


class Listed(nn.Module):
    """Uses a parameter through a list, where `functional_call` does not replace it."""

    def __init__(self):
        super().__init__()
        self.layer, self.last, self.listed = nn.Linear(6, 8), nn.Linear(8, 1), True
        self.weights = [self.layer.weight]

    def forward(self, x):
        weight = self.weights[0] if self.listed else self.layer.weight
        return self.last(linear(x, weight, self.layer.bias).tanh())


class Unused(nn.Module):
    """One layer is not run."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.unused = nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x):
        return self.last(self.first(x).tanh())


REFUSED = {
    "autograd function": (lambda: Applied(Stop.apply), "setup_context"),
    "item": (lambda: Applied(lambda x: x * (1 + 0 * x.sum().item())), "item()"),
    "data-dependent if": (lambda: Applied(doubled_if_large), "data-dependent control flow"),
    "boolean mask": (lambda: Applied(masked), "vmap"),
    "checkpointing": (lambda: Applied(lambda x: checkpoint(torch.tanh, x, use_reentrant=False)), ""),
    "parameter in a list": (Listed, "the gradients of vmap are others"),
    "unused layer": (Unused, "does not depend on every trainable parameter"),
}


def one_by_one():
    probe = sy.FirstOrder()
    probe.vmapping.refuse(ValueError("a test"))
    return probe


def run(model, probe, *, samples, optimizer=None, votes=2, **kwargs):
    """What is measured, and the outer gradients."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    judge = balancer(domains=NAMES, weighting=sy.Fixed(WEIGHTS), probe=probe, **kwargs)
    for _ in range(votes):  # the first is compared and audited, the second is not
        model.zero_grad()
        judge(model, samples, optimizer).backward()
    return judge.last.measured, [p.grad.clone() for p in model.parameters() if p.grad is not None]


def assert_same(results, expected):
    assert results[0] == pytest.approx(expected[0], rel=1e-10)
    assert len(results[1]) == len(expected[1])
    for gradient, expectation in zip(results[1], expected[1], strict=True):
        torch.testing.assert_close(gradient, expectation, rtol=1e-9, atol=1e-12)


def equal_sizes(size=4):
    return batch(sizes=(size,) * 3, names=NAMES, dtype=torch.float64)


@pytest.mark.parametrize("make", VMAPPED.values(), ids=VMAPPED)
@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_values_and_gradients_are_those_of_separate_passes(make, kind):
    torch.manual_seed(0)
    model, samples, probe = make().double(), equal_sizes(), sy.FirstOrder()
    steppers = {
        "SGD": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "AdamW": torch.optim.AdamW(model.parameters()),
    }
    results = run(model, probe, samples=samples, optimizer=steppers[kind])
    assert (probe.reuse.reason, probe.vmapping.reason) == (None, None)
    assert_same(results, run(model, one_by_one(), samples=samples, optimizer=steppers[kind]))


@pytest.mark.parametrize(("make", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_vmap_cannot_do_is_run_one_by_one_and_told(make, reason):
    torch.manual_seed(0)
    model, samples, probe = make().double(), equal_sizes(), sy.FirstOrder(reuse=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)
    results = run(model, probe, samples=samples, optimizer=optimizer)
    assert probe.reuse.reason is None
    assert bool(probe.vmapping.refused)
    assert reason in probe.vmapping.reason
    assert "not used" in repr(probe)
    assert_same(results, run(model, one_by_one(), samples=samples, optimizer=optimizer))


class Branching(nn.Module):
    """Which layer runs depends on the whole batch, so that samples meet."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 1), nn.Linear(6, 1)])

    def forward(self, x):
        return self.layers[int(x.sum() > 0)](x)


def test_a_network_that_branches_on_the_batch_is_not_shared_unless_declared():
    """On the first batch all samples take the same branch, so that no loss shows it."""
    model, probe = Branching(), sy.FirstOrder()
    judge = balancer(weighting=sy.Fixed([0.3, 0.7]), probe=probe)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    judge(model, {name: (x.abs(), y) for name, (x, y) in batch().items()}, optimizer)
    assert "branches on values of the batch" in probe.reuse.reason
    loss = judge(model, batch(seed=1), optimizer)
    assert loss.item() == balancer(weighting=sy.Fixed([0.3, 0.7]))(model, batch(seed=1)).item()


def test_what_was_given_up_is_in_the_checkpoint():
    model, probe = Applied(doubled_if_large), sy.FirstOrder()
    judge = balancer(probe=probe)
    judge(model, batch(), torch.optim.SGD(model.parameters(), lr=0.1))
    file = io.BytesIO()
    torch.save(judge.state_dict(), file)
    file.seek(0)
    resumed = balancer(probe=sy.FirstOrder())
    resumed.load_state_dict(torch.load(file))
    assert bool(resumed.probe.vmapping.refused)
    assert "refused before the checkpoint" in repr(resumed.probe)


def test_gradients_over_eight_times_a_large_model_are_not_kept_unless_declared(monkeypatch):
    monkeypatch.setattr(sharing, "_FEW_ELEMENTS", 100)
    names = tuple("abcde")  # ten halves
    samples = batch(sizes=(4,) * 5, names=names)
    for declared in (False, True):
        model, probe = smooth(), sy.FirstOrder(reuse=True if declared else "detect")
        judge = balancer(domains=names, probe=probe)
        judge(model, samples, torch.optim.SGD(model.parameters(), lr=0.1)).backward()
        assert judge.last.vote
        assert (probe.reuse.reason is None) == declared
    few = sy.FirstOrder()
    run(smooth(), few, samples=batch(sizes=(4, 4, 4), names=NAMES))  # six halves
    assert few.reuse.reason is None


def test_the_first_vote_holds_the_gradients_once(monkeypatch):
    """The comparison runs one half after the other, and keeps none of their gradients."""
    collected = []
    monkeypatch.setattr(half_passes, "run_one_by_one", lambda *_, **__: collected.append(1))
    probe = sy.FirstOrder()
    run(layers(nn.ReLU()).double(), probe, samples=equal_sizes(), votes=1)
    assert probe.vmapping.reason is None
    assert not collected


def test_large_passes_are_run_one_by_one(monkeypatch):
    monkeypatch.setattr(half_passes, "_LARGE_PASS", 10)
    probe = sy.FirstOrder()
    run(layers(nn.ReLU()), probe, samples=batch(sizes=(4, 4, 4), names=NAMES))
    assert "more than 0 M" in probe.vmapping.reason


def test_halves_of_other_sizes_are_run_one_by_one_and_the_next_batch_is_not():
    model, probe, calls = smooth(), sy.FirstOrder(), []
    judge = balancer(probe=probe)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for sizes in ((6, 6), (7, 6), (6, 6)):
        calls.clear()
        hook = model.register_forward_hook(lambda *_: calls.append(1))
        judge(model, batch(sizes=sizes), optimizer).backward()
        hook.remove()
        if sizes == (7, 6):
            assert len(calls) == 4  # one for each half
    assert len(calls) == 1
    assert probe.vmapping.reason is None


@pytest.mark.parametrize("kind", ["a scaler", "two losses"])
def test_scalers_and_several_losses_are_run_one_by_one(kind):
    model = smooth()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if kind == "a scaler" else None
    loss = {"a": mse_loss, "b": nn.functional.l1_loss} if kind == "two losses" else mse_loss
    judge = balancer(probe=sy.FirstOrder(scaler=scaler), loss=loss)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    for _ in range(2):
        calls.clear()
        judge(model, batch(), torch.optim.SGD(model.parameters(), lr=0.1)).backward()
    assert len(calls) == 4
    assert judge.probe.vmapping.reason is None


class Penalised(nn.Module):
    """A loss with a small penalty on the model's parameters."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, output, target):
        return mse_loss(output, target) + 1e-4 * sum(p.square().sum() for p in self.model.parameters())


def test_a_small_penalty_on_the_parameters_is_in_the_gradients():
    model = layers(nn.ReLU()).double()
    loss, samples = Penalised(model), equal_sizes()
    _, gradients = run(model, sy.FirstOrder(), samples=samples, loss=loss)
    plain = sum(w * loss(model(x), y) for w, (x, y) in zip(WEIGHTS, samples.values(), strict=True))
    for gradient, expected in zip(gradients, torch.autograd.grad(plain, list(model.parameters())), strict=True):
        torch.testing.assert_close(gradient, expected)


def test_losses_that_are_not_finite_verify_nothing():
    model, probe = Listed().double(), sy.FirstOrder()
    samples = equal_sizes()
    spoilt = {name: (x, torch.full_like(y, torch.inf)) for name, (x, y) in samples.items()}
    run(model, probe, samples=spoilt, votes=1)
    assert probe.vmapping.reason is None
    run(model, probe, samples=samples, votes=1)
    assert "the gradients of vmap are others" in probe.vmapping.reason


def test_a_switch_near_a_tie_is_no_difference_and_a_fifth_is():
    vmapped = half_passes.HalfPasses([torch.ones(())], [], GradientRows.separate([[torch.ones(3)]]))

    def separate(factor):
        return Pass({"a": torch.ones(())}, {}, [factor * torch.ones(3)])

    half_passes.check_same_pass(vmapped, 0, separate(1.02))
    with pytest.raises(half_passes.VmapRefusedError, match="the gradients of vmap are others"):
        half_passes.check_same_pass(vmapped, 0, separate(1.2))


def test_a_network_that_comes_to_do_something_else_is_compared_again():
    model, probe = Listed(), sy.FirstOrder(every=2)
    model.listed = False
    judge = balancer(probe=probe)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        judge(model, batch(), optimizer)
    model.listed = True
    assert probe.vmapping.reason is None
    probe.steps.fill_(1999)  # the thousandth vote is next
    judge(model, batch(), optimizer)
    assert "the gradients of vmap are others" in probe.vmapping.reason


def test_an_error_later_on_is_no_error_of_the_vote():
    model, probe = Applied(torch.tanh), sy.FirstOrder()
    judge = balancer(probe=probe)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    judge(model, batch(), optimizer)
    model.function = doubled_if_large
    judge(model, batch(), optimizer).backward()
    assert "data-dependent control flow" in probe.vmapping.reason
    assert judge.last.vote


def test_an_error_of_the_model_itself_is_raised():
    class Rewriting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 1)

        def forward(self, x):
            x = x + 0
            y = self.layer(x)
            x.mul_(0.5)
            return y + x.mean(1, keepdim=True)

    model = Rewriting()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        balancer(probe=sy.FirstOrder())(model, batch(), torch.optim.SGD(model.parameters(), lr=0.1))


def test_the_live_model_is_left_unchanged():
    model, probe = layers(nn.ReLU()), sy.FirstOrder()
    before = copy.deepcopy(model.state_dict())
    losses = balancer().domain_losses
    for _ in range(2):
        probe.measure(model, batch(), losses=losses, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert probe.vmapping.reason is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
