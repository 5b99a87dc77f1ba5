"""First-order values against exact ones, and the gradients they leave for the outer step."""

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import steelyard as sy
from steelyard.probing.linear_step import linear_steps
from toys import balancer, batch, everything, first_halves, smooth, take_step

STEPS = {
    "SGD": lambda p, lr: torch.optim.SGD(p, lr=lr),
    "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, weight_decay=0.01, dampening=0.1),
    "Nesterov": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, nesterov=True, weight_decay=0.02),
    "maximize": lambda p, lr: torch.optim.SGD(p, lr=lr, maximize=True, weight_decay=0.1),
    "AdamW": lambda p, lr: torch.optim.AdamW(p, lr=lr, weight_decay=0.1),
}
WAYS = {
    "domains": {},
    "domains apart": {"reuse": False},
    "sum": {"along": "sum"},
    "sum apart": {"along": "sum", "reuse": False},
}
# Along the sum a step must be linear in the gradient, and AdamW's is not.
steps_and_ways = pytest.mark.parametrize(
    ("name", "way"), [(name, way) for name in STEPS for way in WAYS if name != "AdamW" or "sum" not in way]
)


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


@steps_and_ways
@pytest.mark.parametrize("warm", [False, True])
def test_the_remainder_falls_fourfold_as_the_rate_is_halved(name, way, warm):
    remainders = []
    for rate in (4e-4, 2e-4, 1e-4):
        torch.manual_seed(1)
        model, samples = smooth().double(), batch(sizes=(8, 6), dtype=torch.float64)
        optimizer = warmed(name, model, rate) if warm else STEPS[name](model.parameters(), rate)
        exact = measured(sy.InnerLoop(), model, optimizer, samples)
        found = measured(sy.FirstOrder(**WAYS[way]), model, optimizer, samples)
        remainders.append(max(abs(found[d] - exact[d]) for d in samples))
    for larger, smaller in pairwise(remainders):
        assert larger / smaller == pytest.approx(4, rel=0.15)


@steps_and_ways
def test_exact_where_the_loss_is_linear_in_the_parameters(name, way):
    model, names = nn.Linear(6, 1).double(), ("a", "b", "c")
    samples = batch(sizes=(6, 4, 5), names=names, dtype=torch.float64)
    optimizer = warmed(name, model, 0.3)
    loss = lambda o, y: (o * y).mean()  # noqa: E731
    exact = measured(sy.InnerLoop(), model, optimizer, samples, loss=loss)
    found = measured(sy.FirstOrder(**WAYS[way]), model, optimizer, samples, loss=loss)
    assert found == pytest.approx(exact, rel=1e-9 if way.startswith("domains") else 1e-6)


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
    for along in ("domains", "sum"):
        plain = measured(sy.FirstOrder(along=along), model, sgd, samples)
        assert measured(sy.FirstOrder(step="sgd", along=along), model, adam, samples) == pytest.approx(plain, rel=1e-12)


class Rewritten(nn.BatchNorm1d):
    """As many write it by hand: other tensors take the places of the statistics, and the scale is one more."""

    def forward(self, x):
        mean, variance = self.running_mean, self.running_var
        if self.training:
            mean, variance = x.mean(0), x.var(0, unbiased=False)
            self.running_mean = (1 - self.momentum) * self.running_mean + self.momentum * mean.detach()
            self.running_var = (1 - self.momentum) * self.running_var + self.momentum * variance.detach()
        return (x - mean) / (variance + self.eps).sqrt() * (1 + self.weight) + self.bias


class Noise(nn.Module):
    """Draws from a generator of its own."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x):
        return x + 0.1 * torch.randn(x.shape, generator=self.generator, dtype=x.dtype) if self.training else x


class Doubled(torch.nn.Module):
    def forward(self, weight):
        return 2 * weight


def parametrized():
    return nn.utils.parametrize.register_parametrization(nn.BatchNorm1d(8), "weight", Doubled())


def twice(layer):
    return nn.Sequential(layer, nn.Linear(8, 8), layer)


def sharing():
    one, other = nn.BatchNorm1d(8), nn.BatchNorm1d(8)
    other.weight, other.bias = one.weight, one.bias
    return nn.Sequential(one, nn.Linear(8, 8), other)


NORMS = {
    "plain": lambda: nn.BatchNorm1d(8),
    "no scale": lambda: nn.BatchNorm1d(8, affine=False),
    "frozen scale": lambda: nn.BatchNorm1d(8).requires_grad_(False),
    "shared scale": sharing,
    "parametrized": parametrized,
    "rewritten": lambda: Rewritten(8),
    "used twice": lambda: twice(nn.BatchNorm1d(8)),
    "one that is frozen": lambda: nn.Sequential(nn.BatchNorm1d(8), nn.BatchNorm1d(8).eval()),
    "of all ranks": lambda: nn.SyncBatchNorm(8),
    "cumulative": lambda: nn.BatchNorm1d(8, momentum=None),
    "of images": lambda: nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.BatchNorm2d(2), nn.Flatten()),
    "of instances": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 4)), nn.InstanceNorm1d(2, affine=True, track_running_stats=True), nn.Flatten()
    ),
    "with dropout": lambda: nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.3)),
    "with noise": lambda: nn.Sequential(nn.BatchNorm1d(8), Noise()),
}


def normalised(kind):
    """A small network of one kind of normalisation, its running statistics not those of any batch."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 8), NORMS[kind](), nn.Tanh(), nn.Linear(8, 1)).double()
    for layer in keeping(model):
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2)
        for parameter in layer.parameters():
            nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def keeping(model):
    """The layers that keep running statistics."""
    return [module for module in model.modules() if getattr(module, "running_mean", None) is not None]


def set_pace(model, pace):
    """How fast running statistics follow."""
    for layer in keeping(model):
        if layer.momentum is None:
            layer.num_batches_tracked.fill_(round(1 / pace) - 1)
        else:
            layer.momentum = pace


def against_exact(make, optimize, **settings):
    """The largest error to first order, and the gap that exact values leave, at ever smaller paces."""
    arguments = {"objective": settings.pop("objective")} if "objective" in settings else {}
    samples, found = batch(sizes=(8, 6), dtype=torch.float64), []
    for pace in (1e-3, 5e-4, 2.5e-4):
        model = make()
        set_pace(model, pace)
        optimizer = optimize(model.parameters(), 0.1 * pace)
        before = copy.deepcopy(model.state_dict())
        values = []
        for probe in (sy.InnerLoop(), sy.FirstOrder(**settings)):
            torch.manual_seed(3)
            judge = balancer(probe=probe, **arguments)
            values.append(probe.measure(model, samples, losses=judge.domain_losses, optimizer=optimizer).values)
            assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), before.values(), strict=True))
        found.append(((values[0] - values[1]).abs().max().item(), (values[0][0] - values[0][1]).abs().item()))
    return found


def assert_first_order(found):
    for (larger, _), (smaller, _) in pairwise(found):
        assert larger / smaller == pytest.approx(4, rel=0.15)
    assert found[-1][0] < 0.02 * found[-1][1]


@pytest.mark.parametrize("along", ["domains", "sum"])
@pytest.mark.parametrize("kind", NORMS)
def test_what_a_step_does_to_running_statistics_is_part_of_it(kind, along):
    assert_first_order(against_exact(lambda: normalised(kind), STEPS["SGD"], along=along))


def test_running_statistics_count_with_any_optimizer_and_scaler():
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    assert_first_order(against_exact(lambda: normalised("plain"), STEPS["AdamW"], scaler=scaler))


def test_penalties_on_scales_are_no_effect_of_running_statistics():
    def objective(model, pair):
        scales = [p for name, p in model.named_parameters() if name == "1.weight"]
        return mse_loss(model(pair[0]), pair[1]) + 0.3 * scales[0].abs().sum()

    assert_first_order(against_exact(lambda: normalised("plain"), STEPS["SGD"], objective=objective))


@pytest.mark.parametrize("kind", ["plain", "rewritten"])
def test_running_statistics_count_under_autocast(kind):
    model = normalised(kind).float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    judge, samples, gaps = balancer(), batch(sizes=(8, 6)), []
    for enabled in (False, True):  # exact votes are no measure here: bfloat16 rounds away what is between them
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            found = sy.FirstOrder().measure(model, samples, losses=judge.domain_losses, optimizer=optimizer).values
        gaps.append((found[0] - found[1]).item())
    assert gaps[1] == pytest.approx(gaps[0], rel=0.1)
    assert abs(gaps[0]) > 0.005


@pytest.mark.parametrize("along", ["domains", "sum"])
def test_statistics_far_from_a_batchs_own_do_not_run_away(along):
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 1)).double()
    samples = {name: (100 * x, y) for name, (x, y) in batch(dtype=torch.float64).items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    judge = balancer(loss=lambda o, y: (o * y).mean())
    exact, found = (
        probe.measure(model, samples, losses=judge.domain_losses, optimizer=optimizer).values
        for probe in (sy.InnerLoop(), sy.FirstOrder(along=along))
    )
    assert found.tolist() == pytest.approx(exact.tolist(), rel=1e-9)  # σ² goes from 1 to 1000: that part is known
    assert abs(exact[0] - exact[1]) > 0.01


def test_nothing_reaches_the_live_model_where_a_pass_changes_parameters():
    model = nn.Sequential(nn.Embedding(6, 8, max_norm=0.5), nn.Flatten(), nn.Linear(16, 1))
    samples = {name: (torch.randint(6, (4, 2)), torch.randn(4, 1)) for name in "ab"}
    before = model[0].weight.clone()
    judge = balancer(domains=("a", "b"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for probe in (sy.FirstOrder(reuse=False), sy.FirstOrder(along="sum", reuse=False)):
        probe.measure(model, samples, losses=judge.domain_losses, optimizer=optimizer)
        assert torch.equal(model[0].weight, before)


class Foreign(nn.Module):
    """Batch normalisation by somebody else: nothing about the class says that samples meet."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        if not self.training:
            return self.scale * (x - self.mean)
        self.mean.lerp_(x.mean(0).detach(), 1e-3)
        return self.scale * (x - x.mean(0)) / x.std(0)


def foreign():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 8), Foreign(), nn.Tanh(), nn.Linear(8, 1)).double()


def test_domains_do_not_meet_in_a_finite_difference_either():
    samples, found = batch(sizes=(8, 6), dtype=torch.float64), []
    for along in ("domains", "sum"):
        model = foreign()
        probe = sy.FirstOrder(along=along, meta_test="batch")
        found.append(measured(probe, model, torch.optim.SGD(model.parameters(), lr=0.01), samples))
        assert probe.reuse.reason is not None
    assert found[1] == pytest.approx(found[0], rel=1e-6)


@pytest.mark.parametrize("along", ["domains", "sum"])
def test_a_buffer_that_is_no_running_statistic_is_pointed_out(along):
    model, samples = foreign(), batch(dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with pytest.warns(UserWarning, match=r"changes the buffer '1\.mean'"):
        measured(sy.FirstOrder(along=along), model, optimizer, samples)
    measured(sy.FirstOrder(along=along, meta_test="batch"), model, optimizer, samples)  # there it judges nothing


def test_a_layer_that_is_run_past_its_hooks_is_pointed_out():
    class Direct(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(6)
            self.output = nn.Linear(6, 1)

        def forward(self, x):
            return self.output(self.norm.forward(x))

    model = Direct()
    with pytest.warns(UserWarning, match=r"changes the buffer 'norm\.running_mean'"):
        measured(sy.FirstOrder(), model, torch.optim.SGD(model.parameters(), lr=0.01), batch())


def test_a_hook_that_looks_at_a_scale_is_no_effect_of_running_statistics():
    def make():
        model = normalised("plain")
        model[1].register_forward_hook(lambda layer, _, output: output + 0.3 * layer.weight.abs().sum())
        return model

    assert_first_order(against_exact(make, STEPS["SGD"]))


@pytest.mark.parametrize("along", ["domains", "sum"])
def test_complex_parameters_and_sparse_gradients(along):
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
        for probe in (sy.InnerLoop(), sy.FirstOrder(along=along))
    )
    gap = (exact[0] - exact[1]).item()
    assert (found[0] - found[1]).item() == pytest.approx(gap, rel=0.05)
    assert abs(gap) > 1e-3


@pytest.mark.parametrize("along", ["domains", "sum"])
def test_on_batch_statistics_every_candidate_has_its_own(along):
    model, samples, rate = normalised("plain"), batch(dtype=torch.float64), 0.01
    probe = sy.FirstOrder(meta_test="batch", along=along)
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


@pytest.mark.parametrize("along", ["domains", "sum"])
@pytest.mark.parametrize("mode", ["eval", "batch"])
def test_a_half_too_small_for_batch_normalisation_casts_no_vote(mode, along):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    judge = balancer(probe=sy.FirstOrder(meta_test=mode, along=along))
    take_step(judge(model, batch(sizes=(6, 2)), optimizer), optimizer)
    assert judge.last.outcome is sy.Outcome.TOO_FEW


@pytest.mark.parametrize("along", ["domains", "sum"])
def test_votes_on_each_nth_step_and_an_absent_or_small_domain(along):
    model, names = smooth(), ("a", "b", "c")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    judge = balancer(domains=names, probe=sy.FirstOrder(every=2, along=along))
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
        ({"along": "both"}, "along must be 'domains' or 'sum'; got 'both'"),
        ({"reuse": "perhaps"}, "reuse must be True, False or 'detect'; got 'perhaps'"),
        ({"reuse": True, "gather": True}, "reuse=True needs votes cast on the outer step's own samples"),
        ({"step": "adam"}, "step must be 'optimizer' or 'sgd'; got 'adam'"),
    ],
)
def test_refuses_wrong_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        sy.FirstOrder(**arguments)


def test_the_sum_refuses_what_it_cannot_do():
    model = smooth()
    adam, sgd = torch.optim.Adam(model.parameters()), torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="needs a step that is linear in the gradient; Adam's is not"):
        measured(sy.FirstOrder(along="sum"), model, adam, batch())
    judge = balancer(probe=sy.FirstOrder(along="sum"), objective=lambda m, pair: mse_loss(m(pair[0]), pair[1]))
    with pytest.raises(ValueError, match="needs loss=, not objective="):
        judge(model, batch(), sgd)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ValueError, match="autocast is too coarse"):
        measured(sy.FirstOrder(along="sum"), model, sgd, batch())


def test_an_objective_that_ignores_the_model_is_refused():
    model = smooth()
    judge = balancer(objective=lambda _, pair: mse_loss(model(pair[0]), pair[1]), probe=sy.FirstOrder())
    with pytest.raises(ValueError, match="must run the model that it is given"):
        judge(model, batch(), torch.optim.SGD(model.parameters(), lr=0.1))


def test_dropout_and_batch_normalisation_are_not_shared_and_leave_no_trace():
    results = []
    for probe in (None, sy.FirstOrder(), sy.FirstOrder(along="sum"), sy.FirstOrder(meta_test="batch")):
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


@pytest.mark.parametrize("probe", [sy.FirstOrder(), sy.InnerLoop(reuse=True)], ids=lambda probe: type(probe).__name__)
def test_no_pass_over_a_half_keeps_more_than_half_of_the_samples_in_memory(probe):
    model, sizes = nn.Sequential(nn.Linear(6, 1), nn.PReLU()), []
    model.register_forward_hook(lambda _, inputs, output: sizes.append(len(output)) if output.requires_grad else None)
    balancer(probe=probe)(model, batch(), torch.optim.SGD(model.parameters(), lr=0.1)).backward()
    assert max(sizes) == 6  # of twelve, also where the first vote looks whether samples meet


@pytest.mark.parametrize("along", ["domains", "sum"])
def test_a_joint_pass_is_all_that_is_run_with_gradients(along):
    model, sizes = nn.Linear(6, 1), []
    judge = balancer(probe=sy.FirstOrder(along=along))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    judge(model, batch(), optimizer).backward()  # audited
    model.register_forward_hook(lambda _, inputs, output: sizes.append(len(output)) if output.requires_grad else None)
    judge(model, batch(), optimizer).backward()
    assert sizes == [12]
