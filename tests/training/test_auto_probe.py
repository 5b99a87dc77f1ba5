"""The probe that is chosen at the first call, what `print` says about it, and checkpoints with it."""

import io
import json

import pytest
import torch
from torch import nn
from torch.nn.functional import l1_loss, mse_loss

import steelyard as sy
from toys import batch, smooth, take_step

NAMES = ("a", "b")


def mlp():
    return smooth()


def normalised():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


def dropping():
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 1))


def evaluating():
    return normalised().eval()


def objective(model, pair):
    return mse_loss(model(pair[0]), pair[1])


def accuracy_loss(outputs, targets):
    return float(((outputs > 0) != (targets > 0)).double().mean())


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def called_once(make=mlp, *, domains=NAMES, optimizer=sgd, **kwargs):
    model = make()
    settings = kwargs if "objective" in kwargs else {"loss": mse_loss, **kwargs}
    balancer = sy.Balancer(domains, **settings)
    balancer(model, batch((4,) * len(domains), names=domains), optimizer(model))
    return balancer


MANY = tuple(f"domain {number}" for number in range(16))
CHOICES = {
    "mlp": ({}, sy.FirstOrder, 1, "uses the outer step's gradients, and so is cast on every step"),
    "batch norm": ({"make": normalised}, sy.InnerLoop, 10, "with batch normalisation exact votes cost least"),
    "evaluated norm": ({"make": evaluating}, sy.FirstOrder, 1, "on every step"),
    "dropout": ({"make": dropping}, sy.FirstOrder, 1, "uses the outer step's gradients, and so is cast on every step"),
    "judge": ({"judge": accuracy_loss}, sy.InnerLoop, 6, "a judge of one's own need not have a gradient"),
    "judge by loss": ({"judge": "loss"}, sy.FirstOrder, 1, "on every step"),
    "objective": ({"objective": objective}, sy.FirstOrder, 8, "an objective runs the model itself"),
    "many domains": ({"domains": MANY}, sy.FirstOrder, 4, "has many domains to compare; every 4 steps"),
    "many judged": ({"domains": MANY, "judge": l1_loss}, sy.InnerLoop, 32, "every 32 steps"),
}


@pytest.mark.parametrize("case", CHOICES)
def test_the_choice_follows_the_model_and_is_explained(case):
    settings, kind, every, reason = CHOICES[case]
    balancer = called_once(**settings)
    assert type(balancer.probe) is kind
    assert balancer.probe.every == every
    assert balancer.probe.warm_up == (0 if every == 1 else 100)
    assert balancer.probe.step == "optimizer"
    assert f"probe='auto': {kind.__name__}, because" in str(balancer)
    assert reason in str(balancer)
    assert set(balancer.last.measured) == set(balancer.domains)  # two domains may tie in their first vote
    if kind is sy.InnerLoop:
        assert balancer.probe.meta_test == "step"


def test_an_optimizer_whose_step_cannot_be_followed_is_replaced_by_plain_descent():
    balancer = called_once(optimizer=lambda model: torch.optim.LBFGS(model.parameters(), lr=0.1))
    assert balancer.probe.step == "sgd"
    assert set(balancer.last.measured) == set(NAMES)


def test_a_weighting_of_gradients_gets_gradients():
    balancer = called_once(weighting=sy.DualBalancing())
    assert type(balancer.probe) is sy.Gramian
    assert "the weighting needs gradients alone" in str(balancer)


def test_counted_votes_get_a_probe_too():
    assert type(called_once(weighting=sy.DirichletVote()).probe) is sy.FirstOrder


@pytest.mark.parametrize("weighting", [sy.Fixed, sy.GroupDRO, sy.UncertaintyWeighting])
def test_a_weighting_that_needs_no_measurement_has_no_probe_and_no_need_of_an_optimizer(weighting):
    balancer = sy.Balancer(NAMES, loss=mse_loss, weighting=weighting())
    balancer(mlp(), batch())
    assert balancer.probe is None
    assert "probe='auto'" not in str(balancer)


def test_nothing_is_chosen_before_the_first_call_in_training():
    model = mlp()
    balancer = sy.Balancer(NAMES, loss=mse_loss)
    assert "probe='auto', to be chosen at the first call" in str(balancer)
    balancer.eval()
    balancer(model, batch(), sgd(model))
    with torch.no_grad():
        balancer.train()(model, batch())
    assert balancer.probe is None
    with pytest.raises(ValueError, match=r"the optimizer is needed for the vote: balancer\(model, batch, optimizer\)"):
        balancer(model, batch())
    with pytest.raises(TypeError, match="optimizer must be an instance of Optimizer; got list"):
        balancer(model, batch(), [])
    balancer(model, batch(), sgd(model))
    assert type(balancer.probe) is sy.FirstOrder
    assert int(balancer.probe.steps) == sum(balancer.tally.values()) == 1


def test_learning_weights_without_a_probe_is_warned_of():
    for weighting in (sy.Evidence(), sy.DirichletVote()):
        with pytest.warns(UserWarning, match=f"without a probe the weights of {type(weighting).__name__} stay"):
            balancer = sy.Balancer(NAMES, loss=mse_loss, weighting=weighting, probe=None)
    balancer(mlp(), batch())
    assert balancer.last.outcome is sy.Outcome.NO_PROBE
    assert balancer.weights == {"a": 0.5, "b": 0.5}


def test_refuses_a_probe_that_yields_no_scores():
    with pytest.raises(ValueError, match="Evidence needs worth; Gramian provides Gramian"):
        sy.Balancer(NAMES, loss=mse_loss, probe=sy.Gramian())
    with pytest.raises(TypeError, match="probe must be an instance of Probe; got str"):
        sy.Balancer(NAMES, loss=mse_loss, probe="FirstOrder")


def settings_of(kind):
    weighting = sy.Evidence(rate=0.5, caution=0.1)
    settings = {"loss": mse_loss, "weighting": weighting, "importance": {"a": 1, "b": 2}}
    if kind == "judge":
        settings["judge"] = l1_loss
    return settings


MODELS = {"mlp": mlp, "judge": mlp, "batch norm": normalised, "dropout": dropping}


def run_steps(balancer, model, optimizer, steps):
    """Train, judged by held-out samples on every other step; a domain is absent from every third batch."""
    for step in steps:
        samples = batch((4, 6), seed=step)
        if step % 3 == 2:
            del samples["b"]
        held_out = batch((5, 3), seed=1000 + step) if step % 2 else None
        take_step(balancer(model, samples, optimizer, held_out=held_out), optimizer)


def saved(*modules):
    buffer = io.BytesIO()
    torch.save([module.state_dict() for module in modules], buffer)
    buffer.seek(0)
    return torch.load(buffer)


@pytest.mark.parametrize("kind", MODELS)
def test_a_checkpoint_continues_bit_for_bit_in_a_balancer_that_was_never_called(kind):
    torch.manual_seed(1)
    model = MODELS[kind]()
    optimizer, balancer = sgd(model), sy.Balancer(NAMES, **settings_of(kind))
    run_steps(balancer, model, optimizer, range(8))
    states, random_state = saved(model, optimizer, balancer), torch.get_rng_state()
    run_steps(balancer, model, optimizer, range(8, 20))
    other_model = MODELS[kind]()
    other_optimizer, other = sgd(other_model), sy.Balancer(NAMES, **settings_of(kind))
    for module, state in zip((other_model, other_optimizer, other), states, strict=True):
        module.load_state_dict(state)
    torch.set_rng_state(random_state)
    assert type(other.probe) is type(balancer.probe)
    assert str(other).split("\n")[1] == str(balancer).split("\n")[1]  # which probe, and why
    run_steps(other, other_model, other_optimizer, range(8, 20))
    assert other.weights == balancer.weights != {"a": 0.5, "b": 0.5}
    assert json.dumps(other.audit().as_dict()) == json.dumps(balancer.audit().as_dict())
    for name, tensor in balancer.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other_model.state_dict()[name]), name


def test_a_checkpoint_from_before_the_choice_loads_before_and_after_it():
    model = mlp()
    (start,) = saved(sy.Balancer(NAMES, loss=mse_loss))
    fresh, used = sy.Balancer(NAMES, loss=mse_loss), sy.Balancer(NAMES, loss=mse_loss)
    used(model, batch(), sgd(model))
    for balancer in (fresh, used):
        balancer.load_state_dict(start)
        assert "to be chosen at the first call" in str(balancer)
        balancer(model, batch(), sgd(model))
        assert int(balancer.probe.steps) == sum(balancer.tally.values()) == 1


def test_a_checkpoint_of_another_choice_replaces_the_choice():
    first, second = called_once(), called_once(normalised)
    second.load_state_dict(first.state_dict())
    assert type(second.probe) is sy.FirstOrder
    assert "so is cast on every step" in str(second)


def test_a_balancer_within_a_module_is_restored_with_it():
    def make():
        return nn.ModuleDict({"model": mlp(), "balancer": sy.Balancer(NAMES, loss=mse_loss)})

    module = make()
    run_steps(module["balancer"], module["model"], sgd(module["model"]), range(2))
    other = make()
    other.load_state_dict(module.state_dict())
    assert type(other["balancer"].probe) is sy.FirstOrder
    assert int(other["balancer"].probe.steps) == 2


@pytest.mark.parametrize("choice", ["conservative", "greedy"])
def test_the_papers_setting_is_one_name(choice):
    runs = []
    for named in (True, False):
        torch.manual_seed(2)
        model = normalised()
        optimizer = sgd(model)
        if named:
            balancer = sy.paper_balancer(NAMES, loss=mse_loss, choice=choice, window=4, prior=2.0)
        else:
            weighting = sy.DirichletVote(choice, window=4, prior=2.0)
            balancer = sy.Balancer(NAMES, loss=mse_loss, weighting=weighting, probe=sy.InnerLoop())
        votes = []
        for step in range(20):
            take_step(balancer(model, batch(seed=step), optimizer), optimizer)
            votes.append((balancer.last.vote, dict(balancer.last.measured), balancer.weights))
        runs.append(votes)
    assert runs[0] == runs[1]
    assert {vote for vote, _, _ in runs[0]} == set(NAMES)


def test_held_out_samples_at_the_first_call_take_passes_of_their_own():
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    balancer = sy.Balancer(("a", "b"), loss=mse_loss)
    balancer(model, batch(), optimizer, held_out=batch(seed=1))
    assert (type(balancer.probe), balancer.probe.every) == (sy.FirstOrder, 4)
    assert "held-out samples take passes of their own" in str(balancer)


def test_votes_become_rarer_where_the_first_shows_that_nothing_can_be_shared():
    """A sum over samples is not a mean over them, which no module tells beforehand."""
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    balancer = sy.Balancer(("a", "b"), loss=lambda o, y: mse_loss(o, y, reduction="sum"))
    balancer(model, batch(), optimizer)
    assert (balancer.probe.every, balancer.probe.warm_up) == (8, 100)
    assert "so a vote takes extra passes; every 8 steps" in str(balancer)
    resumed = sy.Balancer(("a", "b"), loss=lambda o, y: mse_loss(o, y, reduction="sum"))
    resumed.load_state_dict(balancer.state_dict())
    assert resumed.probe.every == 8


def test_a_checkpoint_of_another_judge_or_importance_is_refused():
    state = sy.Balancer(("a", "b"), loss=mse_loss).state_dict()
    with pytest.raises(ValueError, match=r"was judged by .* this balancer judges by own judge"):
        sy.Balancer(("a", "b"), loss=mse_loss, judge=l1_loss).load_state_dict(state)
    with pytest.raises(ValueError, match=r"has the importance \[0.5, 0.5\]; this balancer \[0.75, 0.25\]"):
        sy.Balancer(("a", "b"), loss=mse_loss, importance={"a": 3, "b": 1}).load_state_dict(state)


def test_the_step_alone_is_judged_unless_votes_are_counted():
    assert sy.Balancer(("a", "b"), loss=mse_loss, probe=sy.InnerLoop()).probe.meta_test == "step"
    assert sy.Balancer(("a", "b"), loss=mse_loss, probe=sy.InnerLoop(meta_test="eval")).probe.meta_test == "eval"
    assert sy.paper_balancer(("a", "b"), loss=mse_loss).probe.meta_test == "eval"


def test_votes_of_many_domains_become_rarer_still_where_nothing_can_be_shared():
    names = tuple("abcde")
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    balancer = sy.Balancer(names, loss=lambda o, y: mse_loss(o, y, reduction="sum"))
    balancer(model, batch((4,) * 5, names=names), optimizer)
    assert (balancer.probe.every, balancer.probe.warm_up) == (10, 100)
