"""Several batches for one step of the optimizer: one vote, weights that stay, the loss of an ordinary loop."""

import pytest
import torch
from torch.nn.functional import mse_loss

import steelyard as sy
from toys import batch, smooth

NAMES = ("a", "b", "c")


def parts(step):
    return [batch((6, 6, 6), names=NAMES, seed=10 * step + number) for number in range(3)]


def train(balancer, model, steps=6):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    reports = []
    for step in range(steps):
        optimizer.zero_grad()
        for number, part in enumerate(parts(step)):
            (balancer(model, part, optimizer, measure=number == 0) / 3).backward()
            reports.append(balancer.last)
        optimizer.step()
    return reports


@pytest.mark.parametrize("weighting", [sy.Evidence, sy.GroupDRO, lambda: sy.DirichletVote("greedy", prior=2.0)])
def test_weights_change_with_the_first_batch_of_a_step_only(weighting):
    torch.manual_seed(0)
    reports = train(sy.Balancer(NAMES, loss=mse_loss, weighting=weighting()), smooth())
    for first, *later in zip(reports[::3], reports[1::3], reports[2::3], strict=True):
        assert first.outcome in (sy.Outcome.UPDATED, sy.Outcome.TIE)
        assert {report.outcome for report in later} == {sy.Outcome.NOT_DUE}
        assert all(report.weights == first.weights for report in later)
    assert reports[-1].weights != reports[0].weights or weighting is sy.Evidence  # which is cautious


def test_equal_weights_give_the_gradients_of_a_plain_loop():
    torch.manual_seed(0)
    model, plain = smooth(), smooth()
    plain.load_state_dict(model.state_dict())
    train(sy.Balancer(NAMES, loss=mse_loss, weighting=sy.Fixed(), probe=sy.FirstOrder()), model)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05)
    for step in range(6):
        optimizer.zero_grad()
        for part in parts(step):
            losses = [mse_loss(plain(x), y) for x, y in part.values()]
            (sum(losses) / len(losses) / 3).backward()
        optimizer.step()
    for learned, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(learned, expected)


def test_every_batch_counts_for_presence_and_the_first_ones_for_votes():
    balancer = sy.Balancer(NAMES, loss=mse_loss)
    train(balancer, smooth(), steps=4)
    assert balancer.tally == {"updated": 4}
    assert balancer.counters.batches == 12
    assert balancer.audit().domains[0].votes == 4


def test_without_measuring_no_optimizer_is_needed_and_no_probe_is_chosen():
    balancer = sy.Balancer(NAMES, loss=mse_loss)
    balancer(smooth(), parts(0)[0], measure=False).backward()
    assert balancer.probe is None
