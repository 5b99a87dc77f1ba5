import csv
import re

import pytest

import heads
from steelyard.cli import main
from steelyard.errors import UserError
from steelyard.imaging.bids import read_bids
from steelyard.report.comparison import Picture, answer, as_png, headings, render_comparison, rows
from steelyard.report.figures import draw_comparison, draw_learning, draw_scores, draw_weights
from steelyard.report.runs import mean_and_spread, read_run


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    root = tmp_path_factory.mktemp("cohort")
    for number in range(5):
        heads.write_subject(root, f"{number}", seed=number)
    return root


@pytest.fixture(scope="module")
def records(cohort, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for method in ("F50-T50", "Ours-C-25"):
        settings = ("--experiment", "smoke", "--method", method)
        assert main(["train", str(cohort), str(root / method), *settings]) == 0
        assert main(["evaluate", str(root / method), str(cohort), "--subjects", "test"]) == 0
    return [read_run(root / method) for method in ("F50-T50", "Ours-C-25")]


def test_the_table_holds_the_means_of_the_runs_own_files(records):
    table = rows(records)
    assert [row[0] for row in table] == ["F50-T50", "Ours-C-25"]
    assert headings(records)[1:3] == ["DSC-F", "DSC-T"]
    with (records[1].path / "metrics.csv").open() as stream:
        held = [float(row["dsc"]) for row in csv.DictReader(stream) if row["domain"] == "t1"]
    assert table[1][2] == f"{sum(held) / len(held):.3f}"
    assert table[0][-1] == "0.50"
    assert float(table[1][-1]) == pytest.approx(records[1].weights("flair")[-1], abs=0.005)


def test_the_answer_says_what_was_gained_and_how_little_that_shows(records):
    said = answer(records)
    gain = mean_and_spread(records[1].scores("flair"))[0] - mean_and_spread(records[0].scores("flair"))[0]
    assert f"FLAIR {gain:+.3f}" in said
    assert "not which method is better" in said


def test_the_page_is_whole_and_shows_text_as_text(records):
    picture = Picture(title="<script>alert(1)</script>", caption="c", content=as_png(draw_weights(records, "flair")))
    page = render_comparison(records, [picture], title="T", lead="L", commands=["steelyard <b>"])
    assert "<script>" not in page
    assert "steelyard &lt;b&gt;" in page
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)
    assert page.count("data:image/png;base64,iVBOR") == 1


def test_every_picture_can_be_drawn(records, cohort):
    subject = read_bids(cohort).subjects[0]
    drawn = (draw_scores(records), draw_learning(records), draw_comparison(records[1], subject))
    for figure in drawn:
        assert as_png(figure).startswith(b"\x89PNG")
    assert len(drawn[2].axes) == 5
    assert [axes.get_title(loc="left") for axes in drawn[2].axes[:1]] == ["FLAIR"]


def test_damaged_tables_are_named(records, tmp_path):
    for path in records[0].path.glob("*.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "metrics.csv").write_text("subject,domain,part,dsc\na,flair,test,high\n")
    with pytest.raises(UserError, match="its tables are damaged"):
        read_run(tmp_path)
    with pytest.raises(UserError, match="this is no run directory"):
        read_run(tmp_path / "nothing")
