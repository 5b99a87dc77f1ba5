import math

import numpy as np
import pytest
from scipy.stats import pearsonr

from steelyard.errors import UserError
from steelyard.report.data.runs import RunRecord
from steelyard.report.data.steps import gather_steps
from steelyard.report.statistics.vote_agreement import (
    StepVote,
    Trace,
    cohens_kappa,
    correlation,
    curve_agreement,
    mean_over_runs,
    read_trace,
    vote_agreement,
)
from steelyard.report.tables.agreement import as_json, as_markdown


def trace(**losses):
    """Conservative votes for hypothetical losses of a and b, by method."""
    names = {"exact": "conservative-25", "first_order": "conservative-25+first-order"}
    votes = {names[name]: [StepVote("ab"[b > a], (a, b)) for a, b in pairs] for name, pairs in losses.items()}
    return Trace(votes, 1)


TRUE = [(1.0, 2.0), (3.0, 2.0), (1.0, 2.5), (1.0, 1.5), (4.0, 1.0)]  # votes b a b b a
CHEAP = [(1.0, 2.0), (3.0, 2.9), (1.0, 0.5), (1.0, 1.4), (4.0, 2.0)]  # votes b a a b a


def test_votes_at_the_same_weights_by_hand():
    found = vote_agreement(trace(exact=TRUE, first_order=CHEAP), "conservative-25", "conservative-25+first-order")
    assert found.steps == 5
    assert found.share == 0.8
    assert found.kappa == pytest.approx((0.8 - 12 / 25) / (1 - 12 / 25))  # b: 3 of 5 and 2 of 5, a: 2 of 5 and 3 of 5
    assert math.isnan(found.share_between)
    differences = [[a - b for a, b in side] for side in (TRUE, CHEAP)]
    assert found.correlation == pytest.approx(pearsonr(*differences).statistic)


def test_a_vote_that_is_held_over_is_compared_at_every_step():
    found = vote_agreement(
        trace(exact=TRUE), "conservative-25", "conservative-25+every-2"
    )  # none, a, a, b, b against b, a, b, b, a
    assert found.steps == 4
    assert found.share == 0.5
    assert found.share_between == 0.0
    assert math.isnan(found.correlation)
    both = vote_agreement(
        trace(exact=TRUE, first_order=CHEAP), "conservative-25", "conservative-25+first-order+every-3"
    )  # a, a, a against b, b, a
    assert (both.steps, both.share, both.share_between) == (3, pytest.approx(1 / 3), 0.5)


def test_lopsided_votes_are_corrected_for_chance():
    assert cohens_kappa([("a", "a")] * 9 + [("a", "b")]) == pytest.approx(0.0)
    assert math.isnan(cohens_kappa([("a", "a")] * 9))
    assert math.isnan(cohens_kappa([]))
    assert cohens_kappa([("a", "b"), ("b", "a")]) == -1.0


def test_what_has_no_spread_has_no_correlation():
    assert math.isnan(correlation(np.ones(3), np.arange(3.0)))
    assert math.isnan(correlation(np.ones(1), np.ones(1)))
    assert correlation(np.arange(3.0), -np.arange(3.0)) == pytest.approx(-1.0)


def test_three_domains_are_compared_two_by_two():
    rng = np.random.default_rng(0)
    sides = rng.normal(size=(2, 6, 3))
    casts = {
        name: [StepVote("", tuple(row)) for row in side]
        for name, side in zip(("conservative-25", "conservative-25+batch"), sides, strict=True)
    }
    found = vote_agreement(Trace(casts, 1), "conservative-25", "conservative-25+batch")
    pairs = [
        np.concatenate([side[:, 0] - side[:, 1], side[:, 0] - side[:, 2], side[:, 1] - side[:, 2]]) for side in sides
    ]
    assert found.correlation == pytest.approx(pearsonr(*pairs).statistic)
    assert found.steps == 0
    assert math.isnan(found.share)


def run(tmp_path, curve):
    steps = [{"weight_flair": str(weight), "weight_t1": str(1 - weight)} for weight in curve]
    domains = ("flair", "t1")
    key = {"path": tmp_path, "model": "unet", "method": "conservative-25", "domains": domains, "seed": 0}
    return RunRecord(**key, epochs=[], metrics=[], steps=gather_steps(steps))


def test_curves_are_compared_over_the_steps_that_both_took(tmp_path):
    one, other = [0.5, 0.6, 0.7, 0.6], [0.5, 0.55, 0.75, 0.5, 0.1]
    together, apart = curve_agreement(run(tmp_path, one), run(tmp_path, other))
    assert together == pytest.approx(pearsonr(one, other[:4]).statistic)
    assert apart == pytest.approx((0 + 0.05 + 0.05 + 0.1) / 4)
    assert all(map(math.isnan, curve_agreement(run(tmp_path, []), run(tmp_path, other))))


def test_the_interval_is_mean_over_runs():
    found = mean_over_runs([0.8, 0.9, 0.7, 0.8, math.nan])
    assert found.value == pytest.approx(0.8)
    # t with 3 degrees of freedom times the standard error of the mean
    reach = 3.182 * np.std([0.8, 0.9, 0.7, 0.8], ddof=1) / 2
    assert found.high - found.value == pytest.approx(reach, rel=0.06)
    assert math.isnan(mean_over_runs([0.8]).low)
    assert math.isnan(mean_over_runs([]).value)


def test_the_table_is_the_same_from_json():
    nothing = {"kappa": math.nan, "held": math.nan, "correlation": 0.5, "curve_correlation": 0.25, "dsc_t1": 0.01}
    row = {
        "model": "unet",
        "availability": "all",
        "exact": "conservative-25",
        "method": "conservative-25+first-order",
        "share": 0.75,
        **nothing,
    }
    row |= {"curve_difference": 0.1, "dsc_flair": -0.02, "traced": 2, "to_the_bit": 2, "steps": 80, "pairs": 5}
    row |= {"subjects": 6, "time_ratio": math.nan}
    for name in ("share", *nothing, "curve_difference", "dsc_flair"):
        row |= {f"{name}_low": row[name] - 0.5, f"{name}_high": row[name] + 0.5}
    row |= {"curve_correlation_low": math.nan, "curve_correlation_high": math.nan}
    text = as_markdown([row])
    assert "| conservative-25+first-order | 0.750 [0.250, 1.250] | – | – | 0.500 [0.000, 1.000] | 0.250 |" in text
    assert "ΔDSC-T" in text
    assert "-0.020 [-0.520, +0.480] |" in text
    assert "2 retraced runs, 2 of them bit-identical, 80 steps with both votes, 5 pairs" in text
    assert as_json([row])[0]["kappa"] is None
    assert as_markdown(as_json([row])) == text


@pytest.mark.parametrize("text", ["", "epoch,step,method,vote\n0,0,X", "method\nX\n", "epoch,method,vote\nx,X,a\n"])
def test_a_damaged_table_of_votes_is_named(tmp_path, text):
    path = tmp_path / "votes.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=r"votes.csv: is damaged; remove it"):
        read_trace(path)
