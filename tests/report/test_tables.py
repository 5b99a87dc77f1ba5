import csv
import io
import math
import re

import numpy as np
import pytest

from scored import SETTING, score, tabled
from steelyard.errors import UserError
from steelyard.report.data.results import Results, RunKey, Setting
from steelyard.report.statistics.grid import score_grid
from steelyard.report.tables.paper_tables import TABLE_1, TABLE_S1, TABLE_S2, make_table
from steelyard.report.tables.summary import published, published_rows, summarise, summary_csv
from steelyard.report.tables.table import NOTATIONS, as_csv, as_latex, as_markdown, as_text, escape_latex

# By hand: two folds, two repeats, two subjects each; the values of a run are its subjects'.
FLAIR = {
    "equal": {(0, 0): (0.5, 0.7), (0, 1): (0.6, 0.8), (1, 0): (0.2, 0.4), (1, 1): (0.4, 0.6)},  # .6 .7 | .3 .5
    "conservative-25": {
        (0, 0): (0.7, 0.7),
        (0, 1): (0.7, 0.7),
        (1, 0): (0.4, 0.4),
        (1, 1): (0.4, 0.6),
    },  # .7 .7 | .4 .5
}


def by_hand(values=FLAIR):
    rows = [
        score(method, fold, repeat, f"sub-{fold}{at}", domain, dsc=value / (2 if domain == "t1" else 1))
        for method, runs in values.items()
        for (fold, repeat), pair in runs.items()
        for at, value in enumerate(pair)
        for domain in ("flair", "t1")
    ]
    return Results(tuple(rows))


def test_means_spreads_and_gains_are_those_worked_out_by_hand():
    base, ours = summarise(by_hand())
    assert base.numbers["dsc_flair"] == pytest.approx((0.6 + 0.7 + 0.3 + 0.5) / 4)
    assert base.numbers["dsc_t1"] == pytest.approx(0.525 / 2)
    # The s.d. of two numbers is their difference over √2.
    assert base.numbers["dsc_flair_sd"] == pytest.approx((0.1 + 0.2) / 2 / math.sqrt(2))
    assert ours.numbers["dsc_flair"] == pytest.approx(0.575)
    assert ours.numbers["dsc_flair_sd"] == pytest.approx((0.0 + 0.1) / 2 / math.sqrt(2))
    assert ours.numbers["gain_mean"] == pytest.approx(0.05 + 0.025)
    assert ours.numbers["gain_sd"] == pytest.approx((0.15 - 0.05) / math.sqrt(2) * 1.5)
    assert (base.numbers["gain_mean"], base.numbers["gain_sd"]) == (0, 0)
    assert (ours.runs, ours.expected) == (4, 4)


def test_a_missing_repeat_is_counted_and_its_fold_keeps_its_weight():
    held = by_hand()
    results = Results(tuple(row for row in held.rows if row.run != RunKey("conservative-25", 1, 1)))
    ours = summarise(results)[1]
    assert (ours.runs, ours.expected) == (3, 4)
    assert ours.numbers["dsc_flair"] == pytest.approx((0.7 + 0.4) / 2)
    assert ours.numbers["dsc_flair_sd"] == pytest.approx(0.0)
    text = as_text(make_table(results, TABLE_1))
    assert "1 runs are missing: Ours-C-25, fold 1, repeat 1." in text
    assert re.search(r"Ours-C-25 +3/4", text)


def test_a_missing_fold_leaves_no_gain_since_folds_differ():
    held = by_hand()
    results = Results(tuple(row for row in held.rows if (row.run.method, row.run.fold) != ("conservative-25", 1)))
    ours = summarise(results)[1]
    assert math.isnan(ours.numbers["gain_mean"])
    assert math.isnan(ours.numbers["gain_sd"])
    assert ours.numbers["dsc_flair"] == pytest.approx(0.7)
    assert "–" in as_csv(make_table(results, TABLE_1)).splitlines()[-1]


def test_one_repeat_has_no_spread():
    results = tabled({"equal": {"flair": 0.5}, "conservative-25": {"flair": 0.5}}, repeats=1)
    assert " ± –" in as_text(make_table(results, TABLE_1))
    assert all(math.isnan(line.numbers["dsc_flair_sd"]) for line in summarise(results))


def test_undefined_metrics_are_left_out_and_said():
    rows = [
        score("equal", 0, repeat, name, "flair", dsc=0.5, auc=math.nan if name == "a" else 0.75)
        for repeat in (0, 1)
        for name in "ab"
    ]
    table = make_table(Results(tuple(rows)), TABLE_S2)
    assert "AUC is not defined in 2 rows" in as_text(table)
    assert summarise(Results(tuple(rows)))[0].numbers["auc_flair"] == 0.75


def test_rows_columns_and_the_papers_numbers():
    methods = ("equal", "greedy-100", "greedy-25", "my_method", "flair-only")
    results = tabled({name: {"flair": 0.6, "t1": 0.4} for name in methods})
    table = make_table(results, TABLE_S2)
    plain = [name for name in table.headings if "(paper)" not in name]
    assert plain == ["method", "runs", "DSC-F", "DSC-T", "GAIN-μ", "GAIN-σ", "AUC-F", "AUC-T"]
    assert [row[0] for row in table.groups[0][1]] == ["F50-T50", "Ours-G-25", "Ours-G-100", "my_method"]
    read = {row["method"]: row for row in csv.DictReader(io.StringIO(as_csv(table)))}
    assert read["Ours-G-100"]["DSC-T (paper)"] == "0.545 ± 0.022"
    assert read["Ours-G-100"]["GAIN-μ (paper)"] == "-0.009"
    assert read["my_method"]["DSC-T (paper)"] == "–"
    assert "not run here: F10-T90, F90-T10, Simple-G" in as_text(table)
    assert "F50-T50 is equal: equal weights." in as_text(table)
    assert "Sicilia" in as_text(table)
    single = make_table(tabled({"flair-only": {"flair": 0.6, "t1": 0.4}}, setting=Setting("unet", "all")), TABLE_S1)
    assert single.headings[2:6] == ("DSC-F", "DSC-F (paper)", "DSC-T", "DSC-T (paper)")
    assert single.groups[0][1][0][3] == "0.7715 ± 0.0116"


def test_unprinted_rows_of_the_paper_are_said_to_be_unprinted():
    results = tabled({"equal": {"flair": 0.6, "t1": 0.4}}, setting=Setting("unet", "12F"))
    assert "U-Net (12F): the paper's numbers stand in its source as comments" in as_text(make_table(results, TABLE_1))


def test_three_domains_are_named_in_full_and_summed_over():
    results = tabled(
        {"equal": dict.fromkeys("abc", 0.5), "conservative-25": dict.fromkeys("abc", 0.6)}, by_subject=0, by_run=0
    )
    table = make_table(results, TABLE_1)
    assert table.headings == ("method", "runs", "DSC-a", "DSC-b", "DSC-c", "GAIN-μ", "GAIN-σ")
    assert "over equal" in table.caption
    assert [row[0] for row in table.groups[0][1]] == ["equal", "conservative-25"]  # F50-T50 would name two domains
    assert summarise(results)[1].numbers["gain_mean"] == pytest.approx(0.3, abs=0.01)


def test_no_baseline_is_said_or_refused():
    results = tabled({"conservative-25": {"flair": 0.5}})
    assert "the baseline was not run, so there is no GAIN" in as_text(make_table(results, TABLE_1))
    with pytest.raises(UserError, match="no run of the baseline F50-T50"):
        summarise(results, baseline="F50-T50")


@pytest.mark.parametrize("notation", NOTATIONS)
def test_the_same_results_in_any_order_give_the_same_bytes(notation):
    results = tabled({"equal": {"flair": 0.6, "t1": 0.4}, "conservative-25": {"flair": 0.6, "t1": 0.4}})
    again = Results(tuple(results.rows[at] for at in np.random.default_rng(0).permutation(len(results.rows))))
    write = NOTATIONS[notation]
    assert write(make_table(results, TABLE_S2)) == write(make_table(again, TABLE_S2))
    assert summary_csv(summarise(results)) == summary_csv(summarise(again))


def test_latex_is_whole_and_escaped():
    results = tabled({"equal": {"a_b": 0.5}, "50%_&#{x}^~\\": {"a_b": 0.4}}, setting=Setting("my_net", "8$"))
    text = as_latex(make_table(results, TABLE_1))
    assert re.findall(r"\\(begin|end)\{(\w+)\}", text) == [
        ("begin", "table"),
        ("begin", "tabular"),
        ("end", "tabular"),
        ("end", "table"),
    ]
    body = text.split(r"\begin{tabular}{")[1]
    columns, lines = body.split("}", 1)[0], re.findall(r"^(?!\\multi)(.*) \\\\$", body, flags=re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        assert len(re.findall(r"(?<!\\)&", line)) == len(columns) - 1
    bare = re.sub(r"\\[\\&%$#_{}]", "", text)  # what is escaped is gone; what is left must be LaTeX's own
    assert not re.search(r"[%#^~_]", bare)
    assert bare.count("$") % 2 == 0
    assert bare.count("{") == bare.count("}")
    assert "$-$0." in text
    assert text.isascii()


def test_markdown_shows_names_as_names():
    results = tabled({"equal": {"a_b": 0.5}, "a|b_c": {"a_b": 0.4}})
    lines = [line for line in as_markdown(make_table(results, TABLE_1)).splitlines() if line.startswith("|")]
    assert any(line.startswith(r"| a\|b\_c | 25/25 |") for line in lines)
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1


def test_summary_is_read_back():
    results = by_hand()
    read = list(csv.DictReader(io.StringIO(summary_csv(summarise(results)))))
    assert read[1]["gain_mean"] == "0.075000"
    assert read[1]["paper_gain_mean"] == "0.011000"
    assert read[0]["gain_sd"] == "0.000000"


def test_escapes_nothing_twice():
    assert escape_latex("\\{") == r"\textbackslash{}\{"


def test_unequal_folds_count_the_same():
    rows = [score("equal", 0, 0, name, "flair", dsc=0.2) for name in "abc"]
    rows.append(score("equal", 1, 0, "d", "flair", dsc=0.6))
    assert score_grid(Results(tuple(rows)), SETTING, "dsc").means[0, 0] == pytest.approx(0.4)


def test_the_papers_gains_follow_from_its_own_means_to_rounding():
    rows = published_rows()
    assert len(rows) == 38
    assert sum(row.printed for row in rows) == 29
    base = {(row.model, row.availability): row.numbers for row in rows if row.method == "F50-T50"}
    checked = 0
    for row in rows:
        if math.isnan(row.numbers["gain_mean"]):
            continue
        theirs, zero = row.numbers, base[row.model, row.availability]
        for kind, suffix, sign in (("gain_mean", "", 1), ("gain_sd", "_sd", -1)):
            ours = sign * sum(theirs[f"dsc_{name}{suffix}"] - zero[f"dsc_{name}{suffix}"] for name in ("flair", "t1"))
            assert ours == pytest.approx(theirs[kind], abs=1e-9), (row, kind)
            checked += 1
    assert checked == 72


def test_names_of_ours_find_the_papers_rows():
    assert published(Setting("lightweight", "8F"), "shift-conservative").numbers["dsc_t1_sd"] == 0.081
    assert published(Setting("unet", "all"), "equal").method == "F50-T50"
    assert not published(Setting("unet", "all"), "equal").printed
    assert published(Setting("unet", "9F"), "equal") is None
