import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import steelyard as sy
from toys import DOMAINS, balancer, batch, everything, first_halves, reference_hypothetical_losses, smooth, take_step

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "Nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "maximize": lambda p: torch.optim.SGD(p, lr=0.01, maximize=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "Adam amsgrad foreach": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=True),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "Adam tensor rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.05),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
}


def measured(model, optimizer, samples, **kwargs):
    judge = balancer(probe=sy.InnerLoop(**kwargs))
    judge(model, samples, optimizer)
    return judge.last.measured


def trained(model, optimizer, steps=3):
    for step in range(steps):
        for x, y in batch(seed=100 + step).values():
            take_step(mse_loss(model(x), y), optimizer)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("steps", [0, 3])
def test_follows_the_optimizers_own_rule_and_state(name, steps):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = OPTIMIZERS[name](model.parameters())
    trained(model, optimizer, steps)
    expected = reference_hypothetical_losses(model, optimizer, first_halves(batch(), 3))
    assert measured(model, optimizer, batch()) == pytest.approx(expected, rel=1e-6)


def test_follows_parameter_groups_and_rates_changed_since():
    model = smooth()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters(), "momentum": 0.9}], lr=0.01
    )
    trained(model, optimizer)
    optimizer.param_groups[0]["lr"] = 0.003
    expected = reference_hypothetical_losses(model, optimizer, first_halves(batch(), 3))
    assert measured(model, optimizer, batch()) == pytest.approx(expected, rel=1e-6)


def test_a_parameter_that_the_optimizer_does_not_hold_stays():
    model = smooth()
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    expected = reference_hypothetical_losses(model, optimizer, first_halves(batch(), 3))
    assert measured(model, optimizer, batch()) == pytest.approx(expected, rel=1e-6)


def test_plain_sgd_step_ignores_the_optimizers_rule():
    model = smooth()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    trained(model, optimizer)
    plain = torch.optim.SGD(model.parameters(), lr=0.03)
    expected = reference_hypothetical_losses(model, plain, first_halves(batch(), 3))
    assert measured(model, optimizer, batch(), step="sgd") == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("evaluate", [True, False])
def test_meta_test_in_evaluation_mode_or_on_batch_statistics(evaluate):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    joined = first_halves(batch(), 3)
    expected = {}
    for name in DOMAINS:
        twin, stepper = copy.deepcopy((model, optimizer))
        (x, y), _ = joined[name]
        mse_loss(twin(x), y).backward()
        stepper.step()
        twin.train(not evaluate)
        tests = [test for _, test in joined.values()]
        with torch.no_grad():  # the balancer runs the domains together, which batch statistics see
            outputs = twin(torch.cat([x for x, _ in tests])).split(3)
        expected[name] = sum(mse_loss(o, y).item() for o, (_, y) in zip(outputs, tests, strict=True))
    found = measured(model, optimizer, batch(), meta_test="eval" if evaluate else "batch")
    assert found == pytest.approx(expected, rel=1e-6)


def test_layers_that_the_user_froze_stay_as_found():
    model, optimizer = (model := everything()), torch.optim.SGD(model.parameters(), lr=0.05)
    seen = []

    def watch(module, *_):
        seen.append((module is model.frozen_norm, module.training, module.running_mean.clone()))

    model.frozen_norm.register_forward_hook(watch)
    measured(model, optimizer, batch(), meta_test="batch")
    inner = [entry for entry in seen if not entry[0]]
    assert len(inner) == 5  # two steps and their scores, and the scores after the zero step
    assert all(not training and not mean.any() for _, training, mean in inner)


def test_the_first_halves_are_as_large_as_the_rarer_domain_allows():
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    samples = batch(sizes=(9, 5))
    expected = reference_hypothetical_losses(model, optimizer, first_halves(samples, 2))
    assert measured(model, optimizer, samples) == pytest.approx(expected, rel=1e-6)


def test_random_halves_differ_from_step_to_step_and_repeat_from_a_checkpoint():
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    one = balancer(probe=sy.InnerLoop(split="random"))
    found = []
    for _ in range(3):
        one(model, batch(), optimizer)
        found.append(one.last.measured)
    other = balancer(probe=sy.InnerLoop(split="random"))
    saved = one.state_dict()
    saved["probe.steps"] = torch.tensor(1)
    other.load_state_dict(saved)
    other(model, batch(), optimizer)
    assert other.last.measured == found[1]
    assert len({tuple(values.values()) for values in found}) == 3


def test_votes_on_each_nth_step_only():
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    judge = balancer(probe=sy.InnerLoop(every=3))
    outcomes = []
    for _ in range(7):
        judge(model, batch(), optimizer)
        outcomes.append(judge.last.outcome is sy.Outcome.UPDATED)
    assert outcomes == [False, False, True, False, False, True, False]


def test_gathers_samples_across_batches_of_one():
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ones = [batch(sizes=(1, 1), seed=seed) for seed in range(4)]
    judge, idle = balancer(probe=sy.InnerLoop(gather=True)), balancer(probe=sy.InnerLoop())
    found = []
    for samples in ones:
        idle(model, samples, optimizer)
        assert idle.last.reason == "fewer than two domains with enough samples"
        judge(model, samples, optimizer)
        found.append(judge.last.measured)
    halves = {name: (ones[2][name], ones[3][name]) for name in DOMAINS}
    assert found[0] == found[2] == {}
    assert found[1]
    assert found[3] == pytest.approx(reference_hypothetical_losses(model, optimizer, halves), rel=1e-6)


def test_gathering_waits_for_the_rarer_domain_and_keeps_the_newest():
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    judge = balancer(probe=sy.InnerLoop(gather=True))
    steps = [batch(sizes=(3, 1), seed=0), {"a": batch(sizes=(1, 1), seed=1)["a"]}, batch(sizes=(1, 1), seed=2)]
    votes = []
    for samples in steps:
        judge(model, samples, optimizer)
        votes.append(judge.last.vote is not None)
    assert votes == [False, False, True]
    halves = {"a": (steps[1]["a"], steps[2]["a"]), "b": (steps[0]["b"], steps[2]["b"])}
    assert judge.last.measured == pytest.approx(reference_hypothetical_losses(model, optimizer, halves), rel=1e-6)


def test_gathering_does_not_wait_for_a_domain_that_stays_away():
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    names = ("a", "b", "c")
    judge = balancer(domains=names, probe=sy.InnerLoop(gather=True))
    judge(model, {"c": batch(sizes=(1, 1, 1), names=names)["c"]}, optimizer)
    whole = {name: pair for name, pair in batch(sizes=(8, 8, 1), names=names, seed=1).items() if name != "c"}
    judge(model, whole, optimizer)
    expected = reference_hypothetical_losses(model, optimizer, first_halves(whole, 4))
    assert judge.last.measured == pytest.approx(expected, rel=1e-6)
    judge(model, batch(sizes=(1, 1, 1), names=names, seed=2), optimizer)
    judge(model, batch(sizes=(1, 1, 1), names=names, seed=3), optimizer)
    assert set(judge.last.measured) == set(names)


def test_gathering_takes_in_the_batches_between_votes():
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    judge = balancer(probe=sy.InnerLoop(gather=True, every=2))
    for seed in range(4):
        judge(model, batch(sizes=(1, 1), seed=seed), optimizer)
    assert judge.tally == {"updated": 2, "not due on this step": 2}


def test_gathered_samples_do_not_change_with_the_users_buffers():
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    first, second = batch(sizes=(1, 1), seed=0), batch(sizes=(1, 1), seed=1)
    halves = {name: (tuple(t.clone() for t in first[name]), second[name]) for name in DOMAINS}
    judge = balancer(probe=sy.InnerLoop(gather=True))
    judge(model, first, optimizer)
    for pair in first.values():
        for tensor in pair:
            tensor.zero_()
    judge(model, second, optimizer)
    assert judge.last.measured == pytest.approx(reference_hypothetical_losses(model, optimizer, halves), rel=1e-6)


def test_gathers_as_many_as_asked_for():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    judge = balancer(probe=sy.InnerLoop(gather=4), join=True)
    for seed in range(4):
        judge(model, batch(sizes=(1, 1), seed=seed), optimizer)
    assert judge.tally == {"fewer than two domains with enough samples": 3, "updated": 1}
    with pytest.raises(ValueError, match="gather must be True or at least 2 samples of each domain; got -1"):
        sy.InnerLoop(gather=-1)


def test_halves_too_small_for_batch_normalisation_cast_no_vote():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    judge = balancer(probe=sy.InnerLoop())
    take_step(judge(model, batch(sizes=(6, 2)), optimizer), optimizer)
    assert judge.last.outcome is sy.Outcome.TOO_FEW


def test_another_error_of_the_model_is_not_swallowed():
    class Broken(nn.Linear):
        def forward(self, x):
            raise ValueError("broken")

    model = Broken(6, 1)
    judge = balancer(probe=sy.InnerLoop())
    with pytest.raises(ValueError, match="broken"):
        judge(model, batch(), torch.optim.SGD(model.parameters(), lr=0.05))
    assert int(judge.probe.steps) == 0


def test_a_domain_that_trains_nothing_is_a_candidate_that_stays_where_it_is():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = nn.ModuleDict({"a": nn.Linear(6, 1), "b": nn.Linear(6, 1).requires_grad_(False)})

    def objective(model, samples):
        x, y, head = samples
        return mse_loss(model.heads[head](x), y)

    model = Heads()
    samples = {name: (*pair, name) for name, pair in batch().items()}
    judge = balancer(objective=objective, probe=sy.InnerLoop())
    judge(model, samples, torch.optim.SGD(model.heads["a"].parameters(), lr=0.01))
    still = sum(objective(model, (x[3:], y[3:], name)).item() for x, y, name in samples.values())
    assert judge.last.measured["b"] == pytest.approx(still, rel=1e-6)
    assert judge.last.measured["a"] != pytest.approx(still, rel=1e-6)


def test_a_plain_step_has_each_groups_own_rate():
    model = smooth()
    groups = [{"params": list(model[0].parameters()), "lr": 0.1}, {"params": list(model[2].parameters()), "lr": 0.001}]
    expected = reference_hypothetical_losses(model, torch.optim.SGD(groups), first_halves(batch(), 3))
    assert measured(model, torch.optim.Adam(groups), batch(), step="sgd") == pytest.approx(expected, rel=1e-6)


def test_an_optimizer_that_steps_another_is_refused():
    class Lookahead(torch.optim.Optimizer):
        def __init__(self, base):
            super().__init__([p for group in base.param_groups for p in group["params"]], {"lr": 0.1})
            self.base = base

        def step(self, closure=None):
            self.base.step()

    model = smooth()
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(TypeError, match=r"Lookahead steps another optimizer \(base\)"):
        measured(model, optimizer, batch())


def test_what_an_optimizer_notes_of_its_steps_stays_as_found():
    class Noting(torch.optim.SGD):
        def step(self, closure=None):
            self.notes.append("stepped")
            self.param_groups[0]["count"].add_(1)
            return super().step(closure)

    model = smooth()
    optimizer = Noting(model.parameters(), lr=0.1)
    optimizer.notes, optimizer.param_groups[0]["count"] = [], torch.zeros(())
    assert measured(model, optimizer, batch())
    assert optimizer.notes == []
    assert optimizer.param_groups[0]["count"] == 0


def test_gathered_samples_are_in_the_checkpoint():
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    one, other = (balancer(probe=sy.InnerLoop(gather=True)) for _ in range(2))
    one(model, batch(sizes=(1, 1), seed=0), optimizer)
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    for judge in (one, other):
        judge(model, batch(sizes=(1, 1), seed=1), optimizer)
    assert one.last.measured == other.last.measured != {}


def test_lbfgs_is_refused_but_for_a_plain_step():
    model = smooth()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="LBFGS evaluates the loss again inside its step"):
        measured(model, optimizer, batch())
    assert measured(model, optimizer, batch(), step="sgd")


def test_an_objective_that_ignores_the_model_it_is_given_is_refused():
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    judge = balancer(objective=lambda _, pair: mse_loss(model(pair[0]), pair[1]), probe=sy.InnerLoop())
    with pytest.raises(ValueError, match="must run the model that it is given as its first argument"):
        judge(model, batch(), optimizer)


def test_an_optimizer_of_another_model_is_refused():
    with pytest.raises(ValueError, match="the optimizer holds no trainable parameter of the model"):
        measured(smooth(), torch.optim.SGD(smooth().parameters(), lr=0.1), batch())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step": "adam"}, "step must be 'optimizer' or 'sgd'; got 'adam'"),
        ({"meta_test": "train"}, "meta_test must be 'eval' or 'batch' or 'step'; got 'train'"),
        ({"split": "last"}, "split must be 'first' or 'random'; got 'last'"),
        ({"every": 0}, "every must be at least 1; got 0"),
    ],
)
def test_refuses_wrong_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        sy.InnerLoop(**arguments)
