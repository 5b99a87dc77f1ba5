"""Properties that every weighting must have. A new weighting is added to the table `WEIGHTINGS`."""

import inspect
import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

import steelyard as sy


class Entry(NamedTuple):
    """A weighting and the properties in which it differs from most."""

    make: Callable[[], sy.Weighting]
    on_simplex: bool = True
    only_two: bool = False
    """Whether it weighs two domains and no other number."""
    negative: bool = False
    """Whether weights may be negative."""
    equivariant: str = "exactly"
    """Whether renaming the domains renames the weights: exactly, up to rounding, or never."""
    positive: bool = False
    """Whether it takes positive values only."""


WEIGHTINGS = {
    "fixed": Entry(sy.Fixed),
    "greedy": Entry(lambda: sy.DirichletVote("greedy", window=5)),
    "conservative": Entry(lambda: sy.DirichletVote("conservative", window=5)),
    "prior in votes": Entry(lambda: sy.DirichletVote("greedy", window=7, prior_votes=3)),
    # Relative to the first domain's loss: the paper's formula is not symmetric in the domains.
    "shift": Entry(sy.RelativeShift, only_two=True, equivariant="never"),
    # Up to rounding where a sum over domains is taken in another order.
    "group DRO": Entry(sy.GroupDRO, equivariant="up to rounding"),
    "dynamic weight average": Entry(lambda: sy.DynamicWeightAverage(period=2), equivariant="up to rounding"),
    "uncertainty": Entry(sy.UncertaintyWeighting, on_simplex=False),
    "FAMO": Entry(sy.FAMO, equivariant="up to rounding"),
    "log loss": Entry(sy.LogLoss, equivariant="up to rounding", positive=True),
    "log of shifted losses": Entry(lambda: sy.LogLoss(shift=1.0), equivariant="up to rounding", positive=True),
    "dual balancing": Entry(sy.DualBalancing, equivariant="up to rounding", positive=True),
    "evidence": Entry(sy.Evidence, equivariant="up to rounding"),
    "reckless evidence": Entry(lambda: sy.Evidence(rate=0.5, caution=0.0, floor=0.0), equivariant="up to rounding"),
    "from a scalarizer": Entry(
        lambda: sy.FromScalarizer(lambda losses: (1 + losses.square()).log().sum()), on_simplex=False, negative=True
    ),
    "from a Gramian": Entry(lambda: sy.FromGramian(lambda gramian: gramian.diagonal().clamp(0, 1)), on_simplex=False),
}
CASES = [
    (name, domains)
    for name, entry in WEIGHTINGS.items()
    for domains in (1, 2, 3, 8)
    if domains == 2 or not entry.only_two
]
cases = pytest.mark.parametrize(("name", "domains"), CASES)


def started(name, domains):
    weighting = WEIGHTINGS[name].make()
    weighting.start(domains)
    return weighting


def measurements(name, domains, count=12, scale=1.0):
    generator = torch.Generator().manual_seed(domains)
    values = [scale * torch.randn(domains, generator=generator, dtype=torch.float64) for _ in range(count)]
    if WEIGHTINGS[name].positive:
        return [value.abs() for value in values]
    return values


def observed(weighting, value):
    gramian = weighting.statistic is sy.Statistic.GRAMIAN
    return weighting.observe(sy.Measurement.of(value.diag() if gramian else value))


def fed(weighting, values):
    for value in values:
        observed(weighting, value)
    return weighting.weights()


def test_the_table_has_every_public_weighting():
    public = {value for value in vars(sy.weighting).values() if inspect.isclass(value)}
    expected = {value for value in public if issubclass(value, sy.Weighting) and value is not sy.Weighting}
    assert {type(entry.make()) for entry in WEIGHTINGS.values()} == expected


@pytest.mark.parametrize("name", sy.weighting.__all__)
def test_names_of_the_package_are_names_of_the_library(name):
    assert getattr(sy, name) is getattr(sy.weighting, name)
    assert name in sy.__all__


@cases
@pytest.mark.parametrize("scale", [1e-300, 1e-8, 1.0, 1e8, 1e300])
def test_weights_stay_on_the_simplex_at_any_scale(name, domains, scale):
    weighting = started(name, domains)
    assert weighting.on_simplex is WEIGHTINGS[name].on_simplex
    for value in measurements(name, domains, scale=scale):
        weights = fed(weighting, [value])
        assert len(weights) == domains
        assert all(math.isfinite(weight) for weight in weights)
        assert all(weight >= 0 for weight in weights) or WEIGHTINGS[name].negative
        if weighting.on_simplex:
            assert sum(weights) == pytest.approx(1, abs=1e-6)


@cases
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_moves_nothing(name, domains, bad):
    weighting = started(name, domains)
    before = fed(weighting, measurements(name, domains))
    value = torch.ones(domains)
    value[-1] = bad
    update = observed(weighting, value)
    assert update.outcome is not sy.Outcome.UPDATED
    assert weighting.weights() == before


@cases
def test_the_value_of_an_absent_domain_does_not_matter(name, domains):
    present = torch.ones(domains, dtype=torch.bool)
    present[-1] = False
    weights = []
    for absent_value in (0.0, 7.0, float("nan")):
        weighting = started(name, domains)
        fed(weighting, measurements(name, domains, count=3))
        for value in measurements(name, domains):
            value[-1] = absent_value
            if weighting.statistic is sy.Statistic.GRAMIAN:
                value = value.diag()
            weighting.observe(sy.Measurement(value, present))
        weights.append(weighting.weights())
    assert weights[0] == weights[1] == weights[2]


@cases
def test_renaming_the_domains_renames_the_weights(name, domains):
    if WEIGHTINGS[name].equivariant == "never":
        with pytest.raises(AssertionError):
            check_equivariance(name, domains)
    else:
        check_equivariance(name, domains)


def check_equivariance(name, domains):
    order = torch.arange(domains).roll(1)
    values = [1 + value.abs() for value in measurements(name, domains)]  # so near each other that no shift is clipped
    plain = fed(started(name, domains), values)
    permuted = fed(started(name, domains), [value[order] for value in values])
    expected = tuple(plain[i] for i in order)
    if WEIGHTINGS[name].equivariant == "up to rounding":
        expected = pytest.approx(expected, rel=1e-9)
    assert permuted == expected


@cases
def test_state_continues_identically(name, domains):
    first, values = started(name, domains), measurements(name, domains)
    fed(first, values[:6])
    second = started(name, domains)
    second.load_state_dict(first.state_dict())
    assert fed(second, values[6:]) == fed(first, values[6:])


@cases
def test_the_same_measurements_give_the_same_weights(name, domains):
    first = fed(started(name, domains), measurements(name, domains))
    assert fed(started(name, domains), measurements(name, domains)) == first


@cases
def test_casting_the_module_takes_no_precision_from_the_weights(name, domains):
    plain, cast = started(name, domains), started(name, domains).half()
    values = [10 + value for value in measurements(name, domains)]  # so near each other that no shift is clipped
    assert fed(cast, values) == fed(plain, values)


@cases
def test_serves_one_balancer_only(name, domains):
    weighting = started(name, domains)
    with pytest.raises(ValueError, match="already serves a balancer"):
        weighting.start(domains)


@cases
def test_names_of_the_domains_start_it_as_their_number_does(name, domains):
    weighting = WEIGHTINGS[name].make()
    weighting.start([f"domain {index}" for index in range(domains)])
    assert weighting.domains == domains
    values = measurements(name, domains)
    assert fed(weighting, values) == fed(started(name, domains), values)


@pytest.mark.parametrize("domains", [0, []])
def test_refuses_no_domains(domains):
    with pytest.raises(ValueError, match="domains must be at least 1; got 0"):
        sy.Fixed().start(domains)
