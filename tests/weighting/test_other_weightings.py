"""Weightings other than the vote, by hand and in a balancer: those that follow the losses, fixed ones, the shift."""

import copy
import math

import pytest
import torch
from torch.nn.functional import mse_loss

import steelyard as sy
from toys import balancer, batch, smooth, take_step

NAN = float("nan")


def started(weighting, domains=2):
    weighting.start(domains)
    return weighting


def observe(weighting, *losses):
    values = torch.tensor(losses, dtype=torch.float64)
    return weighting.observe(sy.Measurement(values.nan_to_num(), ~values.isnan()))


def test_group_dro_by_hand():
    weighting = started(sy.GroupDRO(rate=0.5), 3)
    observe(weighting, 1.0, 2.0, 4.0)
    observe(weighting, 1.0, 0.0, 0.0)
    powers = [math.exp(0.5 * total) for total in (2.0, 2.0, 4.0)]
    assert weighting.weights() == pytest.approx([power / sum(powers) for power in powers])


def test_group_dro_leaves_an_absent_domain_its_share():
    weighting = started(sy.GroupDRO(rate=1.0), 3)
    observe(weighting, 1.0, 3.0, NAN)
    a, b, c = weighting.weights()
    assert c == pytest.approx(1 / 3)
    assert b / a == pytest.approx(math.exp(2))


def test_group_dro_recovers_from_a_weight_of_nearly_nought():
    weighting = started(sy.GroupDRO(rate=1.0))
    observe(weighting, 1e300, 0.0)
    assert weighting.weights()[0] == 1.0
    for _ in range(8):
        observe(weighting, 0.0, 100.0)
    assert weighting.weights()[1] > 0.99


def test_dynamic_weight_average_by_hand():
    weighting = started(sy.DynamicWeightAverage(period=2, temperature=2.0))
    outcomes = [observe(weighting, *losses).outcome for losses in ((3, 4), (1, 4), (1, 5), (1, 3))]
    rates = [1 / 2, 4 / 4]
    powers = [math.exp(rate / 2) for rate in rates]
    assert weighting.weights() == pytest.approx([power / sum(powers) for power in powers])
    assert [outcome is sy.Outcome.UPDATED for outcome in outcomes] == [False, False, False, True]


def test_dynamic_weight_average_takes_the_mean_over_the_steps_a_domain_was_in():
    weighting = started(sy.DynamicWeightAverage(period=2, temperature=1.0))
    for losses in ((2, 4), (2, NAN), (1, NAN), (1, 2)):
        observe(weighting, *losses)
    assert weighting.weights() == pytest.approx([0.5, 0.5])


def test_uncertainty_settles_where_the_weighted_losses_are_alike():
    weighting = started(sy.UncertaintyWeighting(rate=0.05), 3)
    for _ in range(600):
        observe(weighting, 4.0, 1.0, 0.25)
    weights = weighting.weights()
    assert [weight * loss for weight, loss in zip(weights, (4.0, 1.0, 0.25), strict=True)] == pytest.approx(
        [0.5] * 3, rel=0.02
    )


def test_famo_by_hand():
    weighting = started(sy.FAMO(rate=0.1, decay=0.0, lower_bound=-1.0))
    observe(weighting, 1.0, 3.0)  # heights 2 and 4
    assert weighting.weights() == pytest.approx([2 / 3, 1 / 3])
    observe(weighting, 0.0, 3.0)  # the first has fallen: ξ moves by Adam's first step, the rate, towards the second
    z = [math.exp(-0.1), math.exp(0.1)]
    ratios = [z[0] / 1, z[1] / 4]
    assert weighting.weights() == pytest.approx([ratio / sum(ratios) for ratio in ratios], rel=1e-5)


def test_famo_lets_a_domain_not_seen_yet_stand_aside():
    weighting = started(sy.FAMO(), 3)
    observe(weighting, 1.0, 2.0, NAN)
    assert weighting.weights() == pytest.approx([2 / 3, 1 / 3, 0.0])
    observe(weighting, 1.0, NAN, 1.0)
    assert weighting.weights() == pytest.approx([0.4, 0.2, 0.4], rel=0.1)


def test_log_loss_by_hand():
    weighting = started(sy.LogLoss(), 3)
    assert weighting.weights() == pytest.approx([1 / 3] * 3)
    observe(weighting, 1.0, 2.0, 4.0)  # reciprocals 4 : 2 : 1
    assert weighting.weights() == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    observe(weighting, 2.0, NAN, NAN)  # the others keep their last losses, so 2 : 2 : 1
    assert weighting.weights() == pytest.approx([2 / 5, 2 / 5, 1 / 5])


def test_log_loss_gives_no_weight_to_a_domain_that_was_never_present():
    weighting = started(sy.LogLoss(), 3)
    observe(weighting, 1.0, 3.0, NAN)
    assert weighting.weights() == pytest.approx([3 / 4, 1 / 4, 0.0])


def test_log_loss_with_a_shift_takes_negative_losses():
    weighting = started(sy.LogLoss(shift=1.0))
    observe(weighting, -0.5, 0.5)  # above −shift by 0.5 and 1.5
    assert weighting.weights() == pytest.approx([3 / 4, 1 / 4])


def test_log_loss_weighs_losses_whose_reciprocals_overflow():
    weighting = started(sy.LogLoss())
    observe(weighting, 1e-310, 3e-310)
    assert weighting.weights() == pytest.approx([3 / 4, 1 / 4])


@pytest.mark.parametrize(
    ("shift", "loss", "message"),
    [
        (0.0, -0.25, r"got a loss of -0\.25 and shift=0\.0\. Pass a larger shift=, here above 0\.25\."),
        (0.0, 0.0, r"got a loss of 0\.0 and shift=0\.0\. Pass a larger shift=, here above 0\.0\."),
        (1.0, -1.5, r"got a loss of -1\.5 and shift=1\.0\. Pass a larger shift=, here above 1\.5\."),
    ],
)
def test_log_loss_refuses_a_loss_without_a_logarithm_and_keeps_its_weights(shift, loss, message):
    weighting = started(sy.LogLoss(shift=shift))
    observe(weighting, 1.0, 2.0)
    before = weighting.weights()
    with pytest.raises(ValueError, match=message):
        observe(weighting, 3.0, loss)
    assert weighting.weights() == before


@pytest.mark.parametrize(
    "make",
    [
        sy.GroupDRO,
        lambda: sy.DynamicWeightAverage(period=1),
        lambda: sy.UncertaintyWeighting(rate=0.1),
        sy.FAMO,
        sy.LogLoss,
    ],
)
def test_in_a_balancer_they_follow_the_losses_without_a_probe_at_no_extra_pass(make):
    model, calls = smooth(), []
    model.register_forward_hook(lambda *_: calls.append(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    judge, reference = balancer(weighting=make()), started(make())
    for seed in range(4):
        samples = batch(seed=seed)
        expected = copy.deepcopy(model)
        loss = judge(model, samples)
        losses = [mse_loss(expected(x), y) for x, y in samples.values()]
        observe(reference, *(value.item() for value in losses))
        assert judge.last.measured == pytest.approx(dict(zip("ab", (v.item() for v in losses), strict=True)), rel=1e-5)
        assert list(judge.weights.values()) == pytest.approx(reference.weights(), rel=1e-4)
        assert loss.item() == pytest.approx(
            sum(w * v.item() for w, v in zip(judge.weights.values(), losses, strict=True)), rel=1e-5
        )
        take_step(loss, optimizer)
    assert judge.weights != {"a": 0.5, "b": 0.5}
    assert len(calls) == 4 * (1 + 2)  # the copies keep the hook, and run each domain apart
    judge.eval()
    before = judge.weights
    judge(model, batch())
    assert judge.weights == before
    assert judge.last.reason == "not training"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sy.GroupDRO(rate=0), "rate must be above 0 and finite; got 0"),
        (lambda: sy.DynamicWeightAverage(period=0), "period must be at least 1; got 0"),
        (lambda: sy.DynamicWeightAverage(temperature=0.0), "temperature must be above 0 and finite"),
        (lambda: sy.UncertaintyWeighting(rate=-1), "rate must be above 0 and finite; got -1"),
        (lambda: sy.FAMO(rate=-1), "rate must not be negative and must be finite; got -1"),
        (lambda: sy.LogLoss(shift=NAN), "shift must be finite; got nan"),
        (lambda: sy.DualBalancing(forgetting=0.0), r"forgetting must be above 0 and at most 1; got 0\.0"),
        (lambda: sy.DualBalancing(forgetting=1.5), r"forgetting must be above 0 and at most 1; got 1\.5"),
    ],
)
def test_refuses_wrong_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_fixed_weights_are_equal_unless_told():
    fixed = sy.Fixed()
    fixed.start(4)
    assert fixed.weights() == (0.25,) * 4


@pytest.mark.parametrize("weights", [[0.5, 0.6], [-0.1, 1.1], [float("nan"), 1.0], [], {"a": 0.5, "b": 0.6}, {}])
def test_fixed_refuses_what_is_not_on_the_simplex(weights):
    with pytest.raises(ValueError, match="must not be negative and must sum to 1; got"):
        sy.Fixed(weights)


def test_fixed_refuses_another_number_of_domains():
    with pytest.raises(ValueError, match=r"one number per domain \(3\); got 2"):
        sy.Fixed([0.5, 0.5]).start(3)


def test_fixed_by_name_follows_the_order_of_the_balancer():
    model, samples = smooth(), batch()
    named = balancer(domains=("b", "a"), weighting=sy.Fixed({"a": 0.2, "b": 0.8}))
    assert named.weighting.weights() == (0.8, 0.2)
    assert named.weights == {"b": 0.8, "a": 0.2}
    losses = {name: mse_loss(model(x), y).item() for name, (x, y) in samples.items()}
    assert named(model, samples).item() == pytest.approx(0.2 * losses["a"] + 0.8 * losses["b"])


def test_a_checkpoint_of_fixed_weights_by_name_fits_the_same_weights_in_order():
    named = balancer(weighting=sy.Fixed({"b": 0.8, "a": 0.2}))
    assert repr(named.weighting) == repr(sy.Fixed([0.2, 0.8])) == "Fixed(weights=(0.2, 0.8))"
    balancer(weighting=sy.Fixed([0.2, 0.8])).load_state_dict(named.state_dict())
    with pytest.raises(ValueError, match="the checkpoint is of"):
        balancer(weighting=sy.Fixed({"a": 0.8, "b": 0.2})).load_state_dict(named.state_dict())


def test_fixed_by_name_prints_the_names_before_it_is_started():
    assert repr(sy.Fixed({"b": 0.8, "a": 0.2})) == "Fixed(weights={'b': 0.8, 'a': 0.2})"


def test_fixed_by_name_refuses_a_number_of_domains():
    with pytest.raises(ValueError, match=r"need the domains' names, and start got only their number.*got \{'a': 0\.2"):
        sy.Fixed({"a": 0.2, "b": 0.8}).start(2)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": 1.0}, r"missing are \['b'\], unknown are \[\]"),
        ({"a": 0.2, "b": 0.8, "z": 0.0}, r"missing are \[\], unknown are \['z'\]"),
        (
            {"a": 0.2, "B": 0.8},
            r"each of the domains \['a', 'b'\] and no other; missing are \['b'\], unknown are \['B'\]",
        ),
    ],
)
def test_fixed_by_name_refuses_other_names(weights, message):
    with pytest.raises(ValueError, match=message):
        balancer(weighting=sy.Fixed(weights))


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
