import pytest
import torch

import steelyard as sy


def started(*args, domains=2, **kwargs):
    weighting = sy.DirichletVote(*args, **kwargs)
    weighting.start(domains)
    return weighting


def vote(weighting, *values):
    return weighting.observe(sy.Measurement.of(torch.tensor(values)))


def test_before_any_vote_the_weights_are_the_priors_mode():
    assert started(prior=[2.0, 4.0]).weights() == (0.25, 0.75)


def test_choices_are_opposite():
    greedy, conservative = started("greedy"), started("conservative")
    assert vote(greedy, 1.0, 2.0).vote == 0
    assert vote(conservative, 1.0, 2.0).vote == 1


def test_hand_derived_weights_for_three_domains():
    weighting = started("greedy", window=4, prior=2.0, domains=3)
    for values in ([1, 2, 3], [1, 2, 3], [3, 1, 2]):
        vote(weighting, *map(float, values))
    # α = 2 each, votes 2, 1, 0: (2 + N − 1) / (6 + 3 − 3)
    assert weighting.weights() == (3 / 6, 2 / 6, 1 / 6)


def test_only_the_window_counts():
    weighting = started("greedy", window=2, prior=2.0)
    for values in ([0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]):
        vote(weighting, *values)
    assert weighting.posterior.concentration == (2.0, 4.0)


def test_a_tie_casts_no_vote():
    weighting = started(domains=3)
    update = vote(weighting, 1.0, 2.0, 2.0)
    assert update == sy.Update(sy.Outcome.TIE)
    assert weighting.weights() == (1 / 3, 1 / 3, 1 / 3)


def test_a_domain_that_sits_out_cannot_win():
    weighting = started("conservative", domains=3)
    update = weighting.observe(sy.Measurement(torch.tensor([1.0, 2.0, 99.0]), torch.tensor([True, True, False])))
    assert update.vote == 1


def test_a_vote_is_divided_where_a_domain_is_absent():
    weighting = started("greedy", window=4, prior=2.0, domains=4)
    weighting.observe(sy.Measurement(torch.tensor([2.0, 1.0, 3.0, 0.0]), torch.tensor([True, True, True, False])))
    # Three of four are present: the winner has 3/4 of the vote, the absent domain 1/4.
    assert weighting.posterior.concentration == (2.0, 2.75, 2.0, 2.25)
    assert weighting.weights() == (1 / 5, 1.75 / 5, 1 / 5, 1.25 / 5)


@pytest.mark.parametrize("choice", ["greedy", "conservative"])
@pytest.mark.parametrize("presence", [1.0, 0.25, 0.1])
@pytest.mark.parametrize("domains", [3, 5])
def test_domains_that_are_alike_get_equal_weights_whatever_their_presence(choice, presence, domains):
    weighting = started(choice, domains=domains)
    generator = torch.Generator().manual_seed(7)
    total = torch.zeros(domains, dtype=torch.float64)
    votes = 4000
    for _ in range(votes):
        present = torch.ones(domains, dtype=torch.bool)
        present[-1] = torch.rand((), generator=generator) < presence
        values = torch.randn(domains, generator=generator, dtype=torch.float64)
        weighting.observe(sy.Measurement(values, present))
        total += torch.tensor(weighting.weights(), dtype=torch.float64)
    assert (total / votes - 1 / domains).abs().max() < 0.03


@pytest.mark.parametrize("domains", [2, 5, 16])
def test_prior_votes_are_worth_the_same_in_all_for_any_number_of_domains(domains):
    weighting = started(prior_votes=8, domains=domains)
    assert sum(alpha - 1 for alpha in weighting.prior) == pytest.approx(8)


def test_mean_and_credible_interval_agree_with_scipy():
    stats = pytest.importorskip("scipy.stats", reason="scipy's quantiles are the reference")
    for concentration in [(7.0, 5.0), (5.0, 30.0), (1.01, 1.5), (105.0, 5.0, 3.5), (2000.0, 3.0, 900.0)]:
        posterior = sy.DirichletPosterior(concentration)
        total = sum(concentration)
        assert posterior.mean == pytest.approx([alpha / total for alpha in concentration])
        for mass in (0.5, 0.95, 0.999):
            for alpha, (low, high) in zip(concentration, posterior.interval(mass), strict=True):
                expected = stats.beta(alpha, total - alpha).interval(mass)
                assert (low, high) == pytest.approx(expected, rel=1e-8, abs=1e-12)


def test_the_posterior_of_one_domain_is_certain():
    weighting = started(domains=1)
    assert weighting.weights() == (1.0,)
    assert weighting.posterior.interval() == ((1.0, 1.0),)


@pytest.mark.parametrize("mass", [0.0, 1.0, float("nan")])
def test_refuses_a_mass_that_is_no_probability(mass):
    with pytest.raises(ValueError, match="mass must lie between 0 and 1; got"):
        sy.DirichletPosterior((2.0, 2.0)).interval(mass)


@pytest.mark.parametrize("prior", [1.0, 0.5, float("nan"), float("inf"), [5.0, 1.0], []])
def test_refuses_a_prior_without_a_mode(prior):
    with pytest.raises(ValueError, match="every prior must be finite and above 1"):
        sy.DirichletVote(prior=prior)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"choice": "bold"}, "choice must be 'greedy' or 'conservative'; got 'bold'"),
        ({"window": 0}, "window must be a whole number, at least 1; got 0"),
        ({"window": 2.5}, "window must be a whole number, at least 1; got 2.5"),
        ({"prior": 5.0, "prior_votes": 8}, "prior or prior_votes, not both"),
        ({"prior_votes": 0}, "prior_votes must be above 0 and finite; got 0"),
    ],
)
def test_refuses_wrong_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        sy.DirichletVote(**arguments)


def test_says_that_it_has_not_begun():
    with pytest.raises(RuntimeError, match=r"DirichletVote has not begun: a balancer starts it"):
        sy.DirichletVote().weights()


def test_refuses_a_prior_for_another_number_of_domains():
    with pytest.raises(ValueError, match=r"one number or one per domain \(3\); got 2"):
        started(prior=[5.0, 5.0], domains=3)
