"""What trials say, from rows made by hand."""

import math

import pytest

from steelyard.experiments.regret.kinds import summarise_kinds
from steelyard.experiments.regret.page import summary_page
from steelyard.experiments.regret.pooling import pool_gains
from steelyard.experiments.regret.scores import Setting, scores_by_setting, sweep_winners
from steelyard.experiments.regret.statistics import (
    AuditCount,
    Estimate,
    audit_counts,
    baseline_scores,
    gains,
    lost_domains,
    regrets,
    relative_costs,
)
from steelyard.experiments.regret.trial import SweepScore, Trial, TrialResult


def result(
    method: str = "equal",
    *,
    seed: int = 0,
    score: float = 0.5,
    variant: str = "plain",
    problem: str = "digits",
    rate: float = 1.0,
    **changes: object,
) -> TrialResult:
    settings = Trial(problem=problem, variant=variant, optimizer="sgd", steps=10, method=method, seed=seed, rate=rate)
    equal = {"a": 0.5, "b": 0.5}
    values = {
        "validation": score,
        "clean_validation": score,
        "scores": {"a": score, "b": score},
        "weights": equal,
        "shares": equal,
    }
    values |= {"faults": {}, "flags": None, "seconds": 1.0}
    return TrialResult(trial=settings, score=score, **(values | changes))


def setting(method: str, variant: str = "plain") -> Setting:
    return Setting(problem="digits", variant=variant, optimizer="sgd", steps=10, method=method)


def test_gains_are_of_paired_seeds():
    results = [result(seed=seed, score=score) for seed, score in ((0, 0.1), (1, 0.5), (2, 0.9))]
    results += [result("evidence", seed=seed, score=score) for seed, score in ((2, 0.93), (0, 0.11), (1, 0.52))]
    results.append(result("evidence", seed=3, score=0.0))  # equal weights have no such seed
    (estimate,) = gains(results).values()
    assert estimate.count == 3
    assert estimate.mean == pytest.approx(0.02)
    assert estimate.reach == pytest.approx(4.302653 * 0.01 / math.sqrt(3))  # t of two degrees of freedom
    assert list(gains(results)) == [setting("evidence")]
    assert baseline_scores(results)[setting("equal")].mean == pytest.approx(0.5)


def test_a_method_without_a_pair_has_no_gain():
    assert gains([result("evidence", seed=1), result(seed=2)]) == {}
    assert gains([result("evidence"), result(variant="noisy")]) == {}


def test_one_seed_has_no_interval():
    estimate = Estimate.of([0.25])
    assert math.isnan(estimate.reach)
    assert str(estimate) == "+0.250"
    assert str(Estimate(-0.0123, 0.004, 8)) == "-0.012 ± 0.004"


def test_a_domain_is_lost_below_half_of_an_equal_share():
    shares = [{"a": 0.24, "b": 0.76}, {"a": 0.26, "b": 0.74}, {"a": 0.5, "b": 0.5}, {"a": 0.9, "b": 0.1}]
    results = [result("evidence", seed=seed, shares=share) for seed, share in enumerate(shares)]
    results.append(result("evidence", variant="noisy", shares={"a": 0.01, "b": 0.99}))  # right to lose it
    assert lost_domains(results) == {setting("evidence"): 0.5}


def test_shares_that_do_not_add_up_to_one_are_brought_to_it():
    assert lost_domains([result(shares={"a": 1.0, "b": 1.0})]) == {setting("equal"): 0.0}


def test_only_the_right_flags_count():
    faults = {"a": "noise", "b": "scale", "c": "mild"}
    flags = (("a", "harms others"), ("b", "noisy labels"), ("c", "noisy labels"))
    results = [result("evidence", variant="noisy", faults=faults, flags=flags)]
    results.append(result("evidence", variant="noisy", seed=1, faults=faults, flags=(("b", "out of scale"),)))
    assert audit_counts(results) == {setting("evidence", "noisy"): AuditCount(faults=4, seen=2)}


def test_any_flag_on_a_plain_run_is_an_alarm():
    flags = [(), (("a", "starved"), ("b", "starved")), (), ()]
    results = [result("evidence", seed=seed, flags=kinds) for seed, kinds in enumerate(flags)]
    results.append(result())  # no audit
    assert audit_counts(results) == {setting("evidence"): AuditCount(plain=4, alarms=1)}


def test_the_best_learning_rate_is_chosen_on_clean_validation_samples():
    results = []
    # At rate 3 the test scores are best; at 0.333 the clean validation scores are.
    for rate, score, clean in ((0.333, 0.6, 0.9), (1.0, 0.5, 0.7), (3.0, 0.8, 0.8)):
        for seed in (0, 1):
            results.append(result(rate=rate, seed=seed, score=score + seed / 10, clean_validation=clean))
    results.append(result(seed=2, score=0.1, clean_validation=5.0))  # not all rates have this seed
    results += [result("evidence", seed=seed, score=0.65 + seed / 10) for seed in (0, 1, 2)]
    assert scores_by_setting(results)[setting("equal@best")] == pytest.approx({0: 0.6, 1: 0.7})
    over_best = gains(results, over="equal@best")
    assert over_best[setting("evidence")].mean == pytest.approx(0.05)
    assert over_best[setting("evidence")].count == 2
    assert gains(results)[setting("equal@best")].mean == pytest.approx(0.1)
    assert setting("equal@best") not in over_best


def test_one_learning_rate_is_not_the_best_of_several():
    assert setting("equal@best") not in scores_by_setting([result()])


def sweep(seed: int, *, variant: str = "plain", **members: tuple[float, float]) -> TrialResult:
    scores = {name: SweepScore(*values) for name, values in members.items()}
    return result("sweep", seed=seed, variant=variant, score=0.0, sweep=scores, seconds=40.0)


def test_a_member_whose_score_is_not_a_number_does_not_win():
    results = [sweep(0, broken=(math.nan, 0.1), whole=(0.5, 0.6))]
    (winner,) = sweep_winners(results).values()
    assert winner.member == "whole"


def test_flags_of_sound_domains_count_as_wrong():
    flags = (("a", "noisy labels"), ("b", "starved"))
    counted = audit_counts([result("evidence", variant="noisy", faults={"a": "noise"}, flags=flags)])
    (count,) = counted.values()
    assert (count.seen, count.wrong, count.sound) == (1, 1, 1)


def test_regret_is_to_the_member_with_the_best_mean_on_clean_validation_samples():
    results = [
        sweep(0, first=(0.9, 0.60), second=(0.8, 0.99)),
        sweep(1, first=(0.5, 0.70), second=(0.4, 0.99)),  # the second is better on test samples, which do not choose
        result(seed=0, score=0.5),
        result(seed=1, score=0.5),
        result(seed=2, score=0.0),  # no sweep has this seed
    ]
    (winner,) = sweep_winners(results).values()
    assert (winner.member, winner.scores) == ("first", {0: 0.60, 1: 0.70})
    assert list(regrets(results)) == [setting("equal")]
    assert regrets(results)[setting("equal")].mean == pytest.approx(0.15)
    assert regrets(results)[setting("equal")].count == 2
    assert gains(results)[setting("sweep")].mean == pytest.approx(0.15)
    assert lost_domains(results) == {setting("equal"): 0.0}


def test_costs_are_relative_to_equal_weights():
    results = [result(seed=seed, seconds=2.0) for seed in (0, 1, 2)]
    results += [result("evidence", seed=seed, seconds=seconds) for seed, seconds in enumerate((4.0, 6.0, 90.0))]
    results.append(result(rate=3.0, seconds=5.0))
    assert relative_costs(results) == {setting("evidence"): 3.0}


def test_problems_count_the_same_when_they_are_pooled():
    results = []
    # The gains are 0.1 and 0.3 on digits, and 0.6 on wine: (0.2 + 0.6) / 2.
    for problem, variant, gain in (("digits", "plain", 0.1), ("digits", "noisy", 0.3), ("wine", "plain", 0.6)):
        results.append(result(problem=problem, variant=variant, score=0.2))
        results.append(result("evidence", problem=problem, variant=variant, score=0.2 + gain))
    pooled = pool_gains(gains(results))["evidence"]
    assert pooled.gain.mean == pytest.approx(0.4)
    assert pooled.gain.reach == pytest.approx(12.7062 * 0.4 / 2, rel=1e-4)  # t of one degree of freedom, s.d. 0.4 / √2
    assert pooled.gain.count == 2
    assert pooled.cells == 3
    assert pooled.p == pytest.approx(0.25)  # three positive differences: 2 / 2³


def test_no_difference_at_all_has_a_p_of_one():
    assert pool_gains(gains([result(), result("evidence")]))["evidence"].p == 1


def test_kinds_of_faults_are_summed_up_over_problems():
    results = []
    for problem, variant, gains_by_seed in (
        ("digits", "noisy", (0.10, 0.101)),
        ("digits", "random", (0.02, -0.02)),
        ("wine", "noisy", (-0.03, -0.031)),
        ("wine", "plain", (0.0, 0.0)),
    ):
        for seed, gain in enumerate(gains_by_seed):
            results.append(result(problem=problem, variant=variant, seed=seed))
            results.append(result("evidence", problem=problem, variant=variant, seed=seed, score=0.5 + gain))
    results.append(sweep(0, variant="noisy", **{"1-30": (0.7, 0.7)}))  # of digits: 0.10 of 0.20 is gained
    labels, plain = summarise_kinds(results, ["evidence", "greedy-25"])
    assert (labels.kind, labels.rows, labels.gaining, labels.losing) == ("wrong labels", 3, 1, 1)
    assert labels.gain.mean == pytest.approx(((0.1005 + 0) / 2 - 0.0305) / 2)
    digits, wine = Estimate.of([0.06, 0.0405]), Estimate.of([-0.03, -0.031])  # a seed's rows are averaged first
    assert labels.gain.reach == pytest.approx(math.hypot(digits.reach, wine.reach) / 2)
    assert labels.closed == pytest.approx(0.5)
    assert (plain.kind, plain.rows, plain.gaining, plain.closed) == ("nothing wrong", 1, 0, None)
    results.append(result())
    results.append(result("evidence", score=0.49))
    results.append(sweep(0, **{"1-30": (0.5, 0.5005)}))  # too small a gap to be divided by
    assert summarise_kinds(results, ["evidence"])[1].closed is None


def test_the_page_has_all_tables():
    results = [result(score=0.8), result("evidence", score=0.83, flags=(), seconds=3.0)]
    results.append(result(rate=3.0, score=0.81))
    results.append(sweep(0, **{"1-30@3": (0.9, 0.85), "1-1": (0.8, 0.8)}))
    results.append(result(variant="noisy", score=0.6))
    results.append(
        result("evidence", variant="noisy", score=0.7, faults={"a": "noise"}, flags=(("a", "noisy labels"),))
    )
    page = summary_page(results)
    for line in (
        "| wrong labels | evidence | +0.100 | 0 of 1 | 0 of 1 |  |",
        "| nothing wrong | evidence | +0.030 | 0 of 1 | 0 of 1 | 60% |",
        "| evidence | 1 | 2 | +0.065 | 0.500 | +0.020 | 1.000 |",
        "| digits | plain | sgd | 10 | equal | 1 | score 0.800 | -0.010 | +0.050 |  |",
        "| digits | plain | sgd | 10 | equal@best | 1 | +0.010 |  | +0.040 |  |",
        "| digits | plain | sgd | 10 | evidence | 1 | +0.030 | +0.020 | +0.020 | 3.00 |",
        "| digits | plain | sgd | 10 | 1 | 1-30@3 | 0.850 |",
        "| digits | sgd | 10 | evidence | 0.00 |",
        "| digits | noisy | sgd | 10 | evidence | 1 of 1 faults seen; 0 of 1 sound domains flagged |",
        "| all |  |  |  | evidence | 1 of 1 faults seen; 0 of 1 sound domains flagged; 0 of 1 plain runs with a flag |",
    ):
        assert line in page
