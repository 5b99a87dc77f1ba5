"""Gradients that serve the vote and the outer step: the scalar returned is worth the plain weighted loss."""

import copy
import io
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import steelyard as sy
from toys import balancer, batch, smooth, take_step

PROBES = {
    "first-order": partial(sy.FirstOrder, reuse=True),
    "first-order, detected": sy.FirstOrder,
    "inner loop": partial(sy.InnerLoop, reuse=True),
    "inner loop, detected": partial(sy.InnerLoop, reuse="detect"),
}
every_probe = pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES)


def sgd(model, rate=0.05):
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def normed():
    layers = nn.Conv1d(1, 4, 3), nn.InstanceNorm1d(4, affine=True), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 1)
    return nn.Sequential(nn.Unflatten(1, (1, 6)), *layers)


def pair_of_runs(model, probe, **kwargs):
    """The same model twice, with a balancer that shares and one that does not, both holding uneven weights."""
    twin = copy.deepcopy(model)
    shared = balancer(weighting=sy.Fixed([0.3, 0.7]), probe=probe(**kwargs))
    plain = balancer(weighting=sy.Fixed([0.3, 0.7]))
    return (model, sgd(model), shared), (twin, sgd(twin), plain)


def assert_alike(one, other, **kwargs):
    for mine, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(mine, theirs, **kwargs)


def gradients(model):
    return [parameter.grad for parameter in model.parameters()]


@every_probe
@pytest.mark.parametrize("make", [smooth, normed])
@pytest.mark.parametrize("split", ["first", "random"])
def test_gradients_equal_the_plain_weighted_losses(make, probe, split):
    (model, optimizer, shared), (twin, other, plain) = pair_of_runs(make().double(), probe, split=split)
    for seed in range(3):
        samples = batch(sizes=(7, 4), seed=seed, dtype=torch.float64)
        mine, theirs = shared(model, samples, optimizer), plain(twin, samples, other)
        torch.testing.assert_close(mine, theirs)
        assert_alike(shared.last.losses.values(), plain.last.losses.values())
        take_step(mine, optimizer)
        take_step(theirs, other)
        assert_alike(gradients(model), gradients(twin), rtol=1e-10, atol=1e-12)
        assert shared.probe.reuse.reason is None


@every_probe
def test_sharing_does_not_change_the_vote(probe):
    model = smooth()
    optimizer = sgd(model)
    probes = probe(), probe(reuse=False)
    found = []
    for each in probes:
        judge = balancer(probe=each)
        judge(model, batch(sizes=(6, 8)), optimizer)
        found.append(judge.last.measured)
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_the_weights_of_this_steps_vote_are_in_the_gradients():
    model = smooth()
    judge = balancer(probe=sy.FirstOrder(), weighting=sy.DirichletVote("greedy", prior=1.1))
    loss = judge(model, batch(), sgd(model))
    loss.backward()
    a, b = (mse_loss(model(x), y) for x, y in batch().values())
    weights = judge.weights
    assert max(weights.values()) > 0.9
    expected = torch.autograd.grad(weights["a"] * a + weights["b"] * b, list(model.parameters()))
    assert_alike(gradients(model), expected)


@every_probe
def test_an_enabled_gradient_scaler(probe):
    (model, optimizer, shared), (twin, other, plain) = pair_of_runs(smooth(), probe)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    shared.probe.scaler = scaler
    for seed in range(4):
        optimizer.zero_grad()
        scaler.scale(shared(model, batch(seed=seed), optimizer)).backward()
        scaler.step(optimizer)
        scaler.update()
        take_step(plain(twin, batch(seed=seed), other), other)
    assert scaler.get_scale() > 1024
    assert_alike(model.parameters(), twin.parameters())


def test_a_step_that_the_scaler_skips_leaves_the_model_alone():
    model = smooth()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    samples = batch()
    samples["a"][1][0] = float("inf")
    judge = balancer(probe=sy.FirstOrder(scaler=scaler, reuse=True))
    before = copy.deepcopy(model)
    scaler.scale(judge(model, samples, optimizer)).backward()
    scaler.step(optimizer)
    scaler.update()
    assert judge.last.reason == "a value was not finite"
    assert scaler.get_scale() == 512
    assert_alike(model.parameters(), before.parameters())


@every_probe
def test_accumulation_and_clipping(probe):
    (model, optimizer, shared), (twin, other, plain) = pair_of_runs(smooth(), probe)
    for seed in range(2):
        (shared(model, batch(seed=seed), optimizer) / 2).backward()
        (plain(twin, batch(seed=seed), other) / 2).backward()
    assert_alike(gradients(model), gradients(twin))
    norms = [nn.utils.clip_grad_norm_(each.parameters(), 1.0) for each in (model, twin)]
    torch.testing.assert_close(*norms)
    assert norms[0] > 1
    assert_alike(gradients(model), gradients(twin))


@every_probe
def test_inside_a_larger_expression(probe):
    (model, optimizer, shared), (twin, other, plain) = pair_of_runs(smooth(), probe)
    for each, judge, stepper in ((model, shared, optimizer), (twin, plain, other)):
        penalty = sum(parameter.square().sum() for parameter in each.parameters())
        (2 * judge(each, batch(), stepper) + 0.1 * penalty).backward()
    assert_alike(gradients(model), gradients(twin))


def test_stored_gradients_are_handed_out_once_and_not_differentiated():
    model = smooth()
    judge = balancer(probe=sy.FirstOrder())
    loss = judge(model, batch(), sgd(model))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match=r"handed out once.*reuse=False"):
        loss.backward()
    loss = judge(model, batch(), sgd(model))
    with pytest.raises(RuntimeError, match=r"cannot be differentiated again.*reuse=False"):
        torch.autograd.grad(loss, list(model.parameters()), create_graph=True)


def test_parameters_outside_the_optimizer_get_their_gradients():
    model = smooth()
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    for probe in PROBES.values():
        model.zero_grad()
        balancer(weighting=sy.Fixed(), probe=probe())(model, batch(), optimizer).backward()
        expected = torch.autograd.grad(balancer()(model, batch()), list(model.parameters()))
        assert_alike(gradients(model), expected)


class Scaled(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(0.3))

    def forward(self, output, target):
        return mse_loss(output, target) * self.log_scale.exp()


def test_a_losses_own_parameters_get_their_gradients():
    model, loss = smooth(), Scaled()
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1)
    judge = balancer(weighting=sy.Fixed(), probe=sy.FirstOrder(reuse=True), loss=loss)
    judge(model, batch(), optimizer).backward()
    (expected,) = torch.autograd.grad(balancer(loss=loss)(model, batch()), [loss.log_scale])
    torch.testing.assert_close(loss.log_scale.grad, expected)


def test_a_trainable_tensor_elsewhere_is_found():
    model, elsewhere = smooth(), torch.ones((), requires_grad=True)
    judge = balancer(probe=sy.FirstOrder(), loss=lambda o, y: elsewhere * mse_loss(o, y))
    judge(model, batch(), sgd(model)).backward()
    assert judge.probe.reuse.reason.startswith("it depends on a trainable tensor of shape ()")
    assert elsewhere.grad is not None


def masked(output, target):
    valid = (target > 0).float()
    return ((output - target).square() * valid).sum() / valid.sum().clamp(min=1)


def batch_dice(output, target):
    p, y = output.sigmoid(), (target > 0).float()
    return 1 - 2 * (p * y).sum() / (p.sum() + y.sum())


class Mixing(nn.Module):
    """Samples meet, with no module to tell."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, x):
        return self.layer(x - x.mean(0))


class Noisy(Mixing):
    def forward(self, x):
        return self.layer(x + torch.randn_like(x))


class Remembering(Mixing):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x):
        self.seen.lerp_(x.detach().mean(0), 0.1)
        return self.layer(x)


class Replacing(Remembering):
    """Puts another buffer in the place of the old one."""

    def forward(self, x):
        self.seen = 0.9 * self.seen + 0.1 * x.detach().mean(0)
        return self.layer(x)


class Averaging(Mixing):
    """Keeps a tensor that is no buffer."""

    def __init__(self):
        super().__init__()
        self.seen = torch.zeros(6)

    def forward(self, x):
        self.seen = 0.9 * self.seen + 0.1 * x.detach().mean(0)
        return self.layer(x)


class Cooling(Mixing):
    """Another function each time it runs, which a model that is not run would never become."""

    def __init__(self):
        super().__init__()
        self.temperature = 1.0

    def forward(self, x):
        self.temperature *= 0.99999  # too little to be seen in a loss
        return self.layer(x) / self.temperature


class Quieter(Mixing):
    """Another function in evaluation mode."""

    def forward(self, x):
        return self.layer(x) * (1.0 if self.training else 0.5)


class Blank(Mixing):
    """Samples meet before a last layer of zeros, so that no loss tells."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, 1)
        nn.init.zeros_(self.last.weight)

    def forward(self, x):
        x = self.layer(x) + x
        return self.last(x / x.norm(dim=0))


def weighted_classes(output, target):
    two = torch.cat([output, -output], 1)
    return cross_entropy(two, (target > 0).long().flatten(), weight=torch.tensor([1.0, 5.0]))


NOT_SHARED = {
    "batch Dice": (smooth, batch_dice, "as a mean of halves"),
    "a masked mean": (smooth, masked, "as a mean of halves"),
    "class weights": (smooth, weighted_classes, "as a mean of halves"),
    "a sum": (smooth, lambda o, y: (o - y).square().sum(), "as a mean of halves"),
    "samples that meet": (Mixing, mse_loss, "as a mean of halves"),
    "another function in evaluation mode": (Quieter, mse_loss, "as a mean of halves"),
    "noise": (Noisy, mse_loss, "draws random numbers"),
    "a tensor": (Averaging, mse_loss, "changes 'seen' of Averaging"),
    "an attribute": (Cooling, mse_loss, "changes 'temperature' of Cooling"),
    "another buffer": (Replacing, mse_loss, "changes the model's buffers"),
    "a buffer": (Remembering, mse_loss, "changes the model's buffers"),
    "batch normalisation": (lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 1)), mse_loss, "meet in BatchNorm1d"),
    "running statistics": (
        lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten()),
        mse_loss,
        "InstanceNorm1d keeps running statistics",
    ),
}


@pytest.mark.parametrize("name", [name for name in NOT_SHARED if name != "running statistics"])
@pytest.mark.parametrize("probe", [sy.FirstOrder, sy.InnerLoop])
def test_what_cannot_be_shared_is_detected_and_refused_where_declared(name, probe):
    make, loss, message = NOT_SHARED[name]
    results = []
    for each in (None, probe(reuse="detect")):
        torch.manual_seed(3)
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        judge = balancer(weighting=sy.Fixed([0.3, 0.7]), probe=each, loss=loss)
        for seed in range(3):
            take_step(judge(model, batch(seed=seed), optimizer), optimizer)
        results.append(model.state_dict())
    assert message in judge.probe.reuse.reason
    # A masked mean is a plain one on a batch whose halves have as many valid samples; all else is bit-identical.
    assert_alike(results[0].values(), results[1].values(), **({} if loss is masked else {"rtol": 0, "atol": 0}))
    judge = balancer(probe=probe(reuse=True), loss=loss)
    for _ in range(2):  # and again
        with pytest.raises(ValueError, match=rf"reuse=True needs .*{message}"):
            judge(model, batch(), optimizer)


@pytest.mark.parametrize(
    "probe",
    [sy.FirstOrder(), sy.InnerLoop(reuse="detect")],
    ids=["first-order", "exact"],
)
def test_samples_that_meet_are_found_where_the_losses_do_not_tell(probe):
    torch.manual_seed(3)
    model = Blank()
    balancer(probe=probe)(model, batch(), sgd(model))
    assert "gradients of a pass over all samples are not" in probe.reuse.reason
    with pytest.raises(ValueError, match="gradients of a pass over all samples are not"):
        balancer(probe=type(probe)(reuse=True))(model, batch(), sgd(model))


def test_running_statistics_are_seen():
    make, loss, message = NOT_SHARED["running statistics"]
    model = nn.Sequential(make(), nn.Linear(6, 1))
    judge = balancer(probe=sy.FirstOrder(), loss=loss)
    judge(model, batch(), sgd(model))
    assert message in judge.probe.reuse.reason


def test_a_mask_that_turns_up_later_is_found_then():
    model = smooth()
    optimizer = sgd(model)
    judge = balancer(weighting=sy.Fixed(), probe=sy.FirstOrder(), loss=masked)
    whole = {name: (x, y.abs() + 1) for name, (x, y) in batch().items()}
    judge(model, whole, optimizer)
    assert judge.probe.reuse.reason is None
    judge(model, batch(), optimizer).backward()
    assert "as a mean of halves" in judge.probe.reuse.reason
    expected = torch.autograd.grad(balancer(loss=masked)(model, batch()), list(model.parameters()))
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), expected, strict=True))


def test_an_objective_is_shared_only_where_declared():
    model = smooth()
    objective = lambda m, pair: mse_loss(m(pair[0]), pair[1])  # noqa: E731
    for probe, shares in ((sy.FirstOrder(), False), (sy.FirstOrder(reuse=True), True)):
        judge = balancer(probe=probe, objective=objective)
        found = probe.find(model, batch(), losses=judge.domain_losses, optimizer=sgd(model))
        assert (found.shared is not None) is shares


def test_heads_that_only_one_domain_uses():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk, self.heads = nn.Linear(6, 4), nn.ModuleDict({"a": nn.Linear(4, 1), "b": nn.Linear(4, 1)})

    def objective(model, samples):
        x, y, head = samples
        return mse_loss(model.heads[head](model.trunk(x)), y)

    model = Heads()
    samples = {name: (*pair, name) for name, pair in batch().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9, weight_decay=0.1)
    for step in range(2):
        exact = balancer(objective=objective, probe=sy.InnerLoop())
        judge = balancer(objective=objective, probe=sy.FirstOrder(reuse=True))
        exact(model, samples, optimizer)
        loss = judge(model, samples, optimizer)
        assert judge.last.measured == pytest.approx(exact.last.measured, rel=1e-6), step
        take_step(loss, optimizer)
    model.zero_grad()
    judge(model, {"a": samples["a"]}, optimizer).backward()
    assert model.heads["b"].weight.grad is None


def test_what_was_refused_is_in_the_checkpoint():
    model = smooth()
    optimizer = sgd(model)
    one = balancer(probe=sy.FirstOrder(), loss=masked)
    one(model, batch(), optimizer)
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    other = balancer(probe=sy.FirstOrder(), loss=masked)
    other.load_state_dict(torch.load(file))
    assert bool(other.probe.reuse.refused)
    whole = {name: (x, y.abs() + 1) for name, (x, y) in batch().items()}
    losses = [judge(model, whole, optimizer).item() for judge in (one, other)]
    assert losses[0] == losses[1]
    assert one.last.measured == other.last.measured


@every_probe
def test_a_run_continued_from_a_checkpoint_is_bit_identical(probe):
    def run(stop):
        torch.manual_seed(5)
        model = smooth()
        optimizer, judge = sgd(model), balancer(probe=probe(every=2))
        for seed in range(6):
            if seed == stop:
                states = copy.deepcopy([each.state_dict() for each in (model, optimizer, judge)])
                model = smooth()
                optimizer, judge = sgd(model), balancer(probe=probe(every=2))
                for part, state in zip((model, optimizer, judge), states, strict=True):
                    part.load_state_dict(state)
            take_step(judge(model, batch(seed=seed), optimizer), optimizer)
        return judge.weights, [value.tolist() for value in model.state_dict().values()]

    assert run(None) == run(3)


def test_float16_gradients_do_not_underflow_with_a_scaler():
    model, tiny = smooth(), lambda o, y: 1e-9 * mse_loss(o.float(), y)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    judge = balancer(weighting=sy.Fixed(), probe=sy.FirstOrder(scaler=scaler, reuse=True), loss=tiny)
    with torch.autocast("cpu", dtype=torch.float16):
        judge(model, batch(), sgd(model)).backward()
    expected = torch.autograd.grad(balancer(loss=tiny)(model, batch()), list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=0.05, atol=float(gradient.abs().max()) * 0.02)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("compiler")
def test_a_compiled_model_goes_on_running_compiled_unless_told():
    model = smooth()
    compiled = torch.compile(model, backend="aot_eager")
    judge = balancer(probe=sy.FirstOrder())
    judge(compiled, batch(), sgd(model)).backward()
    assert "compiled" in judge.probe.reuse.reason
    assert judge.last.vote


def test_what_is_too_coarse_to_be_seen_is_not_shared_unless_told():
    model = smooth().bfloat16()
    samples = batch(dtype=torch.bfloat16)
    for probe in (sy.FirstOrder(), sy.InnerLoop(reuse="detect")):
        balancer(probe=probe)(model, samples, sgd(model))
        assert "is torch.bfloat16, too coarse" in probe.reuse.reason
    balancer(probe=sy.FirstOrder(reuse=True))(model, samples, sgd(model))


@pytest.mark.parametrize("layers", [1, 2])
def test_a_trainable_tensor_that_scales_the_outputs_is_found_too(layers):
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(layers - 1)), nn.Linear(6, 1))
    scale = torch.tensor(0.5, requires_grad=True)
    judge = balancer(probe=sy.FirstOrder(), loss=lambda o, y: mse_loss(scale * o, y))
    judge(model, batch(), sgd(model)).backward()
    assert "outside the model and the loss" in judge.probe.reuse.reason
    assert scale.grad is not None


def test_domains_that_are_run_whole_need_not_be_means_over_samples():
    model, twin = smooth(), smooth()
    twin.load_state_dict(model.state_dict())
    objective = lambda model, pair: (model(pair[0] - pair[0].mean(0)) - pair[1]).norm()  # noqa: E731
    weighting = sy.FromGramian(lambda gramian: torch.ones(len(gramian)) / 2)
    judge = balancer(weighting=weighting, probe=sy.Gramian(reuse=True), objective=objective)
    judge(model, batch(), sgd(model)).backward()
    balancer(objective=objective)(twin, batch()).backward()
    assert judge.probe.reuse.reason is None
    assert_alike(gradients(model), gradients(twin))


def lesions(kind, generator):
    """Masks of eight samples, of 64 pixels each, on which values of a batch Dice tell little or much."""
    masks = torch.zeros(8, 64)
    if kind == "the same in all":
        masks[:, 20:29] = 1
    if kind == "one pixel":
        masks[0, 0] = 1
    if kind == "every second":
        masks[::2, 20:24] = 1
    if kind == "sparse":
        masks[torch.rand(8, 64, generator=generator) < 0.02] = 1
    return masks


def entropy_and_batch_dice(outputs, masks):
    chances = outputs.sigmoid()
    dice = 2 * (masks * chances).sum() / (masks.sum() + chances.sum())
    return nn.functional.binary_cross_entropy_with_logits(outputs, masks) - dice


@pytest.mark.parametrize("kind", ["none", "the same in all", "one pixel", "every second", "sparse"])
@pytest.mark.parametrize("probe", [sy.FirstOrder, partial(sy.InnerLoop, reuse="detect")])
def test_a_batch_dice_gives_the_plain_gradients_on_any_labels(probe, kind):
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 64))
    optimizer = sgd(model)
    judge = balancer(weighting=sy.Fixed([0.3, 0.7]), probe=probe(), loss=entropy_and_batch_dice)
    plain = balancer(weighting=sy.Fixed([0.3, 0.7]), loss=entropy_and_batch_dice)
    for _ in range(3):
        samples = {n: (torch.randn(8, 64, generator=generator), lesions(kind, generator)) for n in ("a", "b")}
        expected = torch.autograd.grad(plain(model, samples), list(model.parameters()))
        take_step(judge(model, samples, optimizer), optimizer)
        for gradient, expectation in zip(gradients(model), expected, strict=True):
            assert (gradient - expectation).norm() <= 1e-5 * expectation.norm()


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.size, self.mask = nn.Linear(64, 1), nn.Linear(64, 64)

    def forward(self, x):
        return self.size(x), self.mask(x)


def large_error_minus_batch_dice(outputs, targets):
    (size, mask), (true_size, true_mask) = outputs, targets
    chances = mask.sigmoid()
    dice = 2 * (true_mask * chances).sum() / (true_mask.sum() + chances.sum())
    return 100 * mse_loss(size, true_size) - dice


@pytest.mark.parametrize("probe", [sy.FirstOrder, partial(sy.InnerLoop, reuse="detect")])
def test_a_head_with_large_gradients_does_not_hide_a_batch_dice(probe):
    model = TwoHeads()
    judge = balancer(probe=probe(), loss=large_error_minus_batch_dice)
    samples = {n: (torch.randn(8, 64), (torch.randn(8, 1), (torch.rand(8, 64) < 0.1).float())) for n in ("a", "b")}
    judge(model, samples, sgd(model)).backward()
    assert judge.probe.reuse.reason is not None


def test_a_loss_with_coarse_weights_of_its_own_is_called_with_outputs_as_they_are():
    model = nn.Linear(6, 4).bfloat16()
    samples = {n: (torch.randn(6, 6).bfloat16(), torch.randint(0, 4, (6,))) for n in ("a", "b")}
    judge = balancer(probe=sy.FirstOrder(), loss=nn.CrossEntropyLoss(weight=torch.ones(4).bfloat16()))
    judge(model, samples, sgd(model)).backward()
    assert judge.last.outcome is not sy.Outcome.NOT_FINITE
    assert "too coarse" in judge.probe.reuse.reason
