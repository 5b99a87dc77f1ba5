"""What trials say, from rows made by hand."""

import math

import pytest

from steelyard.experiments.regret.page import summary_page
from steelyard.experiments.regret.statistics import (
    AuditCount,
    Estimate,
    Setting,
    audit_counts,
    baseline_scores,
    gains,
    lost_domains,
)
from steelyard.experiments.regret.trial import Trial, TrialResult


def result(
    method: str = "equal", *, seed: int = 0, score: float = 0.5, variant: str = "plain", **changes: object
) -> TrialResult:
    settings = Trial(problem="digits", variant=variant, optimizer="sgd", steps=10, method=method, seed=seed)
    equal = {"a": 0.5, "b": 0.5}
    values = {"validation": score, "scores": {"a": score, "b": score}, "weights": equal, "shares": equal}
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


def test_the_page_has_all_tables():
    results = [result(score=0.8), result("evidence", score=0.83, flags=())]
    results.append(result(variant="noisy", score=0.6))
    results.append(
        result("evidence", variant="noisy", score=0.7, faults={"a": "noise"}, flags=(("a", "noisy labels"),))
    )
    page = summary_page(results)
    for line in (
        "| digits | plain | sgd | 10 | equal | 1 | score 0.800 |",
        "| digits | plain | sgd | 10 | evidence | 1 | +0.030 |",
        "| digits | sgd | 10 | evidence | 0.00 |",
        "| digits | noisy | sgd | 10 | evidence | 1 of 1 faults seen |",
        "| all |  |  |  | evidence | 1 of 1 faults seen; 0 of 1 plain runs with a flag |",
    ):
        assert line in page
