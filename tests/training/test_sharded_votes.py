"""Two ranks that share one sharded model: they measure what one process measures with the samples of both."""

import copy

import pytest
import torch
from test_distributed_votes import run
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import l1_loss, mse_loss

import steelyard as sy
from toys import balancer, batch, take_step

NAMES = ("a", "b", "c")
STEPS = 10


class Network(nn.Module):
    """Layers that do not divide evenly over two ranks, a frozen one, a head that no loss uses, and plain state."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(6, 7), nn.Tanh())
        self.second = nn.Sequential(nn.Linear(7, 5), nn.Tanh())
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.last, self.spare = nn.Linear(5, 1), nn.Linear(5, 1)

    def forward(self, x):
        return self.last(self.frozen(self.second(self.first(x))))


def network():
    torch.manual_seed(0)
    return Network()


def sharded(*, nested=True, **settings):
    model = network()
    if nested:
        fully_shard(model.first, **settings)
        fully_shard(model.second, **settings)
    return fully_shard(model, **settings)


def make_sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9, weight_decay=0.1)


def make_adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.1)


def samples(rank, *, seed=0):
    return batch((4, 4, 4), names=NAMES, seed=1000 * rank + seed)


def joined(seed):
    """The samples of both ranks; the first half of each domain's are the first halves of the ranks'."""
    both = [samples(rank, seed=seed) for rank in range(2)]
    joint = {}
    for name in NAMES:
        (x, y), (other_x, other_y) = both[0][name], both[1][name]
        joint[name] = [torch.cat([u[:2], v[:2], u[2:], v[2:]]) for u, v in ((x, other_x), (y, other_y))]
    return joint


def objective(model, pair):
    return mse_loss(model(pair[0]), pair[1])


HELD_OUT = object()
CASES = {
    "sgd": (make_sgd, {}, {}),
    "adamw": (make_adamw, {}, {}),
    "plain steps": (make_adamw, {"step": "sgd"}, {}),
    "batch mode": (make_sgd, {"meta_test": "batch"}, {}),
    "own judge": (make_sgd, {}, {"judge": l1_loss}),
    "objective": (make_sgd, {}, {"objective": objective}),
    "held out": (make_sgd, {}, {"held_out": HELD_OUT}),
}
SHARDINGS = {
    "kept whole after forward": {"reshard_after_forward": False},
    "divided after forward": {"reshard_after_forward": True},
    "one group": {"nested": False},
}


def measure(model, make_optimizer, settings, losses, of):
    """Two steps of training, then what a vote finds; `of` gives the samples with a seed."""
    losses = dict(losses)
    held_out = of(99) if losses.pop("held_out", None) else None
    optimizer = make_optimizer(model.parameters())
    for seed in range(2):
        loss = sum(mse_loss(model(x), y) for x, y in of(seed).values()) / 3
        take_step(loss, optimizer)
    probe = sy.FirstOrder(reuse=False, **settings)
    probe.scores_always = True
    judge = balancer(domains=NAMES, probe=probe, weighting=sy.Evidence(), **losses)
    return probe.find(model, of(2), losses=judge.domain_losses, optimizer=optimizer, held_out=held_out)


def gramian_of(model, of):
    losses = balancer(domains=NAMES).domain_losses
    optimizer = make_sgd(model.parameters())
    return sy.Gramian().measure(model, of(0), losses=losses, optimizer=optimizer)


def uneven(rank):
    """Samples of which the second rank has half as many."""
    return {name: tuple(part[: 4 - 2 * rank] for part in pair) for name, pair in samples(rank).items()}


def measure_uneven(rank):
    model, probe = sharded(), sy.FirstOrder()
    probe.scores_always = True
    losses = balancer(domains=NAMES).domain_losses
    return probe.find(model, uneven(rank), losses=losses, optimizer=make_sgd(model.parameters()))


def normalised():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 1))


def same(seed):
    """The same samples for everybody, so that everybody has the same batch statistics."""
    return samples(0, seed=seed)


def measure_each(rank):
    def of(seed):
        return samples(rank, seed=seed)

    findings = {name: measure(sharded(), *case, of) for name, case in CASES.items()}
    for name, settings in SHARDINGS.items():
        findings[name] = measure(sharded(**settings), *CASES["sgd"], of)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for case in ("sgd", "batch mode"):
        findings[f"{case}, normalised"] = measure(fully_shard(normalised()), *CASES[case], same)
    findings["bfloat16"] = measure(sharded(mp_policy=policy), *CASES["sgd"], of)
    return findings, gramian_of(sharded(), of), measure_uneven(rank)


def given(rank, step, *, lacking):
    """Samples of a step; the second rank lacks domains now and then, or has only one sample."""
    here = samples(rank, seed=step)
    if lacking and rank == 1 and step % 2:
        del here["b" if step % 4 == 1 else "c"]
    if lacking and rank == 1 and step == 4:
        here = {"a": here["a"]}
    if lacking and rank == 1 and step == 6:
        here["b"] = tuple(part[:1] for part in here["b"])
    return here


TRAININGS = {
    "votes": {"probe": sy.FirstOrder, "weighting": lambda: sy.DirichletVote(window=5)},
    "evidence": {"probe": lambda: "auto", "weighting": lambda: sy.Evidence(rate=0.5, caution=0.1)},
    "separate passes": {"join": False, "lacking": True, "probe": sy.FirstOrder, "weighting": sy.Evidence},
    "lacking": {"lacking": True, "probe": sy.FirstOrder, "weighting": lambda: sy.DirichletVote(window=5)},
    "no probe": {"probe": lambda: None, "weighting": sy.GroupDRO, "lacking": True, "join": False},
}


def make_balancer(name):
    settings = dict(TRAININGS[name])
    settings.pop("lacking", None)
    made = {key: settings.pop(key)() for key in ("probe", "weighting")}
    return sy.Balancer(NAMES, loss=mse_loss, **made, **settings)


def train(rank, name, *, resumed=False):
    """The weights and the votes of every step, and the parameters in the end."""
    model = sharded(nested=name != "evidence")
    optimizer = make_adamw(model.parameters()) if name == "evidence" else make_sgd(model.parameters())
    judge = make_balancer(name)
    record, own_values = [], []
    for step in range(STEPS):
        if resumed and step == STEPS // 2:
            state = copy.deepcopy(judge.state_dict())
            judge = make_balancer(name)
            judge.load_state_dict(state)
        here = given(rank, step, lacking=TRAININGS[name].get("lacking", False))
        if name == "votes":
            own = sy.FirstOrder().measure(model, here, losses=judge.domain_losses, optimizer=optimizer)
            own_values.append(own.values.tolist())
        take_step(judge(model, here, optimizer), optimizer)
        record.append((judge.weights, judge.last.measured, judge.last.outcome))
    return record, [parameter.full_tensor().detach() for parameter in model.parameters()], own_values


def work(rank):
    trained = {name: train(rank, name) for name in TRAININGS}
    trained |= {f"{name}, resumed": train(rank, name, resumed=True) for name in ("votes", "evidence")}
    return measure_each(rank), trained


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What both ranks return; they are started once, because that takes seconds."""
    return run(tmp_path_factory.mktemp("ranks"), work)


@pytest.fixture(scope="module")
def findings(results):
    return [measured[0] for measured, _ in results]


@pytest.fixture(scope="module")
def trained(results):
    return [trainings for _, trainings in results]


def assert_same_finding(finding, expected, *, rtol):
    torch.testing.assert_close(finding.measurement.values, expected.measurement.values, rtol=rtol, atol=rtol)
    transfer = finding.scores.after[:-1] - finding.scores.after[-1]
    expected_transfer = expected.scores.after[:-1] - expected.scores.after[-1]
    torch.testing.assert_close(transfer, expected_transfer, rtol=10 * rtol, atol=10 * rtol)
    for attribute, tensor in vars(finding.scores).items():
        torch.testing.assert_close(tensor, getattr(expected.scores, attribute), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("case", CASES)
def test_ranks_measure_what_one_process_measures(findings, case):
    expected = measure(network(), *CASES[case], joined)
    assert_same_finding(findings[0][case], expected, rtol=1e-6)


@pytest.mark.parametrize("case", ["sgd", "batch mode"])
def test_steps_are_judged_in_evaluation_mode_or_where_the_samples_of_all_domains_meet(findings, case):
    expected = measure(normalised(), *CASES[case], same)
    assert_same_finding(findings[0][f"{case}, normalised"], expected, rtol=1e-6)


@pytest.mark.parametrize("case", SHARDINGS)
def test_how_parameters_are_divided_changes_nothing(findings, case):
    assert_same_finding(findings[0][case], findings[0]["sgd"], rtol=1e-6)


def test_coarse_passes_measure_coarsely(findings):
    assert_same_finding(findings[0]["bfloat16"], findings[0]["sgd"], rtol=0.05)
    assert not torch.equal(findings[0]["bfloat16"].scores.after, findings[0]["sgd"].scores.after)


def test_ranks_have_the_same_finding_to_the_bit(findings):
    for case, finding in findings[0].items():
        other = findings[1][case]
        assert torch.equal(finding.measurement.values, other.measurement.values), case
        assert torch.equal(finding.scores.after, other.scores.after), case
        assert torch.equal(finding.scores.gradient_norms, other.scores.gradient_norms), case


def test_the_gramian_is_that_of_one_process(results):
    expected = gramian_of(network(), joined)
    for (_, gramian, _), _ in results:
        torch.testing.assert_close(gramian.values, expected.values, rtol=1e-5, atol=1e-5)
        assert gramian.present.all()


def test_ranks_count_alike_and_halve_alike_whatever_their_numbers_of_samples(results):
    model = network()
    for (_, _, finding), _ in results:
        for index, name in enumerate(NAMES):
            pairs = [uneven(rank)[name] for rank in range(2)]
            trained = sum(mse_loss(model(x[:1]), y[:1]) for x, y in pairs) / 2
            tested = sum(mse_loss(model(x[1:]), y[1:]) for x, y in pairs) / 2
            assert finding.scores.losses[index].item() == pytest.approx(trained.item(), rel=1e-6)
            assert finding.scores.before[index].item() == pytest.approx(tested.item(), rel=1e-6)


@pytest.mark.parametrize("name", TRAININGS)
def test_ranks_train_alike_as_one_process_with_these_weights(trained, name):
    first, second = trained[0][name], trained[1][name]
    assert first[0] == second[0]
    assert first[0][-1][0] != first[0][0][0], "the weights never changed"
    model = network()
    optimizer = make_adamw(model.parameters()) if name == "evidence" else make_sgd(model.parameters())
    for step, (weights, *_) in enumerate(first[0]):
        losses = []
        for rank in range(2):
            here = given(rank, step, lacking=TRAININGS[name].get("lacking", False))
            losses += [weights[domain] * mse_loss(model(x), y) for domain, (x, y) in here.items()]
        take_step(sum(losses) / 2, optimizer)
    for parameter, other, expected in zip(first[1], second[1], model.parameters(), strict=True):
        assert torch.equal(parameter, other)
        torch.testing.assert_close(parameter, expected.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["lacking", "separate passes"])
def test_only_domains_that_all_ranks_hold_twice_are_measured(trained, name):
    expected = {1: {"a", "c"}, 3: {"a", "b"}, 4: set(), 6: {"a", "c"}, 8: {"a", "b", "c"}}
    for step, names in expected.items():
        _, measured, outcome = trained[0][name][0][step]
        assert set(measured) == names
        assert (outcome is sy.Outcome.TOO_FEW) == (not names)


@pytest.mark.parametrize("name", ["votes", "evidence"])
def test_a_resumed_balancer_continues_identically(trained, name):
    assert trained[0][f"{name}, resumed"][0] == trained[0][name][0]


def test_averaging_what_ranks_measured_together_changes_no_bit(trained):
    record, _, own_values = trained[0]["votes"]
    assert [list(measured.values()) for _, measured, _ in record] == own_values
