"""What every weighting keeps, whatever it does."""

import math

import pytest
import torch

import steelyard as sy

WEIGHTINGS = {
    "fixed": sy.Fixed,
    "greedy": lambda: sy.DirichletVote("greedy", window=5),
    "conservative": lambda: sy.DirichletVote("conservative", window=5),
    "prior in votes": lambda: sy.DirichletVote("greedy", window=7, prior_votes=3),
    "shift": sy.RelativeShift,
    "group DRO": sy.GroupDRO,
    "dynamic weight average": lambda: sy.DynamicWeightAverage(period=2),
    "uncertainty": sy.UncertaintyWeighting,
    "FAMO": sy.FAMO,
    "from a scalarizer": lambda: sy.FromScalarizer(lambda losses: (1 + losses.square()).log().sum()),
    "from a Gramian": lambda: sy.FromGramian(lambda gramian: gramian.diagonal().clamp(0, 1)),
}
# Sums in another order differ in the last bit.
SUMMED = {"group DRO", "dynamic weight average", "FAMO"}
GRAMIAN = {"from a Gramian"}
ONLY_TWO = {"shift"}
# RelativeShift measures in units of the first domain's loss: the paper's formula is not symmetric in the domains.
NOT_EQUIVARIANT = {"shift"}
OFF_THE_SIMPLEX = {"uncertainty", "from a scalarizer", "from a Gramian"}
CASES = [(name, domains) for name in WEIGHTINGS for domains in (1, 2, 3, 8) if domains == 2 or name not in ONLY_TWO]
cases = pytest.mark.parametrize(("name", "domains"), CASES)


def started(name, domains):
    weighting = WEIGHTINGS[name]()
    weighting.start(domains)
    return weighting


def measurements(domains, count=12, scale=1.0):
    generator = torch.Generator().manual_seed(domains)
    return [scale * torch.randn(domains, generator=generator, dtype=torch.float64) for _ in range(count)]


def observed(weighting, value):
    gramian = weighting.statistic is sy.Statistic.GRAMIAN
    return weighting.observe(sy.Measurement.of(value.diag() if gramian else value))


def fed(weighting, values):
    for value in values:
        observed(weighting, value)
    return weighting.weights()


@cases
@pytest.mark.parametrize("scale", [1e-300, 1e-8, 1.0, 1e8, 1e300])
def test_weights_stay_on_the_simplex_at_any_scale(name, domains, scale):
    weighting = started(name, domains)
    assert weighting.on_simplex is (name not in OFF_THE_SIMPLEX)
    for value in measurements(domains, scale=scale):
        weights = fed(weighting, [value])
        assert len(weights) == domains
        assert all(math.isfinite(weight) for weight in weights)
        assert all(weight >= 0 for weight in weights) or name == "from a scalarizer"
        if weighting.on_simplex:
            assert sum(weights) == pytest.approx(1, abs=1e-6)


@cases
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_moves_nothing(name, domains, bad):
    weighting = started(name, domains)
    before = fed(weighting, measurements(domains))
    value = torch.ones(domains)
    value[-1] = bad
    verdict = observed(weighting, value)
    assert verdict.outcome is not sy.Outcome.UPDATED
    assert weighting.weights() == before


@cases
def test_renaming_the_domains_renames_the_weights(name, domains):
    if name in NOT_EQUIVARIANT:
        with pytest.raises(AssertionError):
            check_equivariance(name, domains)
    else:
        check_equivariance(name, domains)


def check_equivariance(name, domains):
    order = torch.arange(domains).roll(1)
    values = [1 + value.abs() for value in measurements(domains)]  # so near each other that no shift is clipped
    plain = fed(started(name, domains), values)
    permuted = fed(started(name, domains), [value[order] for value in values])
    expected = tuple(plain[i] for i in order)
    assert permuted == (pytest.approx(expected, rel=1e-9) if name in SUMMED else expected)


@cases
def test_state_continues_identically(name, domains):
    first, values = started(name, domains), measurements(domains)
    fed(first, values[:6])
    second = started(name, domains)
    second.load_state_dict(first.state_dict())
    assert fed(second, values[6:]) == fed(first, values[6:])


@cases
def test_the_same_measurements_give_the_same_weights(name, domains):
    assert fed(started(name, domains), measurements(domains)) == fed(started(name, domains), measurements(domains))


@cases
def test_casting_the_module_takes_no_precision_from_the_weights(name, domains):
    plain, cast = started(name, domains), started(name, domains).half()
    values = [10 + value for value in measurements(domains)]  # so near each other that no shift is clipped
    assert fed(cast, values) == fed(plain, values)


@cases
def test_serves_one_balancer_only(name, domains):
    weighting = started(name, domains)
    with pytest.raises(ValueError, match="already serves a balancer"):
        weighting.start(domains)


def test_refuses_no_domains():
    with pytest.raises(ValueError, match="domains must be at least 1; got 0"):
        sy.Fixed().start(0)
