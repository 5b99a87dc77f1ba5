import csv
import json
import shutil
from dataclasses import replace

import pytest

import heads
from steelyard.cli import main
from steelyard.experiments.estimate import add_timing
from steelyard.experiments.grids import smoke
from steelyard.experiments.results import write_results
from steelyard.experiments.units import do_unit, plan, read_slices
from steelyard.files.records import as_csv
from steelyard.report.statistics.vote_agreement import read_trace

METHODS = ("conservative-25", "conservative-25+first-order", "conservative-25+every-2")


@pytest.fixture(scope="module")
def finished(cohort, tmp_path_factory):
    """An experiment with two pairs of runs of each cheaper variant."""
    out = tmp_path_factory.mktemp("agreement") / "out"
    grid = smoke()
    training = replace(grid.training, epochs=3)
    grid = replace(grid, training=training, methods=METHODS, availability=(None,), test_folds=(0, 1))
    slices = read_slices(grid, cohort, out)
    for unit in plan(grid, slices, data=cohort, out=out):
        add_timing(out, unit, do_unit(unit))
    write_results(out)
    return out


@pytest.fixture
def out(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "out")


def test_what_cheaper_votes_lose_is_told_and_kept(out, cohort, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- agreement -->\nold\n<!-- /agreement -->\nafter\n")
    command = ["agreement", str(out), str(cohort), "--page", str(page)]
    assert main(command) == 0
    said = capsys.readouterr()
    assert "epoch 3 (6 of 6" in said.err
    assert "departs" not in said.err
    rows = {row["method"]: row for row in json.loads((out / "agreement.json").read_text())["rows"]}
    assert set(rows) == set(METHODS[1:])
    for row in rows.values():
        assert (row["traced"], row["to_the_bit"], row["pairs"], row["subjects"]) == (2, 2, 2, 4)
        assert 0 <= row["share"] <= 1
        assert row["curve_difference_low"] <= row["curve_difference"] <= row["curve_difference_high"]
        assert row["dsc_flair_low"] <= row["dsc_flair"] <= row["dsc_flair_high"]
        assert row["time_ratio"] > 0
    assert rows["conservative-25+first-order"]["correlation"] is not None
    assert rows["conservative-25+first-order"]["held"] is None
    assert rows["conservative-25+every-2"]["held"] is not None
    table = (out / "agreement.md").read_text()
    assert said.out == table
    assert page.read_text() == f"before\n<!-- agreement -->\n{table}<!-- /agreement -->\nafter\n"
    votes = sorted((out / "votes").rglob("*.csv"))
    assert [path.name for path in votes] == ["fold-0_repeat-0.csv", "fold-1_repeat-0.csv"]
    before = {path: path.stat().st_mtime_ns for path in votes}
    assert main(command) == 0
    assert "Retracing" not in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in votes} == before


@pytest.mark.parametrize("name", ["agreement.json", "agreement.csv", "agreement.md"])
def test_only_tables_of_ours_are_replaced(out, cohort, capsys, name):
    (out / name).write_text("mine")
    assert main(["agreement", str(out), str(cohort)]) == 2
    assert f"{name}: exists and was not written by this command" in capsys.readouterr().err
    assert (out / name).read_text() == "mine"
    assert not (out / "votes").exists()


def test_a_shorter_trace_is_enough_until_more_is_wanted(out, cohort, capsys):
    short = ["agreement", str(out), str(cohort), "--traced", "1", "--epochs", "1"]
    assert main(short) == 0
    (path,) = (out / "votes").rglob("*.csv")
    assert read_trace(path).epochs == 1
    assert main([*short[:-1], "2"]) == 0
    assert read_trace(path).epochs == 2
    assert main(short) == 0
    assert read_trace(path).epochs == 2
    steps = next(out.glob("runs/*/conservative-25/fold-0_repeat-0/steps.csv"))
    with steps.open() as stream:
        rows = list(csv.DictReader(stream))
    steps.write_text(as_csv([row | {"hypothetical_t1": float(row["hypothetical_t1"]) + 1} for row in rows]))
    capsys.readouterr()
    assert main(short) == 0
    assert "a retraced run departs from what it was" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--traced", "0"), "--traced must be at least 1; got 0"),
        (("--epochs", "0"), "--epochs must be at least 1; got 0"),
        (("--exact", "greedy-25"), "there must be runs of greedy-25 and of a cheaper variant"),
        (
            ("--exact", "conservative-25+first-order"),
            "does not vote exactly on every step",
        ),
        (("--page", "nowhere.md"), "nowhere.md: no page with the line <!-- agreement -->"),
    ],
)
def test_mistakes_are_one_line(out, cohort, capsys, arguments, message):
    assert main(["agreement", str(out), str(cohort), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (out / "agreement.json").exists()


def test_an_experiment_without_variants_or_scores_is_refused_before_anything_is_trained(out, cohort, capsys):
    (out / "results.csv").unlink()
    assert main(["agreement", str(out), str(cohort)]) == 2
    assert "results.csv: cannot be read" in capsys.readouterr().err
    for variant in ("conservative-25_first-order", "conservative-25_every-2"):
        shutil.rmtree(next(out.glob(f"runs/*/{variant}")))
    assert main(["agreement", str(out), str(cohort)]) == 2
    assert (
        "one method must have cheaper variants, such as conservative-25+first-order; none does"
        in capsys.readouterr().err
    )
    assert main(["agreement", str(out / "nothing"), str(cohort)]) == 2
    assert "there is no run folder in it" in capsys.readouterr().err
    assert not (out / "votes").exists()


def test_other_data_are_refused(out, tmp_path, capsys):
    for number in range(5):
        heads.write_subject(tmp_path / "others", f"{number}", seed=number + 9)
    assert main(["agreement", str(out), str(tmp_path / "others")]) == 2
    assert "split.json: the run there has another digests" in capsys.readouterr().err
    assert not (out / "votes").exists()
