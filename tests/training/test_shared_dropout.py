"""Under dropout a shared vote's passes are the outer step's: each draws its own masks, and the generators advance."""

import copy
import random
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout, mse_loss

import steelyard as sy
from steelyard.probing.passes import leaves_of
from steelyard.probing.replica import Replica
from steelyard.probing.vote_probe import Half
from toys import balancer, batch, take_step

WEIGHTS = {"a": 0.3, "b": 0.7}


class Dropping(nn.Module):
    """Dropout by a module and by a function."""

    def __init__(self):
        super().__init__()
        self.first, self.module, self.last = nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 1)

    def forward(self, x):
        return self.last(dropout(self.module(self.first(x)).tanh(), 0.2, self.training))


class Changed(Dropping):
    """Does something else in training mode, besides dropout."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x):
        return super().forward(self.change(x) if self.training else x)


def shared(probe=None, **kwargs):
    return balancer(weighting=sy.Fixed(list(WEIGHTS.values())), probe=probe or sy.FirstOrder(), **kwargs)


def one_by_one(**kwargs):
    probe = sy.FirstOrder(**kwargs)
    probe.vmapping.refuse(ValueError("a test"))
    return probe


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def gradient_of(loss, model):
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([gradient.flatten() for gradient in gradients])


def plain_passes(model, samples, m=3):
    """The weighted loss, from one pass over each half, in the order of the vote."""
    total = 0.0
    for rows in (slice(0, m), slice(m, None)):
        for name, (x, y) in samples.items():
            total = total + WEIGHTS[name] * len(x[rows]) / len(x) * mse_loss(model(x[rows]), y[rows])
    return total


@pytest.mark.parametrize("reuse", ["detect", True])
@pytest.mark.parametrize("votes", [1, 3])
def test_gradients_and_generators_are_those_of_the_passes(reuse, votes):
    model, judge = Dropping(), shared(one_by_one(reuse=reuse))
    for seed in range(votes):  # the first vote audits, which must draw nothing that stays
        random.seed(seed)
        torch.manual_seed(seed)
        loss = judge(model, batch(seed=seed), sgd(model))
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        expected = plain_passes(model, batch(seed=seed))
        assert torch.equal(torch.get_rng_state(), state)
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(gradient_of(loss, model), gradient_of(expected, model))
    assert judge.probe.reuse.reason is None


def test_what_the_vote_measures_is_measured_on_these_passes():
    model, judge = Dropping(), balancer(probe=one_by_one(step="sgd"))
    torch.manual_seed(7)
    judge(model, batch(), sgd(model))
    torch.manual_seed(7)
    losses, gradients = [], []
    for rows in (slice(0, 3), slice(3, 6)):
        for x, y in batch().values():
            loss = mse_loss(model(x[rows]), y[rows])
            losses.append(loss.detach())
            gradients.append(gradient_of(loss, model))
    judged = gradients[2] + gradients[3]
    for name, gradient in zip("ab", gradients[:2], strict=True):
        expected = float(losses[2] + losses[3] - 0.05 * gradient @ judged)
        assert judge.last.measured[name] == pytest.approx(expected, rel=1e-5)


def test_halves_run_at_once_draw_masks_of_their_own():
    model, probe = Dropping(), sy.FirstOrder()
    judge = shared(probe)
    judge(model, batch(), sgd(model))
    assert (probe.reuse.reason, probe.vmapping.reason) == (None, None)
    replica = Replica(model, judge.domain_losses)
    leaves = leaves_of(replica, sgd(model), everything=True)
    halves = [Half(name, batch()["a"], 0.5) for name in "aabb"]  # the same samples
    state = torch.get_rng_state()
    losses = probe.vmapping.run(replica, halves, leaves, vote_number=2).losses
    assert len({loss.item() for loss in losses}) == 4
    assert not torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("make", [one_by_one, sy.FirstOrder], ids=["one by one", "at once"])
def test_the_expected_gradient_is_the_plain_weighted_losss(make):
    """It has a closed form for dropout on the inputs of a linear model."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 1, bias=False)).double()
    nn.init.constant_(model[1].weight, 2.0)
    samples = batch(features=3, dtype=torch.float64)
    weight = model[1].weight.detach()[0]
    expected, left_out = torch.zeros(2, 3, dtype=torch.float64)
    for name, (x, y) in samples.items():
        left_out += WEIGHTS[name] * 2 / len(x) * (x.T @ (x @ weight - y[:, 0]))
        # E[m_k m_l] is 1, and 2 where k = l, for masks m of 0 and 2.
        expected += WEIGHTS[name] * 2 / len(x) * x.square().sum(0) * weight
    expected += left_out
    judge, optimizer = shared(make()), sgd(model)
    gradients = torch.stack([gradient_of(judge(model, samples, optimizer), model) for _ in range(300)])
    assert judge.probe.reuse.reason is None
    error = gradients.std(0) / len(gradients) ** 0.5
    assert float(((gradients.mean(0) - expected) / error).abs().max()) < 4
    assert float(((left_out - expected) / error).abs().max()) > 8  # dropout left out would be seen


NOT_SHARING = {
    "first order": partial(sy.FirstOrder, reuse=False),
    "inner loop": sy.InnerLoop,
    "inner loop, detecting": partial(sy.InnerLoop, reuse="detect"),
    "gathering": partial(sy.FirstOrder, gather=True),
}


@pytest.mark.parametrize("probe", NOT_SHARING.values(), ids=NOT_SHARING)
def test_votes_that_are_not_shared_change_no_bit_of_training(probe):
    results = []
    for chosen in (None, probe()):
        torch.manual_seed(4)
        model = Dropping()
        optimizer, judge = sgd(model), balancer(weighting=sy.Fixed([0.3, 0.7]), probe=chosen)
        for seed in range(4):
            take_step(judge(model, batch(seed=seed), optimizer), optimizer)
        results.append([*model.state_dict().values(), torch.get_rng_state()])
    assert judge.last.measured
    for plain, measured in zip(*results, strict=True):
        assert torch.equal(plain, measured)


def test_a_step_without_a_vote_draws_as_a_plain_one():
    model, judge = Dropping(), shared(sy.FirstOrder(every=2))
    torch.manual_seed(1)
    loss = judge(model, batch(), sgd(model))
    torch.manual_seed(1)
    assert loss.item() == shared(sy.FirstOrder(every=2))(model, batch(), sgd(model)).item()
    assert not judge.last.measured


class InterruptedRunError(Exception):
    pass


def test_an_interrupted_vote_draws_nothing():
    calls = []

    def failing(output, target):
        calls.append(output)
        if len(calls) == 3:
            raise InterruptedRunError
        return mse_loss(output, target)

    model = Dropping()
    state = torch.get_rng_state()
    with pytest.raises(InterruptedRunError):
        shared(one_by_one(), loss=failing)(model, batch(), sgd(model))
    assert torch.equal(torch.get_rng_state(), state)


REFUSED = {
    "noise": (lambda x: x + 0.1 * torch.randn_like(x), "draws random numbers that are not dropout's"),
    "a shuffle": (lambda x: x + 0.1 * x[torch.randperm(len(x))], "draws random numbers that are not dropout's"),
    "python's numbers": (lambda x: x * (1 + 0.1 * random.random()), "draws random numbers that are not dropout's"),
    "samples that meet": (lambda x: x - x.mean(0), "as a mean of halves"),
    "another function": (lambda x: 0.5 * x, "as a mean of halves"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_dropout_must_be_the_only_reason_that_passes_differ(name):
    change, message = REFUSED[name]
    results = []
    for probe in (None, sy.FirstOrder()):
        random.seed(2)
        torch.manual_seed(2)
        model = Changed(change)
        optimizer, judge = sgd(model), balancer(weighting=sy.Fixed([0.3, 0.7]), probe=probe)
        for seed in range(3):
            take_step(judge(model, batch(seed=seed), optimizer), optimizer)
        results.append([*model.state_dict().values(), torch.get_rng_state()])
    assert message in probe.reuse.reason
    for plain, measured in zip(*results, strict=True):
        assert torch.equal(plain, measured)
    with pytest.raises(ValueError, match=f"reuse=True needs .*{message}"):
        shared(sy.FirstOrder(reuse=True))(model, batch(), optimizer)


class Starting(nn.Module):
    """Adds noise once it is told to."""

    def __init__(self):
        super().__init__()
        self.last, self.strength = nn.Linear(6, 1), 0.0

    def forward(self, x):
        return self.last(x + self.strength * torch.randn_like(x) if self.strength else x)


def test_noise_that_begins_later_is_found_then():
    model, judge = Starting(), shared()
    for _ in range(2):
        judge(model, batch(), sgd(model))
        assert judge.probe.reuse.reason is None
    model.strength = 0.1
    judge(model, batch(), sgd(model))
    assert "not dropout's" in judge.probe.reuse.reason


def test_with_a_judge_of_ones_own_the_steps_are_judged_without_dropout():
    model = Dropping()
    judge = balancer(probe=one_by_one(step="sgd"), judge=lambda o, y: (o - y).abs().mean())
    torch.manual_seed(7)
    judge(model, batch(), sgd(model))
    after_vote = torch.get_rng_state()
    torch.manual_seed(7)
    rows = []
    for x, y in batch().values():
        rows.append(gradient_of(mse_loss(model(x[:3]), y[:3]), model))
    model(torch.cat([x[3:] for x, _ in batch().values()]))  # what is left to the outer step
    assert torch.equal(torch.get_rng_state(), after_vote)
    model.eval()
    score = sum((model(x[3:]) - y[3:]).abs().mean() for x, y in batch().values())
    slope = gradient_of(score, model)
    for name, row in zip("ab", rows, strict=True):
        assert judge.last.measured[name] == pytest.approx(float(score.detach() - 0.05 * row @ slope), rel=1e-5)


@pytest.mark.parametrize("sizes", [(6, 6), (5, 6)], ids=["at once", "one by one"])
def test_a_resumed_run_is_bit_identical(sizes):
    def run(stop):
        torch.manual_seed(5)
        model = Dropping()
        optimizer, judge = sgd(model), sy.Balancer(("a", "b"), loss=mse_loss)
        for seed in range(6):
            if seed == stop:
                states = copy.deepcopy([part.state_dict() for part in (model, optimizer, judge)])
                state = torch.get_rng_state()
                model = Dropping()
                optimizer, judge = sgd(model), sy.Balancer(("a", "b"), loss=mse_loss)
                for part, saved in zip((model, optimizer, judge), states, strict=True):
                    part.load_state_dict(saved)
                torch.set_rng_state(state)
            take_step(judge(model, batch(sizes, seed=seed), optimizer), optimizer)
        assert (judge.probe.every, judge.probe.reuse.reason) == (1, None)
        return judge.weights, [value.tolist() for value in model.state_dict().values()]

    assert run(None) == run(3)


def dropping_by_a_function():
    model = Dropping()
    model.module = nn.Identity()
    return model


@pytest.mark.parametrize("make", [Dropping, dropping_by_a_function])
@pytest.mark.parametrize("probe", [sy.InnerLoop, sy.Gramian])
def test_probes_whose_passes_draw_the_same_numbers_do_not_share(probe, make):
    model = make()
    weighting = sy.DualBalancing if probe is sy.Gramian else sy.DirichletVote
    judge = balancer(probe=probe(reuse="detect"), weighting=weighting())
    judge(model, batch(), sgd(model))
    assert "draws random numbers" in judge.probe.reuse.reason
    with pytest.raises(ValueError, match=r"reuse=True needs .*draws random numbers"):
        balancer(probe=probe(reuse=True), weighting=weighting())(model, batch(), sgd(model))


def test_what_dropout_refuses_is_shared_once_dropout_is_off():
    model, probe = nn.Sequential(nn.Dropout(0.3), nn.Linear(6, 1)), sy.InnerLoop(reuse="detect")
    judge = balancer(probe=probe)
    judge(model, batch(), sgd(model))
    assert probe.reuse.reason == "Dropout draws random numbers"
    model[0].p = 0.0
    judge(model, batch(), sgd(model))
    assert probe.reuse.reason is None
