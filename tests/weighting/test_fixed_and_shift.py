import pytest
import torch

import steelyard as sy


def test_fixed_weights_are_equal_unless_told():
    fixed = sy.Fixed()
    fixed.start(4)
    assert fixed.weights() == (0.25,) * 4


@pytest.mark.parametrize("weights", [[0.5, 0.6], [-0.1, 1.1], [float("nan"), 1.0], []])
def test_fixed_refuses_what_is_not_on_the_simplex(weights):
    with pytest.raises(ValueError, match="must not be negative and must sum to 1; got"):
        sy.Fixed(weights)


def test_fixed_refuses_another_number_of_domains():
    with pytest.raises(ValueError, match=r"one number per domain \(3\); got 2"):
        sy.Fixed([0.5, 0.5]).start(3)


def shifted(gamma, *pairs):
    weighting = sy.RelativeShift(gamma)
    weighting.start(2)
    updates = [weighting.observe(sy.Measurement.of(torch.tensor(pair))) for pair in pairs]
    return weighting.weights(), updates[-1].outcome


def test_shift_follows_the_papers_formula_also_for_negative_losses():
    weights, _ = shifted(0.1, [-0.5, -0.4], [-0.5, -0.4])
    assert weights == pytest.approx((0.5 - 2 * 0.1 * 0.1 / 0.5, 0.5 + 2 * 0.1 * 0.1 / 0.5))


def test_shift_is_clipped_to_the_simplex():
    assert shifted(0.1, [1.0, 100.0])[0] == (0.0, 1.0)
    assert shifted(-0.1, [1.0, 100.0])[0] == (1.0, 0.0)


def test_shift_without_a_yardstick_is_not_taken():
    assert shifted(0.1, [0.0, 1.0]) == ((0.5, 0.5), sy.Outcome.NOT_FINITE)


def test_shift_refuses_other_than_two_domains_and_an_infinite_gamma():
    with pytest.raises(ValueError, match="weighs two domains; got 3"):
        sy.RelativeShift().start(3)
    with pytest.raises(ValueError, match="gamma must be finite; got inf"):
        sy.RelativeShift(float("inf"))
