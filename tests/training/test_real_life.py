"""What people do around a loss: scaling, accumulating, clipping, compiling."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import steelyard as sy
from steelyard.probing import passes
from toys import balancer, batch, first_halves, reference_hypothetical_losses, smooth, take_step


def sgd(model, rate=0.05):
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def states_equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def test_an_enabled_gradient_scaler_changes_nothing_but_the_scale():
    plain, scaled = (model := smooth()), copy.deepcopy(model)
    optimizers = sgd(plain), sgd(scaled)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    assert scaler.is_enabled()
    judges = balancer(probe=sy.InnerLoop()), balancer(probe=sy.InnerLoop(scaler=scaler))
    for seed in range(6):
        take_step(judges[0](plain, batch(seed=seed), optimizers[0]), optimizers[0])
        loss = judges[1](scaled, batch(seed=seed), optimizers[1])
        optimizers[1].zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizers[1])
        scaler.step(optimizers[1])
        scaler.update()
        assert judges[0].last.measured == judges[1].last.measured  # scales are powers of two
    assert scaler.get_scale() > 1024
    assert states_equal(plain, scaled)


class SmallGradients(nn.Module):
    """Gradients below what float16 can tell from nought, unless the loss is scaled up."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.last(self.first(x))


def test_float16_gradients_do_not_underflow_with_a_scaler():
    model = SmallGradients()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e7)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    found = []
    for given in (None, scaler):
        judge = balancer(probe=sy.InnerLoop(scaler=given), loss=lambda o, y: 1e-9 * mse_loss(o.float(), y))
        with torch.autocast("cpu", dtype=torch.float16):
            judge(model, batch(), optimizer)
        found.append(judge.last)
    exact = reference_hypothetical_losses(
        model, optimizer, first_halves(batch(), 3), loss=lambda o, y: 1e-9 * mse_loss(o, y)
    )
    assert found[1].measured == pytest.approx(exact, rel=0.02)
    assert found[0].measured != pytest.approx(exact, rel=0.02)


def test_autocast_sees_the_stepped_weights():
    """Autocast keeps half-precision copies of weights; a step taken inside it must not be judged by the old ones."""
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    judge = balancer(probe=sy.InnerLoop(), loss=lambda o, y: mse_loss(o.float(), y))
    with torch.autocast("cpu", dtype=torch.float16):
        judge(model, batch(), optimizer)
    exact = reference_hypothetical_losses(model, optimizer, first_halves(batch(), 3))
    assert judge.last.measured == pytest.approx(exact, rel=0.02)


def test_a_step_that_the_scaler_skips_leaves_the_model_alone():
    model = smooth()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    samples = batch()
    samples["a"][1][0] = float("inf")
    judge = balancer(probe=sy.InnerLoop(scaler=scaler))
    before = copy.deepcopy(model)
    scaler.scale(judge(model, samples, optimizer)).backward()
    scaler.step(optimizer)
    scaler.update()
    assert judge.last.reason == "a value was not finite"
    assert scaler.get_scale() == 512
    assert states_equal(model, before)


def test_accumulated_and_clipped_gradients_are_those_of_a_plain_loop():
    plain, mine = (model := smooth()), copy.deepcopy(model)
    optimizers = sgd(plain), sgd(mine)
    judge = balancer(weighting=sy.Fixed([0.25, 0.75]), probe=sy.InnerLoop())
    for start in (0, 3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for seed in range(start, start + 3):
            (xa, ya), (xb, yb) = batch(seed=seed).values()
            a, b = plain(torch.cat([xa, xb])).split(6)
            ((0.25 * mse_loss(a, ya) + 0.75 * mse_loss(b, yb)) / 3).backward()
            (judge(mine, batch(seed=seed), optimizers[1]) / 3).backward()
        for model, optimizer in zip((plain, mine), optimizers, strict=True):
            assert nn.utils.clip_grad_norm_(model.parameters(), 1.0) > 1
            optimizer.step()
    assert states_equal(plain, mine)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("compiler")
def test_compiled_models_vote_like_eager_ones(in_place):
    eager = smooth()
    twin = copy.deepcopy(eager)
    calls = []
    twin[1].register_forward_hook(lambda *_: calls.append(torch.compiler.is_compiling()))
    if in_place:
        twin.compile(backend="aot_eager")
        compiled = twin
    else:
        compiled = torch.compile(twin, backend="aot_eager")
    optimizers = sgd(eager), sgd(compiled)
    judges = balancer(probe=sy.InnerLoop()), balancer(probe=sy.InnerLoop())
    for seed in range(4):
        for judge, model, optimizer in zip(judges, (eager, compiled), optimizers, strict=True):
            take_step(judge(model, batch(seed=seed), optimizer), optimizer)
        assert judges[1].last.measured == pytest.approx(judges[0].last.measured, rel=1e-5)
    assert judges[0].weights == judges[1].weights
    for a, b in zip(eager.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert any(calls), "the live model was not compiled"


def test_a_model_in_double_precision_and_channels_last():
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 1, 3)).double()
    model = model.to(memory_format=torch.channels_last)
    x = torch.randn(4, 2, 8, 8, dtype=torch.float64).to(memory_format=torch.channels_last)
    samples = {name: (x * (d + 1), torch.zeros(4, 1, 4, 4, dtype=torch.float64)) for d, name in enumerate("ab")}
    optimizer = sgd(model)
    judge = balancer(probe=sy.InnerLoop())
    expected = reference_hypothetical_losses(model, optimizer, first_halves(samples, 2))
    judge(model, samples, optimizer)
    assert judge.last.measured == pytest.approx(expected, rel=1e-12)


class DeepSupervision(nn.Module):
    """Two outputs in training mode, one in evaluation mode."""

    def __init__(self, norm):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), norm, nn.Tanh())
        self.heads = nn.ModuleList([nn.Linear(8, 1), nn.Linear(8, 1)])

    def forward(self, x):
        outputs = [head(self.body(x)) for head in self.heads]
        return outputs if self.training else outputs[0]


def supervised_loss(outputs, targets):
    first, second = outputs
    return mse_loss(first, targets) + mse_loss(second, targets)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.LayerNorm])
@pytest.mark.parametrize("probe", [sy.InnerLoop, sy.FirstOrder])
def test_a_model_that_returns_something_else_in_evaluation_mode(probe, norm):
    model = DeepSupervision(norm(8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    judge = balancer(probe=probe(), loss=supervised_loss)
    with pytest.raises(ValueError, match=r'in evaluation mode \(ValueError: .*pass meta_test="batch"'):
        judge(model, batch(), optimizer)
    judge = balancer(probe=probe(meta_test="batch"), loss=supervised_loss)
    judge(model, batch(), optimizer)
    assert judge.last.outcome is sy.Outcome.UPDATED


@pytest.mark.parametrize("probe", [sy.InnerLoop, sy.FirstOrder])
@pytest.mark.parametrize("count", [2, 4, 16])
def test_float16_loses_no_more_votes_than_outer_steps(count, probe):
    names = tuple(f"domain {i}" for i in range(count))
    model = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=10)
    judge = balancer(domains=names, probe=probe(scaler=scaler), loss=nn.functional.cross_entropy)
    steps, skipped = 60, 0
    for _ in range(steps):
        samples = {name: (torch.randn(8, 16), torch.randint(0, 4, (8,))) for name in names}
        with torch.autocast("cpu", dtype=torch.float16):
            loss = judge(model, samples, optimizer)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < scale
    assert skipped  # the scale is as high as float16 allows: gradients shared with the outer step let it see that
    assert steps - judge.tally["updated"] <= skipped + 0.02 * steps


def test_float16_votes_are_taken_again_with_a_lower_scale_where_a_domain_overflows():
    """A domain that hardly counts in the outer loss has gradients far above those that the scale is made for."""
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = sgd(model, rate=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=1000)
    losses = {"a": lambda o, y: 1e4 * nn.functional.cross_entropy(o, y), "b": nn.functional.cross_entropy}
    judge = balancer(weighting=sy.Fixed([1e-5, 1 - 1e-5]), probe=sy.InnerLoop(scaler=scaler), loss=losses)
    for _ in range(5):
        samples = {name: (torch.randn(8, 16), torch.randint(0, 4, (8,))) for name in ("a", "b")}
        with torch.autocast("cpu", dtype=torch.float16):
            loss = judge(model, samples, optimizer)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert all(torch.isfinite(torch.tensor(value)) for value in judge.last.measured.values())
    assert scaler.get_scale() == 2.0**14


def test_float16_gradients_of_a_half_are_scaled_as_in_the_outer_loss(monkeypatch):
    retries = []
    real = passes._are_finite
    monkeypatch.setattr(passes, "_are_finite", lambda gradients: retries.append(real(gradients)) or retries[-1])
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    names = tuple(f"domain {i}" for i in range(16))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18)  # what the outer loss, a sixteenth of each, just bears
    judge = balancer(domains=names, probe=sy.InnerLoop(scaler=scaler), loss=nn.functional.cross_entropy)
    samples = {name: (torch.randn(8, 16), torch.randint(0, 4, (8,))) for name in names}
    with torch.autocast("cpu", dtype=torch.float16):
        judge(model, samples, sgd(model))
    assert len(retries) == 16
    assert all(retries)


def test_a_loss_that_bears_both_forms_of_the_outputs_is_not_shared():
    model = DeepSupervision(nn.LayerNorm(8))
    probe = sy.InnerLoop(reuse="detect")
    judge = balancer(probe=probe, loss=lambda o, y: mse_loss(o[0] if isinstance(o, list) else o, y))
    judge(model, batch(), sgd(model)).backward()
    assert judge.last.outcome is sy.Outcome.UPDATED
    assert "another form in evaluation mode" in probe.reuse.reason


def test_a_lack_of_memory_is_not_blamed_on_the_mode():
    model = smooth()

    def loss(outputs, targets):
        if not torch.is_grad_enabled():
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return mse_loss(outputs, targets)

    with pytest.raises(RuntimeError, match=r"^DefaultCPUAllocator"):
        balancer(probe=sy.InnerLoop(), loss=loss)(model, batch(), sgd(model))
