import csv
import io
import itertools
import math

import pytest

from scored import SETTING, score, tabled
from steelyard.errors import UserError
from steelyard.imaging.runs.experiment_folder import RunTiming
from steelyard.report.data.results import Results, RunKey, Setting
from steelyard.report.data.timings import Timings, load_timings
from steelyard.report.statistics.comparisons import ComparisonSettings, compare_with_baseline
from steelyard.report.statistics.findings import findings_of, sentence
from steelyard.report.tables.evidence import (
    comparison_tables,
    comparisons_csv,
    result_tables,
    write_evidence,
    write_findings,
)

QUICK = ComparisonSettings(draws=200)
LEVEL = {"flair": 0.5, "t1": 0.4}


def raised(flair=0.0, t1=0.0):
    return {"flair": LEVEL["flair"] + flair, "t1": LEVEL["t1"] + t1}


def test_a_real_gain_is_found_and_said_with_its_numbers():
    results = tabled({"equal": LEVEL, "conservative-25": raised(0.05, 0.05), "greedy-25": LEVEL}, by_subject=0.01)
    (finding,) = findings_of(results, QUICK)
    found = {one.method: one for one in finding.comparisons}
    assert found["conservative-25"].outcome == "better"
    assert found["greedy-25"].outcome == "no evidence either way"
    assert (
        "Against equal, yes: of 2 methods that learn them, better than equal: conservative-25 (+0." in finding.overall
    )
    assert "no evidence either way for 1 (95 % intervals within -0.0" in finding.overall
    assert "a better fixed one may do as well" in finding.overall
    assert "Holm's correction for 2 methods." in finding.overall
    said = next(one for one in finding.sentences if one.startswith("conservative-25"))
    assert f"domains: {found['conservative-25'].total.value:+.3f} [" in said
    assert "20 subjects, 5 folds, 25 pairs of runs" in said
    assert "after Holm's correction for 2 methods p < 0.0001" in said
    assert ": better. Spread over repeats (GAIN-σ)" in said


def test_a_loss_is_said():
    (finding,) = findings_of(tabled({"equal": LEVEL, "conservative-25": raised(-0.1, -0.1)}, by_subject=0.01), QUICK)
    assert "Against equal, no: of 1 methods that learn them, worse than equal: conservative-25 (-0." in finding.overall


def test_a_gain_at_the_expense_of_a_domain_is_said():
    (finding,) = findings_of(tabled({"equal": LEVEL, "conservative-25": raised(-0.05, 0.2)}, by_subject=0.01), QUICK)
    assert finding.sentences[0].count("better, at the expense of flair.") == 1
    assert "at the expense of flair)" in finding.overall


def test_no_difference_is_no_evidence_and_the_interval_says_what_is_left():
    (finding,) = findings_of(tabled({"equal": LEVEL, "fixed-10-90": LEVEL, "conservative-25": LEVEL}), QUICK)
    assert "worth it? No evidence that it was: of 1 methods" in finding.overall
    assert "Against the best fixed weighting, chosen on other subjects, better: none of 1." in finding.overall
    assert len(finding.sentences) == 3


def test_too_few_subjects_could_not_have_shown_anything():
    results = tabled({"equal": LEVEL, "conservative-25": raised(0.2, 0.2), "greedy-25": LEVEL}, folds=1, subjects=5)
    (finding,) = findings_of(results, QUICK)
    assert {one.outcome for one in finding.comparisons} == {"no evidence either way"}
    said = (
        "With 5 subjects p cannot fall below 0.062, or 0.12 after correction for 2 methods, so nothing could have been"
    )
    assert said in finding.sentences[0]


def test_one_subject_and_one_repeat_cannot_be_told():
    one_subject = tabled({"equal": LEVEL, "conservative-25": raised(0.2)}, folds=1, subjects=1)
    (finding,) = findings_of(one_subject, QUICK)
    assert finding.comparisons[0].outcome == "cannot be told"
    assert "cannot be told for 1. Both were tested on 1 subject" in finding.overall
    one_run = tabled({"equal": LEVEL, "conservative-25": raised(0.2, 0.2)}, repeats=1, by_subject=0.01)
    (finding,) = findings_of(one_run, QUICK)
    assert finding.comparisons[0].outcome == "cannot be told"
    assert "a lucky network cannot be told from a better method" in finding.overall
    assert "GAIN-σ" not in finding.sentences[0]


def test_a_setting_without_baseline_or_learning_stays_open_and_several_settings_are_said():
    rows = tabled({"equal": LEVEL, "fixed-10-90": LEVEL, "conservative-25": LEVEL}).rows
    rows += tabled({"conservative-25": LEVEL}, setting=Setting("unet", "all")).rows
    first, second = findings_of(Results(rows), QUICK)
    assert first.overall.startswith("unet (all): no baseline")
    assert first.comparisons == ()
    assert "each of the 2 settings is corrected on its own" in second.overall


def test_ties_everywhere_are_no_evidence():
    rows = [
        score(method, fold, repeat, f"s{fold}{subject}", "flair", dsc=0.5)
        for method in ("equal", "conservative-25")
        for fold, repeat, subject in itertools.product(range(2), range(2), range(3))
    ]
    (finding,) = findings_of(Results(tuple(rows)), QUICK)
    assert finding.comparisons[0].outcome == "no evidence either way"
    assert finding.comparisons[0].spread_outcome == "no evidence either way"
    assert "+0.000 [+0.000, +0.000]" in finding.sentences[0]


@pytest.mark.parametrize("trials", [20, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("luck", [{"by_subject": 0.05, "by_run": 0.001}, {"by_subject": 0.001, "by_run": 0.05}])
def test_under_the_null_better_is_said_no_more_often_than_allowed(luck, trials):
    false = 0
    methods = dict.fromkeys(("equal", "conservative-25", "greedy-25"), LEVEL)
    for seed in range(trials):
        found = compare_with_baseline(tabled(methods, seed=seed, **luck), ComparisonSettings(draws=100, seed=seed))
        false += any(one.outcome == "better" for one in found)
    # 2.5 % of trials may err in this direction, for all methods together.
    assert false <= trials * 0.025 + 3 * math.sqrt(trials * 0.025 * 0.975)


def test_the_signed_rank_test_alone_would_err_when_runs_are_lucky():
    methods = dict.fromkeys(("equal", "conservative-25"), LEVEL)
    luck = {"by_subject": 0.001, "by_run": 0.05}
    p_values = [
        compare_with_baseline(tabled(methods, seed=seed, **luck), ComparisonSettings(draws=50))[0].ranks.p
        for seed in range(20)
    ]
    assert sum(p < 0.05 for p in p_values) >= 4  # four times what is nominal: why both tests must agree


def timed(tmp_path, text):
    """Write a table of timings, from rows whose last cell is the time of a step."""
    path = tmp_path / "timings.csv"
    columns = "model,availability,method,fold,repeat,seconds_per_step,steps,validation_seconds,evaluation_seconds"
    path.write_text(f"{columns}\n" + text.replace("\n", ",4,0.25,3.0\n"))
    return path


def test_cost_stands_beside_gain(tmp_path):
    text = "".join(
        f"unet,8F,{method},{fold},0,{seconds * (fold + 1)}\n"
        for method, seconds in (("equal", 0.5), ("conservative-25", 0.95))
        for fold in range(3)
    )
    timings = load_timings(timed(tmp_path, text))
    assert timings.ratio(SETTING, "conservative-25", "equal") == pytest.approx(1.9)
    assert math.isnan(timings.ratio(SETTING, "greedy-25", "equal"))
    results = tabled({"equal": LEVEL, "conservative-25": LEVEL, "greedy-25": LEVEL})
    (table,) = comparison_tables(findings_of(results, QUICK), timings)
    assert table.headings[-1] == "time of a step"
    assert {row[0]: row[-1] for row in table.rows} == {"greedy-25": "–", "conservative-25": "1.90 ×"}
    pairs = [("conservative-25", "equal"), ("greedy-25", "equal")]
    assert timings.sentence(SETTING, pairs) == "unet (8F): what a step took: conservative-25 1.90 × equal."
    assert Timings({}).sentence(SETTING, pairs) == ""


def test_the_page_has_the_papers_tables_and_the_comparisons():
    results = tabled({"equal": LEVEL, "conservative-25": raised(0.2), "t1-only": LEVEL})
    every, single = result_tables(results)
    assert every.title == "Every method, unet (8F)"
    assert "GAIN-μ (paper)" in every.headings
    assert [row[0] for row in every.rows] == ["equal", "conservative-25"]
    assert [row[0] for row in single.rows] == ["t1-only"]
    (finding,) = findings_of(results, QUICK)
    (table,) = comparison_tables([finding], Timings({}))
    (row,) = table.rows
    assert len(row) == len(table.headings)
    assert row[table.headings.index("outcome")] == finding.comparisons[0].outcome


def test_tables_need_no_baseline(tmp_path):
    with pytest.raises(UserError, match="no run of the baseline"):
        write_evidence(tabled({"conservative-25": LEVEL}), tmp_path)
    assert (tmp_path / "table-1.md").exists()
    write_evidence(tabled({"equal": LEVEL, "conservative-25": LEVEL}), tmp_path)
    assert (tmp_path / "verdict.txt").exists()
    assert write_findings((), tmp_path) == []
    assert not (tmp_path / "verdict.txt").exists()


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("unet,8F,equal,0,0,0\n", "line 2: seconds_per_step must be a number above 0; got '0'"),
        ("unet,8F,equal,0,0,soon\n", "line 2: seconds_per_step must be a number above 0; got 'soon'"),
        ("unet,8F,equal,0,0,1\n" * 2, "line 3: .*equal fold 0 repeat 0 is there twice"),
        ("unet,8F,equal,x,0,1\n", "line 2: fold must be a whole number"),
    ],
)
def test_faulty_timings_are_named(tmp_path, row, fault):
    with pytest.raises(UserError, match=fault):
        load_timings(timed(tmp_path, row))


def test_timings_pair_runs():
    other = RunKey("conservative-25", 0, 1)
    timing = RunTiming(steps=4, seconds_per_step=1.0, validation_seconds=0.25, evaluation_seconds=3.0)
    timings = Timings({(SETTING, RunKey("equal", 0, 0)): timing, (SETTING, other): timing})
    assert math.isnan(timings.ratio(SETTING, "conservative-25", "equal"))


def test_all_files_are_written_the_same_twice(tmp_path):
    results = tabled(dict.fromkeys(("equal", "fixed-10-90", "conservative-25"), LEVEL), folds=3, repeats=3)
    files = write_evidence(results, tmp_path / "a", settings=QUICK)
    assert [path.name for path in files] == [
        "comparisons.csv",
        "summary.csv",
        *(f"table-{name}.{suffix}" for name in ("1", "s2") for suffix in ("csv", "md", "tex", "txt")),
        "verdict.txt",
    ]
    again = write_evidence(Results(tuple(reversed(results.rows))), tmp_path / "b", settings=QUICK)
    assert [path.read_bytes() for path in files] == [path.read_bytes() for path in again]


def test_comparisons_are_read_back():
    found = compare_with_baseline(tabled({"equal": LEVEL, "conservative-25": LEVEL}), QUICK)
    (row,) = csv.DictReader(io.StringIO(comparisons_csv(found)))
    assert float(row["total"]) == pytest.approx(found[0].total.value, rel=1e-5)
    assert float(row["t1_low"]) == pytest.approx(found[0].domains["t1"].low, rel=1e-5)
    assert row["outcome"] == "no evidence either way"
    assert "no evidence either way" in sentence(found[0])
    assert comparisons_csv([]) == ""
