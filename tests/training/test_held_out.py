"""Held-out samples: the whole batch is meta-train, and the outer step is that of a plain loop."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import l1_loss, mse_loss

import steelyard as sy
from plain_votes import exact_table, first_order_table, for_all, optimizer_with_state, plain_steps
from toys import batch, everything, smooth, take_step

NAMES = ("a", "b", "c")
PROBES = {
    "exact": sy.InnerLoop,
    "exact, shared": lambda: sy.InnerLoop(reuse=True),
    "first order": lambda: sy.FirstOrder(reuse=False),
    "first order, shared": lambda: sy.FirstOrder(reuse=True),
}
every_probe = pytest.mark.parametrize("probe", PROBES)


def samples_of(sizes=(4, 4, 4), seed=0):
    return batch(sizes, names=NAMES, dtype=torch.float64, seed=seed)


def set_up(kind="SGD"):
    model = smooth().double()
    return model, optimizer_with_state(kind, model, samples_of(seed=1))


def balancer_of(probe, **kwargs):
    return sy.Balancer(NAMES, **{"loss": mse_loss, **kwargs}, probe=PROBES[probe]())


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12, equal_nan=True)


def plain_table(probe, model, optimizer, trains, tests, judges):
    steps = plain_steps(model, optimizer, trains, for_all(mse_loss, NAMES))
    if probe.startswith("exact"):
        return exact_table(steps, tests, judges)
    return first_order_table(model, steps, tests, judges)[0]


def check_outer_step(balancer, loss, model, samples):
    """The loss and its gradients are those of a plain weighted loss of the whole batch."""
    plain = sum(balancer.weights[name] * mse_loss(model(x), y) for name, (x, y) in samples.items())
    expected = torch.autograd.grad(plain, list(model.parameters()))
    model.zero_grad()
    loss.backward()
    assert loss.item() == pytest.approx(plain.item(), rel=1e-12)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert_close(parameter.grad, gradient)
    assert list(balancer.last.losses) == list(samples)
    for name, (x, y) in samples.items():
        assert balancer.last.losses[name].item() == pytest.approx(mse_loss(model(x), y).item(), rel=1e-12)


@every_probe
@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("judge", [None, l1_loss], ids=["loss", "judge"])
def test_steps_are_taken_from_the_whole_batch_and_judged_by_held_out_samples(probe, kind, judge):
    model, optimizer = set_up(kind)
    samples, held_out = samples_of((4, 1, 5)), samples_of((3, 6, 1), seed=7)
    balancer = balancer_of(probe, judge=judge)
    for _ in range(2):  # the first vote audits
        loss = balancer(model, samples, optimizer, held_out=held_out)
    assert balancer.last.outcome is sy.Outcome.UPDATED
    finding = balancer.probe.find(model, samples, losses=balancer.domain_losses, optimizer=optimizer, held_out=held_out)
    expected = plain_table(probe, model, optimizer, samples, held_out, for_all(judge or mse_loss, NAMES))
    assert_close(finding.scores.after, expected)
    assert (finding.shared is not None) is probe.endswith("shared")
    check_outer_step(balancer, loss, model, samples)


@pytest.mark.parametrize("probe", ["exact, shared", "first order, shared"])
def test_where_gradients_are_shared_the_live_model_runs_no_sample(probe):
    model, optimizer = set_up()
    live_calls = []
    model.register_forward_pre_hook(lambda module, _: live_calls.append(module is model))
    balancer = balancer_of(probe)
    balancer(model, samples_of(), optimizer, held_out=samples_of(seed=7))
    assert live_calls
    assert not any(live_calls)


@every_probe
def test_a_domain_may_be_only_in_the_batch_or_only_held_out(probe):
    model, optimizer = set_up()
    samples, held_out = samples_of(), samples_of(seed=7)
    del samples["a"], held_out["c"]
    balancer = balancer_of(probe)
    loss = balancer(model, samples, optimizer, held_out=held_out)
    assert balancer.last.outcome is sy.Outcome.UPDATED
    assert list(balancer.last.measured) == ["b", "c"]
    finding = balancer.probe.find(model, samples, losses=balancer.domain_losses, optimizer=optimizer, held_out=held_out)
    expected = torch.full((4, 3), torch.nan, dtype=torch.float64)
    expected[1:, :2] = plain_table(probe, model, optimizer, samples, held_out, for_all(mse_loss, NAMES))
    assert_close(finding.scores.after, expected)
    assert balancer.transfer.count.tolist() == [[0, 0, 0], [1, 1, 0], [1, 1, 0]]
    assert balancer.valuation.judging.first_losses.gt(0).all()
    check_outer_step(balancer, loss, model, samples)


def test_counted_votes_may_be_judged_by_held_out_samples():
    model, optimizer = set_up()
    samples, held_out = samples_of(), samples_of(seed=7)
    balancer = balancer_of("exact", weighting=sy.DirichletVote())
    balancer(model, samples, optimizer, held_out=held_out)
    expected = plain_table("exact", model, optimizer, samples, held_out, for_all(mse_loss, NAMES))
    assert list(balancer.last.measured.values()) == pytest.approx(expected[:-1].sum(1).tolist(), rel=1e-9)


def test_held_out_samples_of_one_domain_judge_the_steps_of_all():
    model, optimizer = set_up()
    balancer = balancer_of("exact")
    balancer(model, samples_of(), optimizer, held_out={"b": samples_of(seed=7)["b"]})
    assert balancer.last.outcome is sy.Outcome.UPDATED
    assert balancer.transfer.count.tolist() == [[0, 1, 0]] * 3


def test_one_domain_in_the_batch_compares_nothing():
    model, optimizer = set_up()
    balancer = balancer_of("exact")
    balancer(model, {"a": samples_of()["a"]}, optimizer, held_out=samples_of(seed=7))
    assert balancer.last.outcome is sy.Outcome.TOO_FEW


def test_votes_with_and_without_held_out_samples_may_alternate():
    model, optimizer = set_up()
    balancer = balancer_of("first order, shared")
    for step in range(6):
        samples = samples_of(seed=step)
        held_out = samples_of(seed=100 + step) if step % 2 else None
        check_outer_step(balancer, balancer(model, samples, optimizer, held_out=held_out), model, samples)
    assert balancer.tally == {"updated": 6}


@pytest.mark.parametrize(
    ("held_out", "error", "message"),
    [
        ({"d": (torch.ones(2, 6), torch.ones(2, 1))}, ValueError, "among .* to samples; got 'd'"),
        ([torch.ones(2, 6)], TypeError, "must map domain names to samples; got list"),
        ({"a": (torch.ones(0, 6), torch.ones(0, 1))}, ValueError, "holds no sample of any of"),
        ({"a": (torch.ones(2, 6), torch.ones(3, 1))}, ValueError, "domain 'a': "),
    ],
)
def test_refuses_held_out_samples_that_are_no_batch(held_out, error, message):
    model, optimizer = set_up()
    balancer = balancer_of("exact")
    with pytest.raises(error, match=message):
        balancer(model, samples_of(), optimizer, held_out=held_out)
    assert balancer.tally == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"weighting": sy.DualBalancing, "probe": sy.Gramian},
            "Gramian judges nothing, and so takes no held-out samples",
        ),
        ({"probe": lambda: sy.InnerLoop(gather=True)}, "with held-out samples nothing need be gathered"),
        ({"probe": lambda: sy.FirstOrder(gather=3)}, "with held-out samples nothing need be gathered"),
    ],
)
def test_refuses_held_out_samples_where_nothing_is_judged_or_samples_are_gathered(settings, message):
    model, optimizer = set_up()
    balancer = sy.Balancer(NAMES, loss=mse_loss, **{name: make() for name, make in settings.items()})
    before = copy.deepcopy(balancer.state_dict())
    with pytest.raises(ValueError, match=message):
        balancer(model, samples_of(), optimizer, held_out=samples_of())
    assert str(balancer.state_dict()) == str(before)
    balancer(model, samples_of(), optimizer)  # and goes on without


@pytest.mark.parametrize("probe", ["exact", "first order"])
def test_held_out_samples_leave_no_trace_in_model_optimizer_and_random_numbers(probe):
    states = []
    for measures in (False, True):
        torch.manual_seed(5)
        model = everything()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        settings = {"probe": PROBES[probe](), "judge": l1_loss} if measures else {"probe": None}
        balancer = sy.Balancer(("a", "b"), loss=mse_loss, weighting=sy.Fixed([0.3, 0.7]), **settings)
        for seed in range(3):
            held_out = batch(seed=50 + seed)
            take_step(balancer(model, batch(seed=seed), optimizer, held_out=held_out), optimizer)
        moments = [state["exp_avg"] for state in optimizer.state.values()]
        states.append([*model.state_dict().values(), *moments, torch.get_rng_state(), torch.tensor(model.calls)])
    assert list(balancer.last.measured) == ["a", "b"]
    for plain, probed in zip(*states, strict=True):
        assert torch.equal(plain, probed)


def test_a_half_too_small_for_batch_normalisation_casts_no_vote():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    balancer = balancer_of("exact")
    balancer(model, batch((1, 4, 4), names=NAMES), optimizer, held_out=batch((4, 4, 4), names=NAMES))
    assert balancer.last.outcome is sy.Outcome.TOO_FEW
    balancer(model, batch((2, 4, 4), names=NAMES), optimizer, held_out=batch((1, 1, 1), names=NAMES))
    assert balancer.last.outcome is sy.Outcome.UPDATED


class Centred(nn.Module):
    """Samples of one pass meet in their mean."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, x):
        return self.layer(x - x.mean(0))


def test_a_call_with_held_out_samples_does_not_vouch_for_calls_without():
    """With held-out samples whole domains are passes of their own; without, halves are, and samples meet in them."""
    torch.manual_seed(0)
    model = Centred()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    balancer = sy.Balancer(("a", "b"), loss=mse_loss, weighting=sy.Fixed(), probe=sy.FirstOrder(), join=False)
    balancer(model, batch(), optimizer, held_out=batch(seed=1))
    loss = balancer(model, batch(), optimizer)
    plain = sum(0.5 * mse_loss(model(x), y) for x, y in batch().values())
    assert loss.item() == pytest.approx(plain.item(), rel=1e-6)
