import itertools
import math

import numpy as np
import pytest
from scipy import stats

from scored import SETTING, score, tabled
from steelyard.errors import UserError
from steelyard.report.data.results import Results, RunKey
from steelyard.report.statistics.bootstrap import Design, estimate_mean, subject_means
from steelyard.report.statistics.comparisons import (
    BEST_FIXED,
    ComparisonSettings,
    compare_with_baseline,
    compare_with_best_fixed,
)
from steelyard.report.statistics.grid import score_grid
from steelyard.report.statistics.signed_rank import cohens_dz, holm, signed_rank, smallest_p
from steelyard.report.statistics.spread import estimate_spread_gain

QUICK = ComparisonSettings(draws=200)


def design(folds, subjects, **how):
    return Design(
        fold_of_case=np.repeat(np.arange(folds), subjects), subject_of_case=np.arange(folds * subjects), **how
    )


def constant(by_method, *, repeats=2, subjects=6):
    """Return results whose DSC is a function of subject and repeat, in one fold and domain."""
    rows = [
        score(method, 0, repeat, f"s{subject}", "flair", dsc=value(subject, repeat))
        for method, value in by_method.items()
        for repeat, subject in itertools.product(range(repeats), range(subjects))
    ]
    return Results(tuple(rows))


def test_signed_rank_is_scipys_where_that_is_exact():
    for seed in range(5):
        differences = np.random.default_rng(seed).normal(size=12) + 0.4
        assert signed_rank(differences).p == pytest.approx(stats.wilcoxon(differences, method="exact").pvalue)


def test_signed_rank_is_exact_with_ties_and_drops_zeros():
    differences = np.array([1.0, 1.0, 2.0, -1.0, 0.0, 3.0])
    ranks = np.array([2.0, 2.0, 4.0, 2.0, 5.0])
    sums = [
        sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign)
        for signs in itertools.product((0, 1), repeat=5)
    ]
    found = signed_rank(differences)
    assert found.p == pytest.approx(2 * sum(one >= 13 for one in sums) / 32)
    assert found.used == 5
    assert found.rank_biserial == pytest.approx((13 - 2) / 15)


def test_signed_rank_of_nothing_and_of_rounding_errors_shows_nothing():
    assert signed_rank(np.array([0.0, 1e-17, np.nan])).p == 1
    assert signed_rank(np.array([])).rank_biserial == 0
    assert signed_rank(np.array([0.3])).p == 1


def test_the_smallest_p_is_reached_when_all_agree():
    assert signed_rank(np.arange(1.0, 10.0)).p == pytest.approx(smallest_p(9))


def test_many_subjects_are_tested_too():
    differences = np.random.default_rng(0).normal(size=400) + 0.1
    assert signed_rank(differences).p == pytest.approx(stats.wilcoxon(differences).pvalue, rel=0.01)


def test_holm_keeps_order_and_never_falls():
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_dz_by_hand():
    assert cohens_dz(np.array([0.1, 0.3])) == pytest.approx(0.2 / (0.2 / math.sqrt(2)))
    assert math.isnan(cohens_dz(np.array([0.1, 0.1])))


def test_without_runs_varying_the_interval_is_students():
    by_subject = np.array([0.1, 0.3, -0.1, 0.2, 0.25, 0.05, 0.15, 0.4])
    found = estimate_mean(np.repeat(by_subject[:, None], 3, axis=1), design(4, 2, draws=20_000))
    expected = stats.ttest_1samp(by_subject, 0)
    low, high = expected.confidence_interval(0.95)
    assert found.value == pytest.approx(by_subject.mean())
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.005)
    assert found.p == pytest.approx(expected.pvalue, rel=0.15)


def test_without_subjects_varying_the_interval_follows_the_runs():
    runs = np.random.default_rng(0).normal(size=(5, 5))
    found = estimate_mean(np.repeat(runs, 4, axis=0), design(5, 4, draws=20_000))
    error = math.sqrt((runs.var(axis=1, ddof=1) / 5).sum()) / 5
    between = runs.mean(axis=1).var() / 20 * 20 / 19  # subjects of different folds differ by their folds' luck
    expected = stats.t.ppf(0.975, 19) * math.sqrt(error**2 * 20 / 19 + between)
    assert (found.high - found.low) / 2 == pytest.approx(expected, rel=0.12)


@pytest.mark.parametrize(("by_subject", "by_run"), [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_the_interval_covers_the_truth_as_often_as_it_says(by_subject, by_run):
    rng, truth, trials, covered = np.random.default_rng(1), 0.3, 80, 0
    for trial in range(trials):
        shared = np.repeat(by_run * rng.normal(size=(5, 5)), 4, axis=0)
        values = truth + by_subject * rng.normal(size=(20, 1)) + shared + 0.1 * rng.normal(size=(20, 5))
        found = estimate_mean(values, design(5, 4, draws=200, seed=trial))
        covered += found.low <= truth <= found.high
    # Below 95 % by more than three standard errors of 80 trials: not by chance.
    assert covered / trials >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / trials)


def test_one_subject_or_none_has_no_interval():
    found = estimate_mean(np.array([[0.1, 0.3]]), design(1, 1))
    assert found.value == pytest.approx(0.2)
    assert math.isnan(found.low)
    assert math.isnan(found.p)
    assert math.isnan(estimate_mean(np.full((2, 2), math.nan), design(1, 2)).value)


def test_a_subject_of_several_folds_is_one_subject():
    both = Design(fold_of_case=np.array([0, 0, 1, 1]), subject_of_case=np.array([0, 1, 0, 1]))
    values = np.array([[0.1], [0.2], [0.3], [0.6]])
    assert subject_means(values, both) == pytest.approx([0.2, 0.4])


def test_a_comparison_by_hand():
    # Differences of subject s: s / 100 in both repeats, so 0, 0.01, … 0.05.
    results = constant({"equal": lambda s, r: 0.5 + r / 10, "conservative-25": lambda s, r: 0.5 + r / 10 + s / 100})
    (found,) = compare_with_baseline(results, QUICK)
    assert (found.method, found.against, found.subjects, found.folds, found.pairs) == (
        "conservative-25",
        "equal",
        6,
        1,
        2,
    )
    assert found.total.value == pytest.approx(0.025)
    assert found.ranks.used == 5
    assert found.ranks.p == pytest.approx(2 / 32)
    assert found.ranks.rank_biserial == 1
    assert found.dz == pytest.approx(0.025 / np.arange(0, 0.06, 0.01).std(ddof=1))
    assert found.p == max(found.ranks.p, found.total.p)
    assert found.outcome == "no evidence either way"


def test_pairs_are_of_the_same_fold_repeat_and_subject():
    # What a repeat or a subject adds to both methods must not show.
    results = constant(
        {"equal": lambda s, r: 0.3 + s / 50 + r / 7, "conservative-25": lambda s, r: 0.31 + s / 50 + r / 7}, subjects=8
    )
    (found,) = compare_with_baseline(results, QUICK)
    assert (found.total.low, found.total.high) == pytest.approx((0.01, 0.01))
    assert found.outcome == "better"
    assert found.total.value == pytest.approx(0.01)


def test_lower_may_be_better():
    rows = [
        score(method, 0, repeat, f"s{subject}", "flair", brier=value + subject / 1000 * repeat)
        for method, value in (("equal", 0.2), ("conservative-25", 0.1), ("greedy-25", 0.3))
        for repeat, subject in itertools.product(range(2), range(9))
    ]
    found = compare_with_baseline(Results(tuple(rows)), ComparisonSettings(metric="brier", draws=100))
    assert {one.method: one.outcome for one in found} == {"conservative-25": "better", "greedy-25": "worse"}


def test_correction_is_for_the_methods_that_train_on_all_domains():
    names = ("equal", "fixed-10-90", "conservative-25", "greedy-25", "flair-only")
    found = compare_with_baseline(tabled({name: {"flair": 0.5, "t1": 0.4} for name in names}), QUICK)
    assert [one.method for one in found] == ["fixed-10-90", "greedy-25", "conservative-25"]
    assert {one.family for one in found} == {3}
    assert [one.corrected for one in found] == holm([one.p for one in found])
    assert [one.spread_corrected for one in found] == holm([one.spread.p for one in found])


def test_missing_runs_leave_their_pairs_out():
    means = {"equal": {"flair": 0.5, "t1": 0.4}, "conservative-25": {"flair": 0.6, "t1": 0.4}}
    results = tabled(means)
    gone = {RunKey("conservative-25", 0, 0), RunKey("equal", 1, 1)}
    gone |= {RunKey("equal", 4, repeat) for repeat in range(5)}
    (found,) = compare_with_baseline(Results(tuple(row for row in results.rows if row.run not in gone)), QUICK)
    assert (found.subjects, found.folds, found.pairs) == (16, 4, 18)
    values = {(row.run, row.subject, row.domain): row.metrics["dsc"] for row in results.rows}
    by_subject = {}
    for (run, subject, _), value in values.items():
        other = RunKey("equal", run.fold, run.repeat)
        if run.method == "conservative-25" and run not in gone and other not in gone:
            by_subject.setdefault(subject, []).append(value - values[other, subject, _])
    expected = np.mean([2 * np.mean(differences) for differences in by_subject.values()])
    assert found.total.value == pytest.approx(expected)


def test_a_subject_counts_with_the_domains_it_was_tested_in():
    # Twice as many subjects have a and t1 as have b and t1; nobody has all three.
    gain = {"a": 0.03, "b": 0.06, "t1": 0.01}
    rows = [
        score(method, 0, repeat, f"s{subject}", domain, dsc=0.5 + (gain[domain] if method == "conservative-25" else 0))
        for method in ("equal", "conservative-25")
        for repeat, subject in itertools.product(range(2), range(9))
        for domain in ("b" if subject % 3 == 0 else "a", "t1")
    ]
    (found,) = compare_with_baseline(Results(tuple(rows)), QUICK)
    assert found.subjects == 9
    assert found.total.value == pytest.approx(0.1)
    assert {name: round(one.value, 6) for name, one in found.domains.items()} == gain


def test_the_sum_is_of_the_domains_that_were_compared():
    # Of two scanners fold 0 has 8 and 2 subjects, fold 1 the reverse, which the method lacks.
    gain = {"a": 0.05, "b": -0.1}
    rows = [
        score(
            method, fold, repeat, f"s{fold}{at}", domain, dsc=0.5 + (gain[domain] if method == "conservative-25" else 0)
        )
        for method, fold, repeat in itertools.product(("equal", "conservative-25"), range(2), range(2))
        for at in range(10)
        for domain in ("a" if (at < 8) == (fold == 0) else "b",)
        if not (method == "conservative-25" and fold == 1)
    ]
    (found,) = compare_with_baseline(Results(tuple(rows)), QUICK)
    assert found.total.value == pytest.approx(-0.05)
    alone = [row for row in rows if row.domain == "a" or row.run.fold == 1]
    (found,) = compare_with_baseline(Results(tuple(alone)), QUICK)
    assert math.isnan(found.total.value)
    assert found.outcome == "cannot be told"


def test_a_fold_that_lacks_a_domain_for_everyone_leaves_the_gains_known():
    level, swing = {"equal": 0.3, "conservative-25": 0.43}, {"equal": 0.1, "conservative-25": 0.04}
    rows = [
        score(method, fold, repeat, f"s{fold}", domain, dsc=level[method] + repeat * (fold + 1) * swing[method])
        for method, fold, repeat in itertools.product(("equal", "conservative-25"), range(2), range(2))
        for domain in ("a", "b")[: fold + 1]
    ]
    results = Results(tuple(rows))
    grid = score_grid(results, results.settings[0], "dsc")
    at = grid.methods.index("conservative-25")
    assert grid.gains("equal")[0][at] == pytest.approx((0.10 + 0.07) / 2 + 0.07)
    (found,) = compare_with_baseline(results, QUICK)
    assert found.spread.value == pytest.approx(grid.gains("equal")[1][at])
    assert found.spread.value > 0


def test_undefined_metrics_leave_their_subjects_out():
    results = constant({"equal": lambda s, r: 0.5, "conservative-25": lambda s, r: math.nan if s == 0 else 0.6})
    (found,) = compare_with_baseline(results, QUICK)
    assert found.subjects == 5
    assert found.total.value == pytest.approx(0.1)
    results = constant({"equal": lambda s, r: 0.5, "conservative-25": lambda s, r: math.nan})
    (found,) = compare_with_baseline(results, QUICK)
    assert (found.subjects, found.outcome, found.spread_outcome) == (0, "cannot be told", "cannot be told")


def test_order_does_not_matter_and_seeds_settle_everything():
    results = tabled({name: {"flair": 0.5, "t1": 0.4} for name in ("equal", "conservative-25", "greedy-25")})
    shuffled = Results(tuple(results.rows[at] for at in np.random.default_rng(3).permutation(len(results.rows))))
    assert compare_with_baseline(results, QUICK) == compare_with_baseline(shuffled, QUICK)
    alone = Results(tuple(row for row in results.rows if row.run.method != "greedy-25"))
    (one,) = compare_with_baseline(alone, QUICK)
    beside = next(found for found in compare_with_baseline(results, QUICK) if found.method == one.method)
    assert one.total == beside.total
    assert one.spread == beside.spread
    assert compare_with_baseline(results, ComparisonSettings(draws=200, seed=1))[0].total != beside.total


def test_the_best_fixed_weighting_is_chosen_on_other_folds():
    # fixed-10-90 is best in fold 0, fixed-90-10 in fold 1: each is chosen for the other.
    best = {
        ("fixed-10-90", 0): 0.8,
        ("fixed-10-90", 1): 0.2,
        ("fixed-90-10", 0): 0.3,
        ("fixed-90-10", 1): 0.7,
        ("equal", 0): 0.1,
        ("equal", 1): 0.1,
    }
    rows = [
        score(method, fold, repeat, f"s{fold}{subject}", "flair", dsc=best.get((method, fold), 0.5))
        for method in ("equal", "fixed-10-90", "fixed-90-10", "conservative-25")
        for fold, repeat, subject in itertools.product(range(2), range(2), range(3))
    ]
    (found,) = compare_with_best_fixed(Results(tuple(rows)), QUICK)
    assert found.against == BEST_FIXED
    assert found.total.value == pytest.approx(0.5 - (0.3 + 0.2) / 2)
    assert found.spread is None


def test_one_fixed_weighting_is_no_choice():
    assert (
        compare_with_best_fixed(constant({"equal": lambda s, r: 0.5, "conservative-25": lambda s, r: 0.5}), QUICK) == ()
    )


def test_infinite_metrics_and_absent_baselines_are_refused():
    rows = [score(name, 0, 0, "s", "flair", hd95=math.inf) for name in ("equal", "conservative-25")]
    with pytest.raises(UserError, match="hd95 is infinite in 2 rows"):
        compare_with_baseline(Results(tuple(rows)), ComparisonSettings(metric="hd95"))
    with pytest.raises(UserError, match="does not hold dsc; it holds hd95"):
        compare_with_baseline(Results(tuple(rows)))
    with pytest.raises(UserError, match="no run of the baseline F10-T90"):
        compare_with_baseline(Results(tuple(rows)), ComparisonSettings(metric="hd95", baseline="F10-T90"))


def spread_of(sd, base_sd, *, seed, folds=5, repeats=5):
    rng = np.random.default_rng(seed)
    rows = [
        score(method, fold, repeat, f"s{fold}{subject}", domain, dsc=float(np.clip(0.5 + luck + at / 10, 0, 1)))
        for at, (method, scale) in enumerate((("equal", base_sd), ("conservative-25", sd)))
        for fold, repeat in itertools.product(range(folds), range(repeats))
        for domain in ("flair", "t1")
        for luck in [rng.normal(scale=scale)]
        for subject in range(2)
    ]
    grid = score_grid(Results(tuple(rows)), SETTING, "dsc")
    found = estimate_spread_gain(
        grid,
        "conservative-25",
        "equal",
        design=Design(fold_of_case=grid.fold_of_case, subject_of_case=grid.subject_of_case, draws=200, seed=seed),
    )
    return found, grid


def test_the_spread_gain_is_the_tables():
    found, grid = spread_of(0.01, 0.03, seed=0)
    assert found.value == pytest.approx(grid.gains("equal")[1][grid.methods.index("conservative-25")])
    assert found.p < 0.02
    assert found.low > 0


def test_the_spread_test_is_exact_with_few_runs():
    found, _ = spread_of(0.001, 0.03, seed=0, folds=2, repeats=3)
    assert found.p == smallest_p(4)


@pytest.mark.parametrize("repeats", [2, 5])
def test_equal_spreads_are_found_different_no_more_often_than_allowed(repeats):
    trials, nominal = 30, 0.05
    slack = 3 * math.sqrt(trials * nominal * (1 - nominal))
    found = [spread_of(0.02, 0.02, seed=seed, folds=8, repeats=repeats)[0] for seed in range(trials)]
    assert sum(one.p < nominal for one in found) <= trials * nominal + slack
    assert sum(one.low <= 0 <= one.high for one in found) >= trials * (1 - nominal) - slack
