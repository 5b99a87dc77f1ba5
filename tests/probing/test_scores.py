"""Scores of a vote: every domain's score after every step, compared with a plain loop."""

import pytest
import torch
from torch import nn
from torch.nn.functional import l1_loss, mse_loss

import steelyard as sy
from plain_votes import exact_table, first_order_table, for_all, optimizer_with_state, plain_steps
from toys import batch, first_halves, smooth

NAMES = ("a", "b", "c")
KINDS = pytest.mark.parametrize("kind", ["SGD", "AdamW"])
EXACT = {"separate": sy.InnerLoop, "shared": lambda: sy.InnerLoop(reuse=True)}
FIRST_ORDER = {"separate": lambda: sy.FirstOrder(reuse=False), "shared": lambda: sy.FirstOrder(reuse=True)}


class TwoHeads(nn.Module):
    """A second head, which only the loss of one domain uses."""

    def __init__(self):
        super().__init__()
        self.body, self.head, self.auxiliary = nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x):
        hidden = self.body(x).tanh()
        return self.head(hidden), self.auxiliary(hidden)


def first_head(outputs, targets):
    return mse_loss(outputs[0], targets)


def both_heads(outputs, targets):
    return mse_loss(outputs[0], targets) + l1_loss(outputs[1], targets)


def samples_of(sizes=(6, 6, 6), seed=0):
    return batch(sizes, names=NAMES, dtype=torch.float64, seed=seed)


def halves_of(samples):
    m = min(len(x) for x, _ in samples.values()) // 2
    halves = first_halves(samples, m)
    return {name: train for name, (train, _) in halves.items()}, {name: test for name, (_, test) in halves.items()}


def scores_of(probe, model, optimizer, samples, *, votes=2, **kwargs):
    """The scores of the last of some votes at the same point; the first one compares and audits."""
    balancer = sy.Balancer(NAMES, probe=probe, **{"loss": mse_loss, **kwargs})
    for _ in range(votes):
        finding = balancer.probe.find(model, samples, losses=balancer.domain_losses, optimizer=optimizer)
    return finding


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


def check_losses_and_norms(scores, steps):
    assert_close(scores.losses, steps.losses)
    assert_close(scores.gradient_norms, steps.norms)


@KINDS
@pytest.mark.parametrize("probe", EXACT.values(), ids=EXACT)
@pytest.mark.parametrize("sizes", [(6, 6, 6), (4, 9, 6)], ids=["alike", "unlike"])
def test_exact_scores_are_those_of_a_plain_loop(kind, probe, sizes):
    model = smooth().double()
    samples = samples_of(sizes)
    optimizer = optimizer_with_state(kind, model, samples_of(seed=1))
    finding = scores_of(probe(), model, optimizer, samples)
    trains, tests = halves_of(samples)
    steps = plain_steps(model, optimizer, trains, for_all(mse_loss, NAMES))
    expected = exact_table(steps, tests, for_all(mse_loss, NAMES))
    assert_close(finding.scores.after, expected)
    assert finding.scores.before.isnan().all()
    check_losses_and_norms(finding.scores, steps)
    assert_close(finding.measurement.values, expected[:-1].sum(1))
    assert (finding.shared is None) is (probe is sy.InnerLoop)


@KINDS
@pytest.mark.parametrize("probe", FIRST_ORDER.values(), ids=FIRST_ORDER)
@pytest.mark.parametrize("sizes", [(6, 6, 6), (4, 9, 6)], ids=["alike", "unlike"])
def test_first_order_scores_are_levels_and_inner_products(kind, probe, sizes):
    model = smooth().double()
    samples = samples_of(sizes)
    optimizer = optimizer_with_state(kind, model, samples_of(seed=1))
    finding = scores_of(probe(), model, optimizer, samples)
    trains, tests = halves_of(samples)
    steps = plain_steps(model, optimizer, trains, for_all(mse_loss, NAMES))
    expected, levels = first_order_table(model, steps, tests, for_all(mse_loss, NAMES))
    assert_close(finding.scores.after, expected)
    assert_close(finding.scores.before, levels)
    check_losses_and_norms(finding.scores, steps)
    assert_close(finding.measurement.values, expected[:-1].sum(1))


@KINDS
def test_halves_run_at_once_and_one_by_one_give_the_same_scores(kind):
    model = smooth().double()
    optimizer = optimizer_with_state(kind, model, samples_of(seed=1))
    probes = [sy.FirstOrder(), sy.FirstOrder()]
    probes[1].vmapping.refused.fill_(True)
    at_once, one_by_one = (scores_of(probe, model, optimizer, samples_of()).scores for probe in probes)
    assert not bool(probes[0].vmapping.refused)
    assert_close(at_once.after, one_by_one.after)
    assert_close(at_once.before, one_by_one.before)
    assert_close(at_once.gradient_norms, one_by_one.gradient_norms)


@KINDS
@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("judged", [False, True], ids=["loss", "judge"])
def test_a_parameter_that_only_one_domain_uses_is_stepped_for_it_and_by_the_zero_step(kind, reuse, judged):
    torch.manual_seed(3)
    model = TwoHeads().double()
    optimizer = optimizer_with_state(kind, model, samples_of(seed=1))
    losses = {"a": first_head, "b": both_heads, "c": first_head}
    judges = {"a": both_heads, "b": first_head, "c": both_heads} if judged else losses
    given = {"loss": losses, "judge": judges if judged else None}
    samples = samples_of()
    trains, tests = halves_of(samples)
    steps = plain_steps(model, optimizer, trains, losses)
    exact = scores_of(sy.InnerLoop(reuse=reuse), model, optimizer, samples, **given).scores
    assert_close(exact.after, exact_table(steps, tests, judges))
    first_order = scores_of(sy.FirstOrder(reuse=reuse), model, optimizer, samples, **given).scores
    assert_close(first_order.after, first_order_table(model, steps, tests, judges)[0])
    check_losses_and_norms(exact, steps)
    check_losses_and_norms(first_order, steps)


@KINDS
@pytest.mark.parametrize("rule", ["optimizer", "sgd"])
def test_first_order_scores_err_by_the_square_of_the_learning_rate(kind, rule):
    model = smooth().double()
    samples = samples_of()
    errors = []
    for rate in (1e-3, 1e-4):
        torch.manual_seed(0)
        optimizer = optimizer_with_state(kind, model, {})
        for group in optimizer.param_groups:
            group["lr"] = rate
        exact = scores_of(sy.InnerLoop(step=rule), model, optimizer, samples).scores.after
        errors.append((scores_of(sy.FirstOrder(step=rule), model, optimizer, samples).scores.after - exact).abs())
    assert (errors[0] > 0).any(0).all()
    assert float(errors[0].max() / errors[1].max()) == pytest.approx(100, rel=0.2)


@pytest.mark.parametrize("meta_test", ["batch", "step"])
def test_both_probes_judge_batch_normalisation_alike(meta_test):
    """On batch statistics all domains' samples meet, in a score of one of them, too."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)).double()
    samples = samples_of((8, 8, 8))
    errors, steps = [], []
    for rate in (1e-3, 1e-4):
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        exact = scores_of(sy.InnerLoop(meta_test=meta_test), model, optimizer, samples).scores.after
        first_order = scores_of(sy.FirstOrder(meta_test=meta_test), model, optimizer, samples).scores
        errors.append((first_order.after - exact).abs().max())
        steps.append((first_order.after - first_order.before).abs().max())
    assert errors[0] < 0.1 * steps[0]
    assert float(errors[0] / errors[1]) == pytest.approx(100, rel=0.2)


@pytest.mark.parametrize("probe", [sy.InnerLoop, sy.FirstOrder])
def test_a_warm_up_measures_every_step_before_every_applies(probe):
    schedule = probe(every=3, warm_up=4)
    due = []
    for step in range(14):
        if schedule.is_due:
            due.append(step)
            assert schedule.vote_number == len(due)
        schedule.steps += 1
    assert due == [0, 1, 2, 3, 6, 9, 12]
    with pytest.raises(ValueError, match="warm_up must not be negative; got -1"):
        probe(warm_up=-1)


def test_a_parameter_that_the_optimizer_does_not_hold_is_not_part_of_the_norm():
    model = smooth().double()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    trains, _ = halves_of(samples_of())
    for probe in (sy.InnerLoop(reuse=True), sy.FirstOrder(reuse=True), sy.FirstOrder(reuse=False)):
        scores = scores_of(probe, model, optimizer, samples_of()).scores
        for row, (x, y) in enumerate(trains.values()):
            gradients = torch.autograd.grad(mse_loss(model(x), y), list(model[0].parameters()))
            norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
            assert scores.gradient_norms[row].item() == pytest.approx(norm)


def test_a_domain_without_enough_samples_has_neither_row_nor_column():
    model = smooth().double()
    samples = samples_of((6, 1, 6))
    optimizer = optimizer_with_state("SGD", model, samples_of(seed=1))
    for probe in (sy.InnerLoop(), sy.FirstOrder()):
        scores = scores_of(probe, model, optimizer, samples).scores
        missing = scores.after.isnan()
        assert missing[1].all()
        assert missing[:, 1].all()
        assert not missing[[0, 2, 3]][:, [0, 2]].any()
        assert scores.gradient_norms.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("probe", [sy.InnerLoop, sy.FirstOrder])
def test_where_only_votes_are_counted_scores_come_now_and_then(probe):
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    balancer = sy.Balancer(("a", "b"), loss=mse_loss, weighting=sy.DirichletVote(), probe=probe(every=2, warm_up=3))
    with_scores = []
    for step in range(60):
        finding = balancer.probe.find(model, batch(), losses=balancer.domain_losses, optimizer=optimizer)
        if finding is not None and finding.scores is not None:
            with_scores.append(step)
    # Votes on steps 0, 1, 2, 4, 6, …: the first has scores, and the 17th.
    assert with_scores == [0, 30]


def test_with_batch_normalisation_the_step_alone_is_judged_on_the_live_statistics():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)).double()
    samples = samples_of()
    optimizer = optimizer_with_state("SGD", model, samples_of(seed=1))
    live = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    scores = scores_of(sy.InnerLoop(meta_test="step"), model, optimizer, samples).scores
    trains, tests = halves_of(samples)
    losses = for_all(mse_loss, NAMES)
    steps = plain_steps(model, optimizer, trains, losses, live_buffers=True)
    assert_close(scores.after, exact_table(steps, tests, losses))
    assert all(torch.equal(tensor, live[name]) for name, tensor in model.state_dict().items())
    moved = scores_of(sy.InnerLoop(meta_test="eval"), model, optimizer, samples).scores
    plain = exact_table(plain_steps(model, optimizer, trains, losses), tests, losses)
    assert_close(moved.after, plain)
    assert not torch.allclose(moved.after, scores.after)
