"""How steps are judged: bounded losses, a judge of the user's own, and what each domain's score counts for."""

import copy
import math
import random

import pytest
import torch
from torch import nn
from torch.nn.functional import l1_loss, mse_loss

import steelyard as sy
from plain_votes import exact_table, first_order_table, for_all, optimizer_with_state, plain_steps
from steelyard.measurement import Scores
from steelyard.probing import Finding
from steelyard.training.judging import Judging
from toys import batch, everything, first_halves, smooth, take_step

NAMES = ("a", "b", "c")
NAN = math.nan
PROBES = {"exact": sy.InnerLoop, "first order": sy.FirstOrder, "not shared": lambda: sy.FirstOrder(reuse=False)}
every_probe = pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES)


def scores(after, *, before=(NAN, NAN), losses=(2.0, 4.0)):
    as_tensor = {"after": after, "before": before, "losses": losses, "gradient_norms": (1.0, 1.0)}
    return Scores(**{name: torch.tensor(values, dtype=torch.float64) for name, values in as_tensor.items()})


def samples_of(seed=0):
    return batch((6, 6, 6), names=NAMES, dtype=torch.float64, seed=seed)


def set_up():
    model = smooth().double()
    return model, optimizer_with_state("SGD", model, samples_of(seed=1))


def accuracy_loss(outputs, targets):
    """The part of wrong signs: no gradient, and a plain number."""
    return float(((outputs > 0) != (targets > 0)).double().mean())


def judged_table(balancer, model, optimizer, samples):
    finding = balancer.probe.find(model, samples, losses=balancer.domain_losses, optimizer=optimizer)
    return finding.scores.after


def test_bounded_losses_by_hand():
    judged = Judging(2, bounded=True)(scores([[1.0, 8.0], [2.0, 4.0], [0.0, 400.0]]))
    expected = [[1 - math.exp(-0.5), 1 - math.exp(-2)], [1 - math.exp(-1), 1 - math.exp(-1)], [0, 1]]
    torch.testing.assert_close(judged, torch.tensor(expected, dtype=torch.float64))


def test_first_order_scores_are_judged_by_the_tangent_of_the_bounded_form():
    judged = Judging(2, bounded=True)(scores([[3.0, -50.0], [1.0, 4.0], [1.5, 5.0]], before=(1.0, 4.0)))
    level, slope = 1 - math.exp(-0.5), math.exp(-0.5) / 2
    assert judged[:, 0].tolist() == pytest.approx([level + 2 * slope, level, level + slope / 2], rel=1e-12)
    level, slope = 1 - math.exp(-1), math.exp(-1) / 4
    assert judged[:, 1].tolist() == pytest.approx([level - 54 * slope, level, level + slope], rel=1e-12)


def test_the_scale_is_that_of_each_domains_first_vote():
    judging = Judging(2, bounded=True)
    judging(scores([[1.0, NAN], [NAN, NAN], [1.0, NAN]], losses=(2.0, NAN)))
    judged = judging(scores([[6.0, 6.0]] * 3, losses=(100.0, 3.0)))
    assert judging.first_losses.tolist() == [2.0, 3.0]
    assert judged[0].tolist() == pytest.approx([1 - math.exp(-3), 1 - math.exp(-2)], rel=1e-12)


def test_a_domain_that_is_judged_without_a_step_has_the_scale_of_its_score_after_the_zero_step():
    judging = Judging(2, bounded=True)
    judging(scores([[1.0, 7.0], [NAN, NAN], [1.0, 5.0]], losses=(2.0, NAN)))
    assert judging.first_losses.tolist() == [2.0, 5.0]


def test_a_negative_loss_is_judged_as_it_is_from_then_on():
    judging = Judging(2, bounded=True)
    table = [[1.0, 8.0], [2.0, 4.0], [0.5, 4.0]]
    judging(scores(table))
    assert "judge=" not in judging.extra_repr()
    for losses in ((2.0, -4.0), (2.0, 4.0)):
        judged = judging(scores(table, losses=losses))
        assert judged[:, 1].tolist() == [8.0, 4.0, 4.0]
        assert judged[0, 0].item() == pytest.approx(1 - math.exp(-0.5))
    assert "judge= with a bounded score is advised" in judging.extra_repr()


@pytest.mark.parametrize("before", [(NAN, NAN), (1.0, -3.0)], ids=["exact", "first order"])
def test_a_loss_that_is_negative_on_the_samples_that_judge_is_judged_as_it_is(before):
    """Its bounded form would be exp(3000) below zero."""
    judging = Judging(2, bounded=True)
    judged = judging(scores([[1.0, -3.0]] * 3, before=before, losses=(2.0, 0.001)))
    assert judged[:, 1].tolist() == [-3.0] * 3


def test_printing_a_balancer_advises_a_judge_for_negative_losses():
    model, optimizer = set_up()
    texts = []
    for shift in (0.0, -1000.0):
        balancer = sy.Balancer(NAMES, loss=lambda o, y, shift=shift: mse_loss(o, y) + shift)
        balancer(model, samples_of(), optimizer)
        assert balancer.last.outcome is sy.Outcome.UPDATED
        texts.append(str(balancer))
    assert "bounded losses, 1 - exp(-L / L0)" in texts[0]
    assert "judge= with a bounded score is advised" in texts[1]


@pytest.mark.parametrize("weighting", [sy.DirichletVote, sy.Evidence])
def test_losses_are_bounded_by_default_unless_votes_are_counted_as_in_the_paper(weighting):
    balancer = sy.Balancer(NAMES, loss=mse_loss, weighting=weighting())
    assert balancer.valuation.judging.bounded is (weighting is sy.Evidence)
    for judge in ("bounded", "loss"):
        assert sy.Balancer(NAMES, loss=mse_loss, weighting=weighting(), judge=judge).valuation.judging.bounded is (
            judge == "bounded"
        )
    assert not sy.Balancer(NAMES, loss=mse_loss, weighting=weighting(), judge=l1_loss).valuation.judging.bounded


@every_probe
def test_votes_on_bounded_losses_are_sums_of_the_bounded_scores(probe):
    model, optimizer = set_up()
    balancer = sy.Balancer(NAMES, loss=mse_loss, weighting=sy.DirichletVote(), probe=probe(), judge="bounded")
    balancer(model, samples_of(), optimizer)
    table = judged_table(balancer, model, optimizer, samples_of())
    trains = {name: (x[:3], y[:3]) for name, (x, y) in samples_of().items()}
    levels = torch.tensor([mse_loss(model(x), y).item() for x, y in trains.values()], dtype=torch.float64)
    if probe is sy.InnerLoop:
        expected = (1 - torch.exp(-table / levels))[:-1].sum(1)
    else:
        tests = [(x[3:], y[3:]) for x, y in samples_of().values()]
        before = torch.tensor([mse_loss(model(x), y).item() for x, y in tests], dtype=torch.float64)
        slopes = torch.exp(-before / levels) / levels
        expected = (1 - torch.exp(-before / levels) + slopes * (table - before))[:-1].sum(1)
    assert list(balancer.last.measured.values()) == pytest.approx(expected.tolist(), rel=1e-9)


@every_probe
@pytest.mark.parametrize("form", ["one", "each", "objective"])
def test_a_judge_of_ones_own_gives_the_scores(probe, form):
    model, optimizer = set_up()
    samples = samples_of()
    judges = {"a": l1_loss, "b": mse_loss, "c": nn.SmoothL1Loss()} if form == "each" else for_all(l1_loss, NAMES)
    settings = {"loss": mse_loss, "judge": judges if form == "each" else l1_loss}
    if form == "objective":
        settings = {
            "objective": lambda m, pair: mse_loss(m(pair[0]), pair[1]),
            "judge": lambda m, pair: l1_loss(m(pair[0]), pair[1]),
        }
    balancer = sy.Balancer(NAMES, probe=probe(), **settings)
    loss = balancer(model, samples, optimizer)
    assert balancer.last.outcome is sy.Outcome.UPDATED
    halves = first_halves(samples, 3)
    trains, tests = ({name: pair[half] for name, pair in halves.items()} for half in (0, 1))
    steps = plain_steps(model, optimizer, trains, for_all(mse_loss, NAMES))
    expected = exact_table(steps, tests, judges)
    if probe is not sy.InnerLoop:
        expected, _ = first_order_table(model, steps, tests, judges)
    torch.testing.assert_close(judged_table(balancer, model, optimizer, samples), expected, rtol=1e-9, atol=1e-12)
    # The judge judges; the outer loss is the loss.
    plain = sum(balancer.weights[name] * mse_loss(model(x), y) for name, (x, y) in samples.items())
    gradients = torch.autograd.grad(plain, list(model.parameters()))
    optimizer.zero_grad()
    loss.backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    assert loss.item() == pytest.approx(plain.item())


@pytest.mark.parametrize("form", ["loss", "objective"])
def test_a_judge_without_gradient_is_for_the_exact_probe(form):
    model, optimizer = set_up()
    settings = {"loss": mse_loss, "judge": accuracy_loss}
    if form == "objective":
        settings = {
            "objective": lambda m, pair: mse_loss(m(pair[0]), pair[1]),
            "judge": lambda m, pair: accuracy_loss(m(pair[0]), pair[1]),
        }
    balancer = sy.Balancer(NAMES, probe=sy.InnerLoop(), **settings)
    balancer(model, samples_of(), optimizer)
    halves = first_halves(samples_of(), 3)
    trains, tests = ({name: pair[half] for name, pair in halves.items()} for half in (0, 1))
    steps = plain_steps(model, optimizer, trains, for_all(mse_loss, NAMES))
    expected = exact_table(steps, tests, for_all(accuracy_loss, NAMES))
    assert torch.equal(judged_table(balancer, model, optimizer, samples_of()), expected)
    balancer = sy.Balancer(NAMES, probe=sy.FirstOrder(), **settings)
    with pytest.raises(ValueError, match=r"^FirstOrder needs the gradient of the judge, and the judge has none: pass"):
        balancer(model, samples_of(), optimizer)


def test_judges_may_return_numbers_and_tensors_side_by_side():
    model, optimizer = set_up()
    model = model.float()
    samples = batch((6, 6, 6), names=NAMES)
    judges = {"a": accuracy_loss, "b": l1_loss, "c": lambda o, y: (o > y).sum()}
    balancer = sy.Balancer(NAMES, loss=mse_loss, judge=judges, probe=sy.InnerLoop())
    balancer(model, samples, optimizer)
    assert balancer.last.outcome is sy.Outcome.UPDATED


@pytest.mark.parametrize("meta_test", ["eval", "batch", "step"])
def test_the_exact_probe_never_differentiates_a_judge(meta_test):
    model, optimizer = set_up()
    calls = []

    def judge(outputs, targets):
        assert not outputs.requires_grad
        assert not torch.is_grad_enabled()
        calls.append(len(targets))
        return outputs.numpy().mean()  # which refuses a tensor with a gradient

    pytest.importorskip("numpy")
    balancer = sy.Balancer(NAMES, loss=mse_loss, judge=judge, probe=sy.InnerLoop(meta_test=meta_test))
    balancer(model, samples_of(), optimizer)
    assert calls == [3] * 12  # three domains after four steps


@pytest.mark.parametrize(
    ("judge", "error", "message"),
    [
        ("accuracy", ValueError, "judge must be 'bounded', 'loss' or a function; got 'accuracy'"),
        (nn.L1Loss, TypeError, "a judge must be a function or an instance of a module; got <class"),
        ({"a": l1_loss}, ValueError, r"judge must hold one judge for each of \('a', 'b', 'c'\); got \('a',\)"),
    ],
)
def test_refuses_what_cannot_judge(judge, error, message):
    with pytest.raises(error, match=message):
        sy.Balancer(NAMES, loss=mse_loss, judge=judge)


@every_probe
def test_refuses_a_score_for_each_sample(probe):
    model, optimizer = set_up()
    balancer = sy.Balancer(NAMES, loss=mse_loss, judge=lambda o, y: (o - y).abs(), probe=probe())
    with pytest.raises(ValueError, match="the score of domain 'a' must be one number in a tensor"):
        balancer(model, samples_of(), optimizer)


@every_probe
def test_a_judge_leaves_no_trace(probe):
    """Dropout, batch statistics, a judge with a memory: all as before, but for the outer pass."""

    class Remembering(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, outputs, targets):
            self.calls += 1
            return l1_loss(outputs, targets) + 0.0 * torch.rand(())

    states = []
    for judge in (None, Remembering()):
        torch.manual_seed(5)
        random.seed(5)
        model = everything()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for seed in range(3):
            take_step(mse_loss(model(batch(seed=seed)["a"][0]), batch(seed=seed)["a"][1]), optimizer)
        settings = {"weighting": sy.Fixed(), "probe": None}
        if judge is not None:
            settings = {"weighting": sy.Fixed(), "probe": probe(), "judge": judge}
        balancer = sy.Balancer(("a", "b"), loss=mse_loss, **settings)
        for seed in range(3):
            take_step(balancer(model, batch(seed=seed), optimizer), optimizer)
        states.append((model.state_dict(), torch.get_rng_state(), random.getstate(), model.calls))
    assert bool(balancer.last.measured)
    assert balancer.domain_losses.judge.calls == 0
    assert states[0][2:] == states[1][2:]
    assert torch.equal(states[0][1], states[1][1])
    for plain, judged in zip(states[0][0].values(), states[1][0].values(), strict=True):
        assert torch.equal(plain, judged)


@pytest.mark.parametrize("call", [1, 4, 10, 12, 13])
@pytest.mark.parametrize("weighting", [sy.Evidence, sy.DirichletVote])
def test_a_call_in_which_a_judge_raises_counts_nothing(call, weighting):
    model, optimizer = set_up()
    fails = {"at": 0}

    def judge(outputs, targets):
        fails["at"] -= 1
        if fails["at"] == 0:
            raise RuntimeError("no score today")
        return l1_loss(outputs, targets)

    settings = {"loss": mse_loss, "probe": sy.InnerLoop(), "judge": judge, "weighting": weighting()}
    balancer = sy.Balancer(NAMES, importance={"a": 1, "b": 2, "c": 3}, **settings)
    for seed in range(2):
        balancer(model, samples_of(seed), optimizer)
    before = copy.deepcopy(balancer.state_dict())
    audit = str(balancer.audit())
    fails["at"] = call
    if call == 13:  # all twelve scores of the vote are done
        balancer(model, samples_of(2), optimizer)
        assert balancer.tally != {"updated": 2}
        return
    with pytest.raises(ValueError, match="no score today"):
        balancer(model, samples_of(2), optimizer)
    after = balancer.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert str(balancer.audit()) == audit


@pytest.mark.parametrize("fails_at", ["the vote", "the outer pass"])
def test_a_first_call_that_raises_counts_nothing_either(fails_at):
    model, optimizer = set_up()
    sizes = {"the vote": 3, "the outer pass": 6}

    def loss(outputs, targets):
        if len(targets) == sizes.get(fails["at"]):
            raise RuntimeError("not now")
        return mse_loss(outputs, targets)

    fails = {"at": fails_at}
    balancer = sy.Balancer(NAMES, objective=lambda m, pair: loss(m(pair[0]), pair[1]))  # objectives share no pass
    with pytest.raises((RuntimeError, ValueError), match="not now"):
        balancer(model, samples_of(), optimizer)
    fails["at"] = None
    again = sy.Balancer(NAMES, objective=lambda m, pair: loss(m(pair[0]), pair[1]))
    for same in (balancer, again):
        same(model, samples_of(), optimizer)
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, balancer.state_dict()[name]), name


def test_what_was_measured_in_bounded_scores_is_forgotten_when_a_loss_turns_negative():
    balancer = sy.Balancer(("a", "b"), loss=mse_loss, probe=sy.InnerLoop())
    table = [[1.0, 2.0], [2.0, 1.0], [1.5, 1.5]]
    finding = Finding(sy.Measurement.of(torch.ones(2)), scores=scores(table))
    balancer.valuation.measurement(finding, 1)
    balancer.valuation.measurement(
        Finding(sy.Measurement.of(torch.ones(2)), scores=scores(table, losses=(2.0, -1.0))), 2
    )
    assert balancer.transfer.count.tolist() == [[2, 1], [2, 1]]
    assert balancer.transfer.mean[0, 1] == 0.5
