"""Evidence: the formula by hand, caution, the floor, and what absent domains keep. Settings are given, not defaults."""

import math

import pytest
import torch

import steelyard as sy


def started(domains, **settings):
    weighting = sy.Evidence(**{"rate": 0.1, "caution": 0.0, "floor": 0.0, **settings})
    weighting.start(domains)
    return weighting


def vote(weighting, *worth, present=None):
    values = torch.tensor(worth, dtype=torch.float64)
    if present is None:
        return weighting.observe(sy.Measurement.of(values))
    return weighting.observe(sy.Measurement(values, torch.tensor(present)))


def votes_of(count, domains, *, seed=0, shift=0.0):
    """Votes on domains that are alike, but for a shift of the first one's worth."""
    generator = torch.Generator().manual_seed(seed)
    worth = torch.randn(count, domains, generator=generator, dtype=torch.float64)
    worth[:, 0] += shift
    return worth


def plain_rule(votes, *, rate, caution, floor):
    """The formula of the docstring in plain Python."""
    domains = len(votes[0])
    evidence, counts, squares, factors = [0.0] * domains, [0.0] * domains, 0.0, 0.0
    for worth in votes:
        mean = sum(worth) / domains
        squares = 0.95 * squares + 0.05 * sum((value - mean) ** 2 for value in worth) / domains
        factors = 0.95 * factors + 0.05
        spread = math.sqrt(squares / factors)
        evidence = [s + (value - mean) / spread for s, value in zip(evidence, worth, strict=True)]
        counts = [n + 1 for n in counts]
    exponents = []
    for s, n in zip(evidence, counts, strict=True):
        beyond = max(abs(s) - caution * math.sqrt(n), 0.0)
        exponents.append(math.exp(-rate * math.copysign(beyond, s)))
    return [(1 - floor) * exponent / sum(exponents) + floor / domains for exponent in exponents]


@pytest.mark.parametrize("caution", [0.0, 1.5])
@pytest.mark.parametrize("domains", [2, 5])
def test_shares_follow_the_formula(domains, caution):
    settings = {"rate": 0.2, "caution": caution, "floor": 0.1}
    weighting = started(domains, **settings)
    votes = votes_of(30, domains, shift=1.0).tolist()
    for worth in votes:
        assert vote(weighting, *worth).outcome is sy.Outcome.UPDATED
    assert weighting.weights() == pytest.approx(plain_rule(votes, **settings), rel=1e-12)
    assert weighting.weights()[0] < 1 / domains  # lower worth is better


def test_the_first_vote_by_hand():
    weighting = started(3, rate=math.log(2))
    vote(weighting, 0.0, 3.0, 6.0)
    # c = (-3, 0, 3) and r = √6; a = ln 2 · (√1.5, 0, -√1.5).
    parts = [2**1.5**0.5, 1.0, 0.5**1.5**0.5]
    assert weighting.weights() == pytest.approx([part / sum(parts) for part in parts], rel=1e-12)


def test_shares_stay_equal_until_the_evidence_exceeds_the_doubt():
    weighting = started(2, caution=3.0, rate=1.0)
    shares = []
    for _ in range(20):
        vote(weighting, 0.0, 1.0)  # adds 1 to the evidence, and the doubt is 3 √n
        shares.append(weighting.weights()[0])
    assert shares[:9] == [0.5] * 9
    assert shares[9:] == sorted(set(shares[9:]))
    assert shares[9] > 0.5


def test_alike_domains_keep_equal_shares_where_an_incautious_rule_drifts():
    drifts = {0.0: 0.0, 3.5: 0.0}
    for caution in drifts:
        for seed in range(5):
            weighting = started(2, caution=caution, rate=0.05)
            for worth in votes_of(500, 2, seed=seed).tolist():
                vote(weighting, *worth)
            drifts[caution] = max(drifts[caution], abs(weighting.weights()[0] - 0.5))
    assert drifts[0.0] > 0.3
    assert drifts[3.5] == 0.0


@pytest.mark.parametrize("domains", [2, 32])
def test_every_domain_keeps_the_floor_and_the_floor_is_reached(domains):
    weighting = started(domains, rate=10.0, floor=0.2)
    for worth in votes_of(50, domains, shift=20.0).tolist():
        vote(weighting, *worth)
    shares = weighting.weights()
    assert shares[0] == pytest.approx(0.2 / domains, rel=1e-9)
    assert min(shares) >= 0.2 / domains * (1 - 1e-12)
    assert sum(shares) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_units_of_what_is_measured_do_not_matter(scale):
    plain, scaled = started(3, caution=1.0), started(3, caution=1.0)
    for worth in votes_of(40, 3, shift=0.5):
        vote(plain, *worth.tolist())
        vote(scaled, *(100 * scale + scale * worth).tolist())
    assert plain.weights()[0] != pytest.approx(1 / 3)
    assert scaled.weights() == pytest.approx(plain.weights(), rel=1e-9)


def test_an_absent_domain_keeps_its_evidence_and_is_not_compared():
    weighting = started(3)
    vote(weighting, 0.0, 1.0, 5.0)
    before = weighting.evidence.clone(), weighting.votes.clone()
    vote(weighting, 0.0, 1.0, -100.0, present=[True, True, False])
    assert weighting.evidence[2] == before[0][2]
    assert weighting.votes.tolist() == [2.0, 2.0, 1.0]
    assert weighting.evidence[0] < before[0][0]


@pytest.mark.parametrize("worth", [(1.0, 1.0), (0.1 + 0.2, 0.3), (1e-300, 2e-300)])
def test_a_tie_leaves_everything_as_it_is(worth):
    weighting = started(2)
    vote(weighting, 0.0, 1.0)
    before = {name: tensor.clone() for name, tensor in weighting.state_dict().items()}
    assert vote(weighting, *worth).outcome is sy.Outcome.TIE
    assert all(torch.equal(tensor, before[name]) for name, tensor in weighting.state_dict().items())


def test_a_difference_whose_square_overflows_does_not_end_learning():
    weighting = started(2)
    assert vote(weighting, 0.0, 1e300).outcome is sy.Outcome.NOT_FINITE
    assert weighting.weights() == (0.5, 0.5)
    vote(weighting, 0.0, 1.0)
    assert weighting.weights()[0] > 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": -0.1}, "rate must not be negative and must be finite; got -0.1"),
        ({"caution": math.inf}, "caution must not be negative and must be finite; got inf"),
        ({"floor": math.nan}, "floor must be at least 0 and below 1; got nan"),
    ],
)
def test_refuses_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=message):
        sy.Evidence(**settings)
