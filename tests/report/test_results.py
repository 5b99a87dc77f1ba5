import random

import pytest

from scored import SETTING, score, tabled
from steelyard.errors import UserError
from steelyard.report.data.results import Results, RunKey, Setting, read_results, results_of_runs
from steelyard.report.data.runs import RunRecord

HEADER = "model,availability,method,fold,repeat,subject,domain,dsc,auc\n"
ROW = "unet,8F,F50-T50,0,1,sub-01,flair,0.5,0.9\n"


def written(tmp_path, text):
    path = tmp_path / "results.csv"
    path.write_text(text)
    return path


def test_a_table_is_read_as_it_stands(tmp_path):
    results = read_results(written(tmp_path, HEADER + ROW + ROW.replace("flair,0.5,0.9", "t1,0.25,")))
    assert results.settings == (Setting("unet", "8F"),)
    assert results.domains == ("flair", "t1")
    assert results.metrics == ("dsc", "auc")
    first, second = results.rows
    assert first.run == RunKey("equal", 0, 1)
    assert dict(first.metrics) == {"dsc": 0.5, "auc": 0.9}
    assert second.metrics["auc"] != second.metrics["auc"]


def test_other_columns_and_other_parts_are_left_out(tmp_path):
    text = HEADER.replace(",dsc", ",part,seed,dsc") + ROW.replace(",0.5", ",test,11,0.5")
    text += ROW.replace(",0.5", ",train,11,0.7").replace("sub-01", "sub-02")
    results = read_results(written(tmp_path, text))
    assert [row.subject for row in results.rows] == ["sub-01"]
    assert results.metrics == ("dsc", "auc")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "results.csv: must have one column 'model'; it has none"),
        (HEADER, "results.csv: holds no result of a test subject"),
        (HEADER.replace("repeat,", ""), "must have one column 'repeat'"),
        (HEADER.replace("dsc,auc", "a,b") + ROW, "has no column of a metric"),
        (HEADER + ROW.replace(",0.5", ",high"), "line 2: dsc must be a number; got 'high'"),
        (HEADER + ROW.replace(",0.5", ",1.5"), "line 2: dsc must be within 0 and 1; got '1.5'"),
        (HEADER + ROW.replace(",0.5", ",inf"), "line 2: dsc must be within 0 and 1"),
        (HEADER + ROW + ROW.replace(",0,1,", ",0,-1,"), "line 3: repeat must be a whole number"),
        (HEADER + ROW.replace("sub-01", ""), "line 2: subject is empty"),
        (HEADER + ROW.replace(",0.9", ""), "line 2: must have 9 cells"),
        (HEADER + ROW.replace("\n", ",1\n"), "line 2: must have 9 cells"),
        (HEADER + ROW + ROW, r"unet \(8F\), equal, fold 0, repeat 1, sub-01, flair is there 2 times"),
    ],
)
def test_faults_are_named_with_file_and_place(tmp_path, text, fault):
    with pytest.raises(UserError, match=fault) as caught:
        read_results(written(tmp_path, text))
    assert "results.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_file_and_no_text_are_said(tmp_path):
    with pytest.raises(UserError, match=r"results\.csv: cannot be read"):
        read_results(tmp_path / "results.csv")
    (tmp_path / "results.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"results\.csv: cannot be read"):
        read_results(tmp_path / "results.csv")


def test_distances_may_be_infinite(tmp_path):
    results = read_results(written(tmp_path, HEADER.replace("auc", "hd95") + ROW.replace("0.9", "inf")))
    assert results.rows[0].metrics["hd95"] == float("inf")


def test_missing_and_incomplete_runs_are_found():
    rows = tabled({"equal": {"flair": 0.6}, "conservative-25": {"flair": 0.6}}, folds=2, repeats=2, subjects=2).rows
    gone = RunKey("conservative-25", 1, 0)
    kept = tuple(row for row in rows if row.run != gone and (row.run, row.subject) != (RunKey("equal", 0, 1), "sub-01"))
    results = Results(kept)
    assert results.missing_runs(SETTING) == (gone,)
    assert results.incomplete_runs(SETTING) == (RunKey("equal", 0, 1),)
    assert len(results.expected_runs(SETTING)) == 8


def test_order_of_rows_does_not_matter_and_settings_go_from_much_data_to_little():
    rows = [score("equal", 0, 0, "s", "flair", setting=Setting("unet", name), dsc=0.5) for name in ("8F", "all", "12F")]
    random.Random(0).shuffle(rows)
    results = Results(tuple(rows))
    assert [one.availability for one in results.settings] == ["all", "12F", "8F"]
    assert results == Results(tuple(reversed(rows)))


def test_rows_with_other_metrics_are_refused():
    with pytest.raises(UserError, match="same metrics"):
        Results((score("equal", 0, 0, "s", "flair", dsc=0.5), score("equal", 0, 0, "s", "t1", auc=0.5)))


def record(tmp_path, method, seed, subjects, part="test"):
    rows = [
        {"subject": name, "domain": domain, "part": part, "dsc": "0.5", "true_ml": "3"}
        for name in subjects
        for domain in ("flair", "t1")
    ]
    path = tmp_path / f"{method}-{seed}-{subjects}"
    key = {"path": path, "model": "unet", "method": method, "domains": ("flair", "t1"), "seed": seed}
    return RunRecord(**key, epochs=[], metrics=rows)


def test_run_folders_become_results(tmp_path):
    runs = [
        record(tmp_path, method, seed, names)
        for method in ("equal", "conservative-25")
        for seed in (0, 7)
        for names in ("cd", "ab")
    ]
    results = results_of_runs(runs, availability="8F")
    assert results.settings == (SETTING,)
    assert {(row.run.fold, row.subject) for row in results.rows} == {(0, "a"), (0, "b"), (1, "c"), (1, "d")}
    assert {row.run.repeat for row in results.rows} == {0, 7}
    assert results.metrics == ("dsc",)
    with pytest.raises(UserError, match="run `steelyard evaluate` first"):
        results_of_runs([record(tmp_path, "equal", 0, "ab", part="train")])
