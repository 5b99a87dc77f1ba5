"""First-order values against exact ones, and the gradients they leave for the outer step."""

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import steelyard as sy
from steelyard.probing.optimizer_step import linear_steps
from toys import balancer, batch, everything, first_halves, smooth, take_step

STEPS = {
    "SGD": lambda p, lr: torch.optim.SGD(p, lr=lr),
    "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, weight_decay=0.01, dampening=0.1),
    "Nesterov": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, nesterov=True, weight_decay=0.02),
    "maximize": lambda p, lr: torch.optim.SGD(p, lr=lr, maximize=True, weight_decay=0.1),
    "AdamW": lambda p, lr: torch.optim.AdamW(p, lr=lr, weight_decay=0.1),
}
# At once by vmap, one pass per half, and apart from the outer step.
PATHS = {"vmap": {}, "one by one": {}, "apart": {"reuse": False}}
steps = pytest.mark.parametrize("name", STEPS)
paths = pytest.mark.parametrize("path", PATHS)


def probe_on(path):
    """A probe that takes this path."""
    probe = sy.FirstOrder(**PATHS[path])
    if path == "one by one":
        probe.vmapping.refuse(ValueError("a test"))
    return probe


def took_path(probe, path):
    """Whether a probe took the path that it should."""
    shares = path != "apart"
    return (probe.reuse.reason is None) and (not shares or (probe.vmapping.reason is None) == (path == "vmap"))


def measured(probe, model, optimizer, samples, **kwargs):
    judge = balancer(probe=probe, domains=tuple(samples), **kwargs)
    judge(model, samples, optimizer)
    return judge.last.measured


def warmed(name, model, rate):
    """An optimizer with state, set to a rate."""
    optimizer = STEPS[name](model.parameters(), 1e-3)
    for seed in (7, 8):
        take_step(sum(mse_loss(model(x), y) for x, y in batch(seed=seed, dtype=torch.float64).values()), optimizer)
    for group in optimizer.param_groups:
        group["lr"] = rate
    return optimizer


@steps
@paths
@pytest.mark.parametrize("warm", [False, True])
def test_the_remainder_falls_fourfold_as_the_rate_is_halved(name, path, warm):
    remainders = []
    for rate in (4e-4, 2e-4, 1e-4):
        torch.manual_seed(1)
        model, samples = smooth().double(), batch(sizes=(8, 8), dtype=torch.float64)
        optimizer = warmed(name, model, rate) if warm else STEPS[name](model.parameters(), rate)
        exact = measured(sy.InnerLoop(), model, optimizer, samples)
        probe = probe_on(path)
        found = measured(probe, model, optimizer, samples)
        assert took_path(probe, path)
        remainders.append(max(abs(found[d] - exact[d]) for d in samples))
    for larger, smaller in pairwise(remainders):
        assert larger / smaller == pytest.approx(4, rel=0.15)


@steps
@paths
@pytest.mark.parametrize("sizes", [(6, 4, 5), (4, 4, 4)])
def test_exact_where_the_loss_is_linear_in_the_parameters(name, path, sizes):
    model, names = nn.Linear(6, 1).double(), ("a", "b", "c")
    samples = batch(sizes=sizes, names=names, dtype=torch.float64)
    optimizer = warmed(name, model, 0.3)
    loss = lambda o, y: (o * y).mean()  # noqa: E731
    exact = measured(sy.InnerLoop(), model, optimizer, samples, loss=loss)
    found = measured(probe_on(path), model, optimizer, samples, loss=loss)
    assert found == pytest.approx(exact, rel=1e-9)


def test_linear_steps_are_the_optimizers_own():
    for name in ("SGD", "momentum", "Nesterov", "maximize"):
        for warm in (False, True):
            model = smooth().double()
            optimizer = warmed(name, model, 0.1) if warm else STEPS[name](model.parameters(), 0.1)
            steps = linear_steps(optimizer, "optimizer")
            twin, stepper = copy.deepcopy((model, optimizer))
            for p, q in zip(model.parameters(), twin.parameters(), strict=True):
                q.grad = torch.randn_like(p)
            stepper.step()
            for p, q in zip(model.parameters(), twin.parameters(), strict=True):
                step = steps[p]
                expected = step.factor * q.grad + step.decay * p
                expected = expected + (step.inertia * step.buffer if step.buffer is not None else 0)
                torch.testing.assert_close(q - p, expected, rtol=1e-10, atol=1e-14)
    assert linear_steps(torch.optim.Adam(smooth().parameters()), "optimizer") is None


def test_a_plain_step_ignores_the_optimizers_rule():
    model, samples = smooth().double(), batch(dtype=torch.float64)
    adam, sgd = torch.optim.Adam(model.parameters(), lr=1e-5), torch.optim.SGD(model.parameters(), lr=1e-5)
    plain = measured(sy.FirstOrder(), model, sgd, samples)
    assert measured(sy.FirstOrder(step="sgd"), model, adam, samples) == pytest.approx(plain, rel=1e-12)


def normalised():
    """A small network with batch normalisation, its running statistics not those of any batch."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)).double()
    model[1].running_mean.normal_()
    model[1].running_var.uniform_(0.5, 2)
    return model


def gradient_of(loss, model):
    return torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, list(model.parameters()))])


def test_running_statistics_are_left_unchanged_and_judge_the_step_alone():
    model, samples, rate = normalised(), batch(dtype=torch.float64), 0.01
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), rate)
    found = sy.FirstOrder().measure(model, samples, losses=balancer().domain_losses, optimizer=optimizer).values
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), before.values(), strict=True))
    halves = first_halves(samples, 3)
    replica = copy.deepcopy(model)
    trained = [gradient_of(mse_loss(replica(x), y), replica) for (x, y), _ in halves.values()]
    judge = copy.deepcopy(model).eval()  # on the statistics from before the steps
    level = sum(mse_loss(judge(x), y) for _, (x, y) in halves.values())
    total = gradient_of(level, judge)
    expected = [level.item() - rate * torch.dot(gradient, total).item() for gradient in trained]
    assert found.tolist() == pytest.approx(expected, rel=1e-9)


def test_nothing_reaches_the_live_model_where_a_pass_changes_parameters():
    model = nn.Sequential(nn.Embedding(6, 8, max_norm=0.5), nn.Flatten(), nn.Linear(16, 1))
    samples = {name: (torch.randint(6, (4, 2)), torch.randn(4, 1)) for name in "ab"}
    before = model[0].weight.clone()
    judge = balancer(domains=("a", "b"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sy.FirstOrder(reuse=False).measure(model, samples, losses=judge.domain_losses, optimizer=optimizer)
    assert torch.equal(model[0].weight, before)


def test_complex_parameters_and_sparse_gradients():
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(5, 6, sparse=True)
            self.weight = nn.Parameter(torch.randn(6, 1, dtype=torch.complex64))

        def forward(self, x):
            return (self.words(x).to(torch.complex64) @ self.weight).abs()

    torch.manual_seed(0)
    model = Complex()
    samples = {name: (torch.randint(5, (8,)), torch.randn(8, 1)) for name in "ab"}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    judge = balancer(domains=("a", "b"))
    exact, found = (
        probe.measure(model, samples, losses=judge.domain_losses, optimizer=optimizer).values
        for probe in (sy.InnerLoop(), sy.FirstOrder())
    )
    gap = (exact[0] - exact[1]).item()
    assert (found[0] - found[1]).item() == pytest.approx(gap, rel=0.05)
    assert abs(gap) > 1e-3


def test_on_batch_statistics_every_candidate_has_its_own():
    model, samples, rate = normalised(), batch(dtype=torch.float64), 0.01
    probe = sy.FirstOrder(meta_test="batch")
    judge = balancer(probe=probe)
    finding = probe.find(
        model, samples, losses=judge.domain_losses, optimizer=torch.optim.SGD(model.parameters(), rate)
    )
    assert finding.shared is None
    assert probe.reuse.reason == "the samples of a batch meet in BatchNorm1d"
    twin = copy.deepcopy(model)
    halves = first_halves(samples, 3)

    def gradient(loss):
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(twin.parameters()))])

    outputs = twin(torch.cat([x for _, (x, _) in halves.values()])).split(3)
    level = sum(mse_loss(o, y) for o, (_, (_, y)) in zip(outputs, halves.values(), strict=True))
    total = gradient(level)
    expected = [
        level.item() - rate * torch.dot(gradient(mse_loss(twin(x), y)), total).item() for (x, y), _ in halves.values()
    ]
    assert finding.measurement.values.tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("mode", ["eval", "batch"])
def test_a_half_too_small_for_batch_normalisation_casts_no_vote(mode):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    judge = balancer(probe=sy.FirstOrder(meta_test=mode))
    take_step(judge(model, batch(sizes=(6, 2)), optimizer), optimizer)
    assert judge.last.outcome is sy.Outcome.TOO_FEW


def test_votes_on_each_nth_step_and_an_absent_or_small_domain():
    model, names = smooth(), ("a", "b", "c")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    judge = balancer(domains=names, probe=sy.FirstOrder(every=2))
    samples = batch(sizes=(6, 1, 4), names=names)
    plain = sum(mse_loss(model(x), y) for x, y in samples.values()) / 3
    expected = torch.autograd.grad(plain, list(model.parameters()))
    for step in range(2):
        model.zero_grad()
        loss = judge(model, samples, optimizer)
        assert (judge.last.outcome is sy.Outcome.UPDATED) is (step == 1)
        judge.weighting.votes_cast.zero_()
    assert set(judge.last.measured) == {"a", "c"}
    assert list(judge.last.losses) == list(names)
    weights = judge.last.weights
    plain = sum(weights[n] * mse_loss(model(x), y) for n, (x, y) in samples.items())
    expected = torch.autograd.grad(plain, list(model.parameters()))
    loss.backward()
    assert loss.item() == pytest.approx(plain.item(), rel=1e-6)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    judge(model, {"a": samples["a"]}, optimizer)
    judge(model, {"a": samples["a"]}, optimizer)
    assert judge.last.outcome is sy.Outcome.TOO_FEW


def test_agrees_with_the_exact_vote_on_most_steps():
    torch.manual_seed(0)
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
    exact, approximate = balancer(probe=sy.InnerLoop()), balancer(probe=sy.FirstOrder())
    same = 0
    for seed in range(60):
        approximate(model, batch(seed=seed), optimizer)
        take_step(exact(model, batch(seed=seed), optimizer), optimizer)
        same += exact.last.vote == approximate.last.vote
    assert same >= 50


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reuse": "perhaps"}, "reuse must be True, False or 'detect'; got 'perhaps'"),
        ({"reuse": True, "gather": True}, "reuse=True needs votes cast on the outer step's own samples"),
        ({"step": "adam"}, "step must be 'optimizer' or 'sgd'; got 'adam'"),
    ],
)
def test_refuses_wrong_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        sy.FirstOrder(**arguments)


def test_an_objective_that_ignores_the_model_is_refused():
    model = smooth()
    judge = balancer(objective=lambda _, pair: mse_loss(model(pair[0]), pair[1]), probe=sy.FirstOrder())
    with pytest.raises(ValueError, match="must run the model that it is given"):
        judge(model, batch(), torch.optim.SGD(model.parameters(), lr=0.1))


def test_dropout_and_batch_normalisation_are_not_shared_and_leave_no_trace():
    results = []
    for probe in (None, sy.FirstOrder(), sy.FirstOrder(meta_test="batch")):
        torch.manual_seed(4)
        model = everything()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        judge = balancer(weighting=sy.Fixed([0.3, 0.7]), probe=probe)
        for seed in range(4):
            take_step(judge(model, batch(seed=seed), optimizer), optimizer)
        results.append(model.state_dict())
        assert bool(judge.last.measured) is (probe is not None)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0].values(), other.values(), strict=True))


@pytest.mark.parametrize("make", [lambda: probe_on("one by one"), lambda: sy.InnerLoop(reuse=True)])
def test_no_pass_over_a_half_keeps_more_than_half_of_the_samples_in_memory(make):
    model, sizes = nn.Sequential(nn.Linear(6, 1), nn.PReLU()), []
    model.register_forward_hook(lambda _, inputs, output: sizes.append(len(output)) if output.requires_grad else None)
    balancer(probe=make())(model, batch(), torch.optim.SGD(model.parameters(), lr=0.1)).backward()
    assert max(sizes) <= 6  # of twelve, also in the audit of the first vote


def test_after_the_first_vote_one_pass_is_all_that_is_run():
    model, calls = nn.Linear(6, 1), []
    judge = balancer(probe=sy.FirstOrder())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    judge(model, batch(), optimizer).backward()  # compared with separate passes, and audited
    model.register_forward_hook(lambda _, inputs, output: calls.append(output))
    judge(model, batch(), optimizer).backward()
    assert len(calls) == 1
