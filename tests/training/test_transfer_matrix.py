"""The transfer matrix: means and errors by hand, what a step is worth, importance, sizes of gradients."""

import math

import pytest
import torch
from torch.nn.functional import mse_loss

import steelyard as sy
from plain_votes import optimizer_with_state
from steelyard.measurement import Scores
from steelyard.probing import Finding
from steelyard.training.transfer import Transfer
from toys import batch, smooth

NAMES = ("a", "b", "c")
NAN = math.nan


def table(rows):
    return torch.tensor(rows, dtype=torch.float64)


def random_tables(count, domains=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, domains + 1, domains, generator=generator, dtype=torch.float64)


def ones(domains=3):
    return torch.ones(domains, dtype=torch.float64)


def balancer_of(importance=None, **kwargs):
    return sy.Balancer(NAMES, loss=mse_loss, importance=importance, **kwargs)


def worth_of(importance, *, probe=sy.InnerLoop, votes=4, weighting=None):
    """What steps are worth in a few votes at one point, with these importances."""
    torch.manual_seed(0)
    model = smooth().double()
    samples = batch((6, 6, 6), names=NAMES, dtype=torch.float64)
    optimizer = optimizer_with_state("SGD", model, samples)
    balancer = balancer_of(importance, probe=probe(), weighting=weighting)
    values = []
    for seed in range(votes):
        balancer(model, batch((6, 6, 6), names=NAMES, dtype=torch.float64, seed=seed), optimizer)
        values.append(list(balancer.last.measured.values()))
    return values, balancer


def test_mean_standard_error_and_count_over_votes():
    tables = random_tables(7)
    tables[2, 1] = NAN  # no step for the second domain
    tables[3, :, 2] = NAN  # the third is not judged
    transfer = Transfer([0.2, 0.3, 0.5])
    assert transfer.mean.isnan().all()
    for judged in tables:
        transfer.observe(judged, ones())
    differences = tables[:, :-1] - tables[:, -1:]
    expected_given = differences * table([0.2, 0.3, 0.5])
    for row in range(3):
        for column in range(3):
            values = differences[:, row, column]
            values = values[~values.isnan()]
            assert transfer.count[row, column] == len(values)
            assert transfer.mean[row, column].item() == pytest.approx(values.mean().item(), rel=1e-12)
            error = values.std().item() / len(values) ** 0.5
            assert transfer.standard_error[row, column].item() == pytest.approx(error, rel=1e-12)
        others = [column for column in range(3) if column != row]
        values = expected_given[:, row, others].nansum(1)[~differences[:, row, row].isnan()]
        if row == 2:  # judged nowhere in vote 3, but stepped
            values = expected_given[:, row, others].nansum(1)
        assert transfer.given[row].item() == pytest.approx(values.mean().item(), rel=1e-12)
        error = values.std().item() / len(values) ** 0.5
        assert transfer.early[0, row].item() == pytest.approx(values.mean().item() / error, rel=1e-12)


def test_one_vote_has_a_mean_and_no_error():
    transfer = Transfer([0.5, 0.5])
    transfer.observe(table([[1.0, 2.0], [3.0, 5.0], [1.0, 1.0]]), ones(2))
    assert transfer.mean.tolist() == [[0.0, 1.0], [2.0, 4.0]]
    assert transfer.standard_error.isnan().all()


def test_what_a_step_is_worth_by_hand():
    transfer = Transfer([0.25, 0.75])
    first = transfer.observe(table([[1.0, 10.0], [3.0, 50.0], [5.0, 60.0]]), ones(2))
    # The spreads are 1 and 20: the first vote's own.
    assert first.values.tolist() == pytest.approx([0.25 * -4 + 0.75 * -2.5, 0.25 * -2 + 0.75 * -0.5])
    second = transfer.observe(table([[9.0, 0.0], [9.0, 20.0], [9.0, 0.0]]), ones(2))
    # Running means of the variances, in which the first vote's factor is 0.95 · 0.05 and the second's 0.05. The mean of
    # what the second domain does to itself is +5 now: it harms itself, which does not count.
    assert second.values.tolist() == pytest.approx([0.0, 0.0])
    assert second.present.tolist() == [True, True]
    third = transfer.observe(table([[9.0, 20.0], [9.0, -30.0], [9.0, 0.0]]), ones(2))
    spread = math.sqrt((0.95**2 * 400 + 0.95 * 100 + 625) / (0.95**2 + 0.95 + 1))
    assert third.values.tolist() == pytest.approx([0.75 * 20 / spread, 0.75 * -30 / spread])


def test_harm_to_oneself_does_not_count():
    """So it is with samples that were memorised: what helps one half of them harms the other."""
    judged = random_tables(1)[0]
    worths = []
    for own in (0.5, 50.0):
        transfer = Transfer([1 / 3] * 3)
        transfer.spreads.fill_(1.0)
        judged[0, 0] = judged[-1, 0] + own
        worths.append(transfer.observe(judged, ones()).values[0])
    changes = judged[0] - judged[-1]
    spreads = transfer.spreads[0].sqrt()
    torch.testing.assert_close(worths[1], (changes[1:] / 3 / spreads[1:]).sum())
    torch.testing.assert_close(worths[0], worths[1])
    # Held-out samples were not memorised.
    transfer = Transfer([1 / 3] * 3)
    transfer.spreads.fill_(1.0)
    worth = transfer.observe(judged, ones(), held_out=True).values[0]
    torch.testing.assert_close(worth, (changes / 3 / transfer.spreads[0].sqrt()).sum())


def test_what_is_common_to_all_steps_is_no_help():
    """A shift of a column by what the optimizer does for a gradient of zero changes nothing."""
    plain, shifted = Transfer([0.5, 0.2, 0.3]), Transfer([0.5, 0.2, 0.3])
    for judged in random_tables(3):
        expected = plain.observe(judged, ones())
        moved = shifted.observe(judged + table([[7.0, -5.0, 0.0]]), ones())
        torch.testing.assert_close(moved.values, expected.values)
    torch.testing.assert_close(plain.mean, shifted.mean)


def test_no_column_counts_for_more_because_its_scores_vary_more():
    plain, stretched = Transfer([0.5, 0.2, 0.3]), Transfer([0.5, 0.2, 0.3])
    for judged in random_tables(5):
        expected = plain.observe(judged, ones())
        torch.testing.assert_close(
            stretched.observe(judged * table([[1.0, 1e6, 1e-6]]), ones()).values, expected.values
        )


@pytest.mark.parametrize("column", [[NAN] * 4, [2.0] * 4], ids=["not judged", "the same after every step"])
def test_a_column_that_says_nothing_is_left_out(column):
    judged = random_tables(1)[0]
    judged[:, 1] = table(column)
    judged[-1, [0, 2]] = 10.0  # so that every step helps
    worth = Transfer([0.2, 0.6, 0.2]).observe(judged, ones())
    assert worth.present.all()
    scaled = (judged[:-1] - judged[-1])[:, [0, 2]]
    spreads = (scaled - scaled.mean(0)).square().mean(0).sqrt()
    torch.testing.assert_close(worth.values, (0.2 * scaled / spreads).sum(1))


def test_a_row_without_a_step_is_not_present_and_one_step_compares_nothing():
    judged = random_tables(1)[0]
    judged[1] = NAN
    worth = Transfer([1 / 3] * 3).observe(judged, ones())
    assert worth.present.tolist() == [True, False, True]
    assert worth.values[1] == 0
    judged[2] = NAN
    assert Transfer([1 / 3] * 3).observe(judged, ones()).taking_part == []


def test_a_score_that_is_not_finite_does_not_stay_in_the_matrix():
    transfer = Transfer([0.5, 0.5])
    transfer.observe(table([[1.0, math.inf], [3.0, 5.0], [1.0, 1.0]]), table([math.inf, 2.0]))
    transfer.observe(table([[1.0, 2.0], [3.0, 5.0], [1.0, 1.0]]), ones(2))
    assert transfer.count.tolist() == [[2, 1], [2, 2]]
    assert transfer.mean.isfinite().all()
    assert transfer.gradient_norms.tolist() == pytest.approx([1.0, math.sqrt(2.5)], rel=0.01)


def observe_norms(*norms, importance=(1 / 3,) * 3):
    transfer = Transfer(list(importance))
    for row in norms:
        transfer.observe(random_tables(1, len(importance))[0], table(row))
    return transfer


def test_the_size_of_gradients_is_their_running_root_mean_square():
    assert Transfer([1 / 3] * 3).gradient_scale.tolist() == [1.0, 1.0, 1.0]
    transfer = observe_norms([3.0, 1.0, NAN], [5.0, 1.0, NAN])
    weights = (0.99 * 0.01, 0.01)  # of the first and the second vote in the running mean
    mean = (weights[0] * 9 + weights[1] * 25) / sum(weights)
    assert transfer.gradient_norms[:2].tolist() == pytest.approx([math.sqrt(mean), 1.0])
    assert transfer.gradient_norms[2].isnan()
    # Relative to the geometric mean of the two that are known.
    assert transfer.gradient_scale.tolist() == pytest.approx([mean**0.25, mean**-0.25, 1.0])


@pytest.mark.parametrize(("norm", "scale"), [(2.0, 2.0), (0.3, 0.3), (0.0, 1.0), (1e9, 1000.0), (1e-9, 0.001)])
def test_ratios_of_sizes_are_bounded_and_a_size_of_0_is_unknown(norm, scale):
    transfer = observe_norms([1.0, norm, 1.0])
    assert transfer.gradient_scale.tolist() == pytest.approx([1.0, scale, 1.0])


def test_of_two_sizes_nothing_says_which_is_the_usual_one():
    transfer = observe_norms([0.01, 1.0], importance=(0.5, 0.5))
    assert transfer.gradient_scale.tolist() == pytest.approx([0.1, 10.0])


def test_gradients_that_became_small_are_not_weighed_up_and_ones_that_stay_large_are_weighed_down():
    learned = observe_norms(*[[1.0, 1.0, 1.0]] * 50, *[[1.0, 0.01, 1.0]] * 500)
    assert learned.gradient_norms[1] < 0.2
    assert learned.gradient_scale.tolist() == pytest.approx([1.0, 1.0, 1.0])
    noisy = observe_norms(*[[1.0, 1.0, 1.0]] * 50, *[[0.01, 1.0, 0.01]] * 500)
    assert noisy.gradient_scale[1] > 5
    assert noisy.gradient_scale[0] == pytest.approx(1.0)
    assert noisy.loss_scale.tolist() == pytest.approx([1.0, 1.0, 1.0])


def test_rows_are_divided_by_the_size_of_gradients():
    judged = random_tables(1)[0]
    sizes = table([1.0, 100.0, 1.0])
    stretched = judged.clone()
    stretched[:-1] = judged[-1] + (judged[:-1] - judged[-1]) * sizes[:, None]
    expected = Transfer([0.2, 0.3, 0.5]).observe(judged, ones())
    torch.testing.assert_close(Transfer([0.2, 0.3, 0.5]).observe(stretched, sizes).values, expected.values)


@pytest.mark.parametrize("probe", [sy.InnerLoop, sy.FirstOrder])
def test_only_ratios_of_importance_matter(probe):
    plain, _ = worth_of({"a": 1, "b": 2, "c": 0.5}, probe=probe)
    scaled, balancer = worth_of({"c": 500.0, "a": 1000.0, "b": 2000.0}, probe=probe)
    for one, other in zip(plain, scaled, strict=True):
        assert one == pytest.approx(other, rel=1e-12)
    unlike, _ = worth_of(None, probe=probe)
    assert unlike[0] != pytest.approx(plain[0])
    equal, _ = worth_of({"a": 3, "b": 3, "c": 3}, probe=probe)
    assert equal[0] == pytest.approx(unlike[0], rel=1e-12)
    assert balancer.transfer.importance.tolist() == pytest.approx([2 / 7, 4 / 7, 1 / 7])


@pytest.mark.parametrize("probe", [sy.InnerLoop, sy.FirstOrder])
def test_importance_0_drops_a_domains_column_and_never_its_row(probe):
    values, balancer = worth_of({"a": 1, "b": 1, "c": 0}, probe=probe, votes=1)
    transfer = balancer.transfer.mean[:, :2] / balancer.transfer.gradient_scale[:, None]
    spreads = (transfer - transfer.mean(0)).square().mean(0).sqrt()
    assert values[0] == pytest.approx((transfer / spreads / 2).sum(1).tolist(), rel=1e-9)
    assert len(values[0]) == 3
    assert balancer.transfer.mean.isfinite().all()  # what is auxiliary is measured all the same


def test_counted_votes_follow_importance_too():
    values, balancer = worth_of({"a": 0, "b": 1, "c": 3}, weighting=sy.DirichletVote(), votes=1)
    torch.manual_seed(0)
    model = smooth().double()
    samples = batch((6, 6, 6), names=NAMES, dtype=torch.float64)
    optimizer = optimizer_with_state("SGD", model, samples)
    finding = balancer.probe.find(model, samples, losses=balancer.domain_losses, optimizer=optimizer)
    expected = finding.scores.after[:-1] @ table([0.0, 0.75, 2.25])
    assert values[0] == pytest.approx(expected.tolist(), rel=1e-9)


def test_counted_votes_compare_steps_by_scores_that_were_measured_after_each():
    """On several ranks a score may be unknown after some steps; it must not count as a score of 0 there."""
    balancer = balancer_of({"a": 1, "b": 1, "c": 1}, probe=sy.InnerLoop(), weighting=sy.DirichletVote())
    after = table([[5.0, 1.0, NAN], [6.0, 2.0, 7.0], [NAN, 3.0, 8.0], [5.0, 4.0, 7.0]])
    scores = Scores(after=after, before=table([NAN] * 3), losses=ones(), gradient_norms=ones())
    measurement = balancer.valuation.measurement(Finding(sy.Measurement.of(ones()), scores=scores), 1)
    assert measurement.values.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("importance", "message"),
    [
        ({"a": 0, "b": 0, "c": 0}, "importance must be above 0 for at least one domain; got 0 for all"),
        ({"a": 1, "b": -1, "c": 0}, "importance must be finite and not negative; got .*-1"),
        ({"a": 1, "b": NAN, "c": 0}, "importance must be finite and not negative; got .*nan"),
        ({"a": 1, "b": math.inf, "c": 0}, "importance must be finite and not negative; got .*inf"),
        ({"a": 1, "b": 1}, r"importance must map each of \('a', 'b', 'c'\) to a number; got {'a': 1, 'b': 1}"),
        ({"a": 1, "b": 1, "c": 1, "d": 1}, "importance must map each of"),
        ([1, 1, 1], "importance must map each of"),
    ],
)
def test_refuses_importance_that_says_nothing(importance, message):
    with pytest.raises(ValueError, match=message):
        balancer_of(importance)


@pytest.mark.parametrize("cast", [torch.float16, torch.bfloat16, torch.float32])
def test_casting_a_balancer_takes_no_precision_from_what_was_measured(cast):
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    plain, other = balancer_of(probe=sy.FirstOrder()), balancer_of(probe=sy.FirstOrder()).to(cast)
    for seed in range(4):
        for balancer in (plain, other):
            balancer(model, batch((6, 6, 6), names=NAMES, seed=seed), optimizer)
        if seed == 2:
            other.to(cast)
    assert plain.audit().as_dict() == other.audit().as_dict()
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_the_balancer_reports_transfer_with_any_weighting():
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for weighting, count in ((sy.Evidence(), 4), (sy.Fixed(), 4), (sy.DirichletVote(), 1)):
        balancer = balancer_of(probe=sy.InnerLoop(), weighting=weighting)
        for seed in range(4):
            balancer(model, batch((6, 6, 6), names=NAMES, seed=seed), optimizer)
        assert (balancer.transfer.count == count).all()


def test_where_the_steps_of_most_domains_harm_the_others_nothing_is_measured():
    """As with batch normalisation, where a step sees one domain's statistics alone: weights must not follow that."""
    generator = torch.Generator().manual_seed(0)
    for harmful, measured in ((1, True), (2, False)):
        transfer = Transfer([1 / 3] * 3)
        for _ in range(20):
            judged = 0.1 * torch.randn(4, 3, generator=generator, dtype=torch.float64)
            judged[:harmful] += 1.0
            judged[harmful:3] -= 1.0
            judged[3] = 0.0
            measurement = transfer.observe(judged, ones())
        assert transfer.steps_harm is not measured
        assert bool(measurement.present.any()) is measured
