import io
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import l1_loss, mse_loss

import steelyard as sy
from toys import balancer, batch, everything, first_halves, reference_hypothetical_losses, smooth, take_step


def sgd(model, rate=0.05):
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def test_equal_weights_equal_a_plain_loop_bit_for_bit():
    torch.manual_seed(3)
    model = everything()
    optimizer = sgd(model)
    torch.manual_seed(4)
    for seed in range(5):  # the plain loop
        (xa, ya), (xb, yb) = batch(seed=seed).values()
        a, b = model(torch.cat([xa, xb])).split([len(xa), len(xb)])
        take_step(0.5 * mse_loss(a, ya) + 0.5 * mse_loss(b, yb), optimizer)
    torch.manual_seed(3)
    other = everything()
    optimizer, judge = sgd(other), balancer(weighting=sy.Fixed())
    torch.manual_seed(4)
    for seed in range(5):
        take_step(judge(other, batch(seed=seed), optimizer), optimizer)
    for mine, plain in zip(other.state_dict().values(), model.state_dict().values(), strict=True):
        assert torch.equal(mine, plain)


def test_joined_and_separate_forward_passes_differ_only_where_samples_meet():
    for model, alike in ((smooth(), True), (everything().train(), False)):
        losses = []
        for join in (True, False):
            torch.manual_seed(0)
            losses.append(balancer(join=join)(model, batch()).item())
        assert (losses[0] == pytest.approx(losses[1], rel=1e-6)) is alike


def test_domains_whose_shapes_differ_run_apart():
    class Pooled(nn.Module):
        def forward(self, x):
            return x.mean(-1, keepdim=True) * self.scale

        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

    samples = {"a": (torch.ones(2, 3), torch.zeros(2, 1)), "b": (torch.ones(2, 5), torch.zeros(2, 1))}
    assert balancer()(Pooled(), samples).item() == 1.0


def test_one_loss_per_domain_and_per_domain_weights():
    model = smooth()
    samples = batch()
    judge = balancer(loss={"b": l1_loss, "a": mse_loss}, weighting=sy.Fixed([0.2, 0.8]))
    samples = dict(reversed(samples.items()))
    (xb, yb), (xa, ya) = samples.values()
    expected = 0.2 * mse_loss(model(xa), ya) + 0.8 * l1_loss(model(xb), yb)
    assert judge(model, samples).item() == pytest.approx(expected.item(), rel=1e-6)
    assert list(judge.last.losses) == ["a", "b"]
    assert not any(loss.requires_grad for loss in judge.last.losses.values())
    assert judge.last.losses["b"].item() == pytest.approx(l1_loss(model(xb), yb).item(), rel=1e-6)


def test_a_loss_module_follows_the_balancer():
    losses = {"a": nn.CrossEntropyLoss(weight=torch.ones(3)), "b": nn.CrossEntropyLoss()}
    judge = balancer(loss=nn.ModuleDict(losses))
    assert judge.double().domain_losses.loss_0.weight.dtype is torch.float64


def test_nested_inputs_and_an_objective():
    class TwoTower(nn.Module):
        def __init__(self):
            super().__init__()
            self.image, self.text = nn.Linear(3, 1), nn.Linear(2, 1)

        def forward(self, inputs):
            return self.image(inputs["image"]) + self.text(inputs["text"][0])

    model = TwoTower()
    optimizer = sgd(model)
    samples = {
        name: ({"image": torch.randn(4, 3), "text": (torch.randn(4, 2), "en")}, torch.randn(4, 1)) for name in "ab"
    }
    by_loss, by_objective = (
        balancer(probe=sy.InnerLoop()),
        balancer(probe=sy.InnerLoop(), objective=lambda m, pair: mse_loss(m(pair[0]), pair[1])),
    )
    assert by_loss(model, samples, optimizer).item() == pytest.approx(by_objective(model, samples, optimizer).item())
    assert by_loss.last.measured == pytest.approx(by_objective.last.measured, rel=1e-6)


def test_a_model_that_computes_its_own_loss_from_a_dict():
    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens, labels):
            return {"loss": nn.functional.cross_entropy(self.head(self.embed(tokens)).flatten(0, 1), labels.flatten())}

    model = Language()
    tokens = {name: {"tokens": torch.randint(10, (4, 5)), "labels": torch.randint(10, (4, 5))} for name in "ab"}
    judge = balancer(objective=lambda m, samples: m(**samples)["loss"], probe=sy.InnerLoop())
    optimizer = sgd(model)
    take_step(judge(model, tokens, optimizer), optimizer)
    assert judge.last.vote in ("a", "b")


def test_an_absent_domain_adds_nothing_and_the_others_are_not_scaled_up():
    model, samples = smooth(), batch()
    optimizer = sgd(model)
    judge = balancer(weighting=sy.DirichletVote(), probe=sy.InnerLoop())
    for present in ({"a": samples["a"]}, {"a": samples["a"], "b": tuple(t[:0] for t in samples["b"])}):
        loss = judge(model, present, optimizer)
        assert loss.item() == pytest.approx(0.5 * mse_loss(model(samples["a"][0]), samples["a"][1]).item())
        assert judge.last.outcome is sy.Outcome.TOO_FEW
        assert list(judge.last.losses) == ["a"]
    assert judge.weights == {"a": 0.5, "b": 0.5}


def test_a_domain_with_one_sample_sits_the_vote_out():
    model = smooth()
    names = ("a", "b", "c")
    samples = batch(sizes=(6, 1, 4), names=names)
    optimizer = sgd(model)
    judge = balancer(domains=names, probe=sy.InnerLoop())
    judge(model, samples, optimizer)
    halves = first_halves({name: samples[name] for name in ("a", "c")}, 2)
    assert judge.last.measured == pytest.approx(reference_hypothetical_losses(model, optimizer, halves), rel=1e-6)
    assert list(judge.last.losses) == list(names)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_hypothetical_losses_that_are_not_finite_cast_no_vote_and_are_counted(bad):
    model = smooth()
    samples = batch()
    samples["b"][1][-1] = bad
    optimizer = sgd(model)
    judge = balancer(probe=sy.InnerLoop())
    for _ in range(3):
        judge(model, samples, optimizer)
    judge(model, batch(), optimizer)
    assert judge.tally == {"a value was not finite": 3, "updated": 1}
    assert sum(judge.weights.values()) == pytest.approx(1)


def test_a_learning_rate_of_nought_ties():
    model = smooth()
    judge = balancer(probe=sy.InnerLoop())
    judge(model, batch(), sgd(model, rate=0.0))
    assert judge.last.reason == "a tie"


def test_in_evaluation_mode_and_without_gradients_it_does_not_vote():
    model = smooth()
    judge = balancer(probe=sy.InnerLoop())
    with torch.no_grad():
        judge(model, batch())
    assert judge.last.reason == "not training"
    judge.eval()
    judge(model, batch())
    assert judge.last.reason == "not training"
    assert int(judge.probe.steps) == 0


def test_without_a_probe_the_weights_stay_as_they_start_and_a_warning_says_so():
    with pytest.warns(UserWarning, match=r"without a probe the weights of DirichletVote stay as they start"):
        judge = balancer(weighting=sy.DirichletVote(prior=[2.0, 4.0]))
    judge(smooth(), batch())
    assert judge.weights == {"a": 0.25, "b": 0.75}
    assert judge.last.reason == "no probe"


def test_says_once_that_batches_are_too_small_to_vote():
    model = smooth()
    optimizer = sgd(model)
    judge = balancer(probe=sy.InnerLoop())
    for _ in range(24):
        judge(model, batch(sizes=(1, 1)), optimizer)
    with pytest.warns(UserWarning, match=r"25 steps cast no vote.*InnerLoop\(gather=True\)"):
        judge(model, batch(sizes=(1, 1)), optimizer)
    with warnings.catch_warnings(record=True) as said:
        judge(model, batch(sizes=(1, 1)), optimizer)
    assert not said


@pytest.mark.parametrize("make", [lambda: sy.DirichletVote(window=3), lambda: sy.RelativeShift(), lambda: sy.Fixed()])
def test_a_run_continued_from_a_checkpoint_is_bit_identical(make):
    def run(stops):
        torch.manual_seed(5)
        model = everything()
        optimizer, judge = sgd(model), balancer(weighting=make(), probe=sy.InnerLoop(every=2, split="random"))
        for seed in range(8):
            if seed in stops:
                file = io.BytesIO()
                random = torch.get_rng_state()
                torch.save([model.state_dict(), optimizer.state_dict(), judge.state_dict()], file)
                file.seek(0)
                model = everything()
                optimizer, judge = sgd(model), balancer(weighting=make(), probe=sy.InnerLoop(every=2, split="random"))
                for part, state in zip((model, optimizer, judge), torch.load(file), strict=True):
                    part.load_state_dict(state)
                torch.set_rng_state(random)
            take_step(judge(model, batch(seed=seed), optimizer), optimizer)
        return judge.weights, judge.tally, [value.tolist() for value in model.state_dict().values()]

    assert run(stops=()) == run(stops=(3, 6))


def test_a_checkpoint_of_other_domains_or_settings_is_refused():
    def made(domains=("a", "b"), choice="greedy", window=25):
        return balancer(domains=domains, weighting=sy.DirichletVote(choice, window=window), probe=sy.InnerLoop())

    made().load_state_dict(made().state_dict())
    with pytest.raises(ValueError, match=r"weighs the domains \['b', 'a'\]; this balancer \['a', 'b'\]"):
        made().load_state_dict(made(domains=("b", "a")).state_dict())
    for other in ({"choice": "conservative"}, {"window": 5}):
        with pytest.raises(ValueError, match=r"the checkpoint is of DirichletVote\(.*; this balancer has Diri"):
            made().load_state_dict(made(**other).state_dict())


def test_parameters_unused_by_a_domain():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk, self.heads = nn.Linear(6, 4), nn.ModuleDict({"a": nn.Linear(4, 1), "b": nn.Linear(4, 1)})

    def objective(model, samples):
        x, y, head = samples
        return mse_loss(model.heads[head](model.trunk(x)), y)

    model = Heads()
    samples = {name: (*pair, name) for name, pair in batch().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    judge = balancer(objective=objective, probe=sy.InnerLoop())
    judge(model, samples, optimizer)
    expected = {}
    for favoured in "ab":
        import copy

        twin, stepper = copy.deepcopy((model, optimizer))
        x, y, head = samples[favoured]
        objective(twin, (x[:3], y[:3], head)).backward()
        stepper.step()
        with torch.no_grad():
            expected[favoured] = sum(objective(twin, (x[3:], y[3:], h)).item() for x, y, h in samples.values())
    assert judge.last.measured == pytest.approx(expected, rel=1e-6)


def test_other_statistics_join_without_a_new_kind_of_class():
    """A weighting after the losses and its probe, as a user would write them."""

    class Current(sy.Probe):
        statistic = sy.Statistic.LOSSES

        def _measure(self, model, batch, *, losses, optimizer):
            with torch.no_grad():
                return sy.Measurement.of(torch.stack(list(losses(model, batch).values())))

    class Proportional(sy.Weighting):
        statistic = sy.Statistic.LOSSES

        def _start(self, domains):
            self.register_buffer("shares", torch.full((domains,), 1 / domains))

        def _update(self, measurement):
            self.shares.copy_(measurement.values / measurement.values.sum())
            return sy.Update(sy.Outcome.UPDATED)

        def weights(self):
            return tuple(self.shares.tolist())

    model = smooth()
    judge = balancer(weighting=Proportional(), probe=Current())
    judge(model, batch(), sgd(model))
    losses = [loss.item() for loss in judge.last.losses.values()]
    assert list(judge.weights.values()) == pytest.approx([loss / sum(losses) for loss in losses], rel=1e-5)
    with pytest.raises(ValueError, match="Proportional needs losses; InnerLoop provides hypothetical losses"):
        balancer(weighting=Proportional(), probe=sy.InnerLoop())


@pytest.mark.parametrize("domains", [(), ("a", "a")])
def test_refuses_domains_that_are_not_distinct(domains):
    with pytest.raises(ValueError, match="domains must be distinct names, at least one"):
        balancer(domains=domains)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"domains": "ab"}, "domains must be a sequence of names; got 'ab'"),
        ({"domains": (0, 1)}, r"domains must be a sequence of names; got \(0, 1\)"),
        ({"domains": 2}, "domains must be a sequence of names; got 2"),
        ({"weighting": "greedy"}, "weighting must be an instance of Weighting; got str"),
        ({"weighting": sy.Fixed}, "weighting must be an instance of Weighting; got the class Fixed"),
        ({"probe": sy.InnerLoop}, "probe must be an instance of Probe; got the class InnerLoop"),
        ({"loss": nn.MSELoss}, "must be a function or an instance of a module; got <class"),
        ({"loss": "mse"}, "must be a function or an instance of a module; got 'mse'"),
        ({"loss": {"a": mse_loss, "b": nn.MSELoss}}, "must be a function or an instance of a module"),
    ],
)
def test_refuses_arguments_of_the_wrong_kind(arguments, message):
    with pytest.raises(TypeError, match=message):
        balancer(**arguments)


def test_refuses_calls_of_the_wrong_kind():
    model = smooth()
    optimizer = sgd(model)
    judge = balancer(probe=sy.InnerLoop())
    with pytest.raises(TypeError, match="model must be an instance of Module; got dict"):
        judge(batch(), model, optimizer)
    with pytest.raises(TypeError, match=r"got tuple\. Of one batch per domain, dict\(zip\(domains, batches\)\)"):
        judge(model, tuple(batch().values()), optimizer)
    with pytest.raises(TypeError, match="optimizer must be an instance of Optimizer; got StepLR"):
        judge(model, batch(), torch.optim.lr_scheduler.StepLR(optimizer, 1))
    with pytest.raises(ValueError, match=r"domain 'a': every part of a batch .* got lengths \[5, 6\]"):
        judge(model, {"a": (torch.zeros(5, 6), torch.zeros(6, 1))}, optimizer)


def test_refuses_arrays():
    pytest.importorskip("numpy", reason="the array that is refused is numpy's")
    model = smooth()
    with pytest.raises(TypeError, match=r"domain 'b': a batch must hold tensors; got ndarray"):
        balancer(probe=sy.InnerLoop())(model, {"b": (batch()["b"][0].numpy(), batch()["b"][1])}, sgd(model))


@pytest.mark.parametrize(
    ("samples", "found"),
    [(torch.zeros(3, 6), "Tensor"), ({"x": torch.zeros(3, 6)}, "dict"), ((torch.zeros(3, 6),) * 3, "3 parts")],
)
def test_a_loss_wants_inputs_and_targets(samples, found):
    with pytest.raises(ValueError, match=rf"must be \(inputs, targets\); got {found}\. Pass forward= .* objective="):
        balancer()(smooth(), {"a": samples, "b": samples})


def test_a_model_that_returns_one_number_for_all_domains_is_refused():
    class WithPenalty(nn.Linear):
        def forward(self, x):
            out = super().forward(x)
            return out, out.square().mean()

    judge = {join: balancer(loss=lambda o, y: mse_loss(o[0], y) + o[1], join=join) for join in (True, False)}
    with pytest.raises(ValueError, match=r"got one for all\. Pass join=False"):
        judge[True](WithPenalty(6, 1), batch())
    assert judge[False](WithPenalty(6, 1), batch()).isfinite()


@pytest.mark.parametrize("given", [{}, {"loss": mse_loss, "objective": mse_loss}])
def test_wants_a_loss_or_an_objective(given):
    with pytest.raises(ValueError, match=r"give either loss or objective; got (neither|both)"):
        sy.Balancer(("a",), weighting=sy.Fixed(), **given)


def test_refuses_wrong_batches_and_losses():
    model = smooth()
    with pytest.raises(ValueError, match="got 'c'"):
        balancer()(model, {"c": batch()["a"]})
    with pytest.raises(ValueError, match="holds no sample of any of"):
        balancer()(model, {})
    with pytest.raises(ValueError, match=r"one loss for each of \('a', 'b'\); got \('a',\)"):
        balancer(loss={"a": mse_loss})
    with pytest.raises(ValueError, match=r"loss of domain 'a' must be one number in a tensor; got \(6, 1\)"):
        balancer(loss=lambda o, y: (o - y) ** 2)(model, batch())
    with pytest.raises(ValueError, match="got float"):
        balancer(loss=lambda o, y: 1.0)(model, batch())
    with pytest.raises(ValueError, match="the optimizer is needed for the vote"):
        balancer(probe=sy.InnerLoop())(model, batch())


def test_says_once_that_values_are_not_finite():
    model = smooth()
    optimizer = sgd(model)
    judge = balancer(probe=sy.InnerLoop())
    bad = {name: (x, y * float("inf")) for name, (x, y) in batch().items()}
    for _ in range(60):
        judge(model, batch(), optimizer)
    for _ in range(24):
        judge(model, bad, optimizer)
    with pytest.warns(UserWarning, match=r"25 steps cast no vote: .* inf or nan.*scaler=scaler"):
        judge(model, bad, optimizer)
    judge(model, bad, optimizer)  # warnings are errors here: there is no second one


def test_says_nothing_of_few_missed_votes_or_while_samples_are_gathered():
    model = smooth()
    optimizer = sgd(model)
    judge = balancer(probe=sy.InnerLoop())
    for step in range(130):
        judge(model, batch(sizes=(1, 1) if step % 5 == 0 else (4, 4)), optimizer)
    assert judge.tally == {"updated": 104, "fewer than two domains with enough samples": 26}
    judge = balancer(probe=sy.InnerLoop(gather=True))
    for _ in range(60):
        judge(model, batch(sizes=(1, 1)), optimizer)
    assert judge.tally == {"updated": 30, "fewer than two domains with enough samples": 30}


def test_says_that_values_are_not_finite_late_in_training_and_while_samples_are_gathered():
    model = smooth()
    optimizer = sgd(model)
    bad = {name: (x, y * float("inf")) for name, (x, y) in batch().items()}
    for probe, votes in ((sy.InnerLoop(), 200), (sy.InnerLoop(gather=2), 1)):
        judge = balancer(probe=probe)
        for _ in range(votes):
            judge(model, batch(), optimizer)
        for _ in range(24):
            judge(model, bad, optimizer)
        with pytest.warns(UserWarning, match="inf or nan") as caught:
            judge(model, bad, optimizer)
        assert [warning.filename for warning in caught] == [__file__]


def failing_loss(fails):
    """A loss that fails in the outer pass: with gradients, over all samples."""

    def loss(outputs, targets):
        if fails() and len(targets) == 6:
            raise RuntimeError("out of luck")
        return mse_loss(outputs, targets)

    return loss


@pytest.mark.parametrize("probe", [sy.InnerLoop(), sy.FirstOrder(reuse=False)])
def test_a_call_that_raises_counts_nothing(probe):
    model = smooth()
    optimizer = sgd(model)
    state = {"fails": False}
    judge = balancer(probe=probe, loss=failing_loss(lambda: state["fails"]))
    for seed in range(3):
        judge(model, batch(seed=seed), optimizer)
    before = {name: value.clone() for name, value in judge.state_dict().items()}
    report = judge.last
    state["fails"] = True
    with pytest.raises(RuntimeError, match="out of luck"):
        judge(model, batch(seed=3), optimizer)
    after = judge.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert judge.last is report


def test_a_call_that_raises_gathers_nothing():
    model = smooth()
    optimizer = sgd(model)
    judge = balancer(probe=sy.InnerLoop(gather=4))
    judge(model, batch(sizes=(1, 1)), optimizer)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        judge(model, batch(sizes=(1, 1), features=5), optimizer)
    kept = judge.probe.gathering.kept
    assert kept.keys() == {"a", "b"}
    for name, (inputs, _) in batch(sizes=(1, 1)).items():
        assert torch.equal(kept[name][0], inputs)


slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("presence", "steps"), [(0.1, 600), *(pytest.param(p, 6000, marks=slow) for p in (1.0, 0.25, 0.1))]
)
def test_three_domains_alike_keep_equal_weights_however_rare_one_is(presence, steps):
    model = smooth()
    optimizer = sgd(model, rate=0.01)
    judge = balancer(domains=("a", "b", "c"), probe=sy.InnerLoop(), weighting=sy.DirichletVote("greedy"))
    generator = torch.Generator().manual_seed(3)
    total = torch.zeros(3, dtype=torch.float64)
    for _ in range(steps):
        samples = {}
        for name in ("a", "b", "c"):
            if name != "c" or torch.rand((), generator=generator) < presence:
                x = torch.randn(4, 6, generator=generator)
                samples[name] = (x, x.sum(1, keepdim=True) + torch.randn(4, 1, generator=generator))
        take_step(judge(model, samples, optimizer), optimizer)
        total += torch.tensor(list(judge.weights.values()), dtype=torch.float64)
    assert (total / steps - 1 / 3).abs().max() < 0.03


@pytest.mark.parametrize("version", [None, 0, 1])
def test_a_checkpoint_of_another_format_is_refused(version):
    state = balancer(probe=sy.FirstOrder()).state_dict()
    if version is None:
        del state["_format"]
    else:
        state["_format"] = torch.tensor(version)
    with pytest.raises(ValueError, match=f"must have the format version 5; got {version}"):
        balancer(probe=sy.FirstOrder()).load_state_dict(state)
