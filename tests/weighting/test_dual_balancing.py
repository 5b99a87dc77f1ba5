"""Dual balancing: running means of gradient norms by hand, and the paper's direction in a balancer."""

import pytest
import torch
from torch.nn.functional import mse_loss

import steelyard as sy
from toys import balancer, batch, smooth

NAN = float("nan")


def started(domains, **settings):
    weighting = sy.DualBalancing(**settings)
    weighting.start(domains)
    return weighting


def observe(weighting, *norms):
    """Show it gradients of these norms that point in the same direction; NaN stands for an absent domain."""
    values = torch.tensor(norms, dtype=torch.float64)
    gradients = values.nan_to_num()
    return weighting.observe(sy.Measurement(gradients[:, None] * gradients, ~values.isnan()))


def test_weights_are_the_reciprocals_of_the_norms():
    weighting = started(3)
    assert weighting.weights() == pytest.approx([1 / 3] * 3)
    observe(weighting, 1.0, 2.0, 4.0)
    assert weighting.weights() == pytest.approx([4 / 7, 2 / 7, 1 / 7])


def test_norms_are_averaged_over_the_steps():
    weighting = started(2, forgetting=0.25)
    observe(weighting, 1.0, 1.0)
    observe(weighting, 9.0, 1.0)  # the first mean is 0.75 · 1 + 0.25 · 9 = 3
    assert weighting.weights() == pytest.approx([1 / 4, 3 / 4])


def test_only_the_newest_norms_count_where_all_others_are_forgotten():
    weighting = started(2, forgetting=1.0)
    observe(weighting, 50.0, 1.0)
    observe(weighting, 1.0, 3.0)
    assert weighting.weights() == pytest.approx([3 / 4, 1 / 4])


def test_an_absent_domain_keeps_its_mean():
    weighting = started(3, forgetting=1.0)
    observe(weighting, 1.0, 2.0, 4.0)
    observe(weighting, 2.0, 2.0, NAN)
    assert weighting.weights() == pytest.approx([2 / 5, 2 / 5, 1 / 5])


@pytest.mark.parametrize("without_norm", [NAN, 0.0])
def test_a_domain_without_a_norm_yet_has_an_equal_share(without_norm):
    weighting = started(3)
    observe(weighting, 1.0, 3.0, without_norm)
    assert weighting.weights() == pytest.approx([2 / 3 * 3 / 4, 2 / 3 * 1 / 4, 1 / 3])
    observe(weighting, 1.0, 3.0, 3.0)  # the mean starts with the first norm
    assert weighting.weights() == pytest.approx([3 / 5, 1 / 5, 1 / 5])


def test_gradients_of_nought_change_nothing():
    weighting = started(2)
    observe(weighting, 0.0, 0.0)
    assert weighting.weights() == (0.5, 0.5)
    observe(weighting, 1.0, 3.0)
    for _ in range(100):
        observe(weighting, 0.0, 3.0)
    assert weighting.weights() == pytest.approx([3 / 4, 1 / 4])


def test_in_a_balancer_the_step_has_the_papers_direction():
    names = ("a", "b", "c")
    model = smooth().double()
    samples = batch(sizes=(6, 4, 5), names=names, dtype=torch.float64)
    rows = []
    for x, y in samples.values():
        gradients = torch.autograd.grad(mse_loss(model(x), y).log(), list(model.parameters()))
        rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
    norms = torch.stack([row.norm() for row in rows])
    expected = sum(row * norms.max() / norm for row, norm in zip(rows, norms, strict=True))

    judge = balancer(domains=names, weighting=sy.DualBalancing(forgetting=1.0), probe=sy.Gramian())
    judge(model, samples, torch.optim.SGD(model.parameters(), lr=0.1)).backward()
    assert judge.last.outcome is sy.Outcome.UPDATED
    step = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    torch.testing.assert_close(step / step.norm(), expected / expected.norm())
