"""`steelyard regret`: the smallest form, resumed, on a problem of the user's own, and refused."""

import csv
from pathlib import Path

import pytest

from steelyard.cli import main
from steelyard.cli.regret import Regret
from steelyard.experiments.regret import campaign

EXAMPLES = Path(__file__).parents[2] / "examples"


def rows(folder: Path) -> list[dict[str, str]]:
    """The rows of a folder, without the time."""
    with (folder / "results.csv").open() as file:
        return [row | {"seconds": ""} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def smallest(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("smallest")
    assert Regret(out=out, smallest=True, steps=3).run() == 0
    return out


def test_the_smallest_form_has_every_method_and_both_pages(smallest):
    methods = {(row["method"], row["rate"]) for row in rows(smallest)}
    assert {("equal", "1"), ("equal", "0.333"), ("equal", "3"), ("evidence", "1"), ("sweep", "1")} < methods
    assert len(rows(smallest)) == 15 * 2 * 2  # methods × variants × seeds
    summary = (smallest / "summary.md").read_text()
    page = (smallest / "report.html").read_text()
    for title in (
        "In short",
        "All problems together",
        "Each problem",
        "The best of each sweep",
        "lost a domain",
        "Audit",
    ):
        assert title in summary
        assert title in page
    assert "<svg" in page
    assert (smallest / "in_short.png").read_bytes().startswith(b"\x89PNG")
    assert "evidence: " in page


def test_finished_trials_are_not_done_again(smallest, capsys, monkeypatch):
    before = (smallest / "results.csv").read_bytes()
    monkeypatch.setattr(campaign, "run_trial", None)
    assert Regret(out=smallest, smallest=True, steps=3).run() == 0
    assert "60 trials, 60 of them done" in capsys.readouterr().err
    assert (smallest / "results.csv").read_bytes() == before


def test_a_folder_with_the_committed_results_alone_counts_as_done(smallest, tmp_path, monkeypatch):
    (tmp_path / "results.csv").write_bytes((smallest / "results.csv").read_bytes())
    monkeypatch.setattr(campaign, "run_trial", None)
    assert Regret(out=tmp_path, smallest=True, steps=3).run() == 0
    assert (tmp_path / "summary.md").read_text() == (smallest / "summary.md").read_text()


def test_a_problem_of_the_users_own_is_named_by_its_path(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    arguments = ["--problems", "own_problem:Cameras", "--seeds", "0", "2", "--methods", "equal", "evidence", "sweep"]
    call = ["regret", str(tmp_path), *arguments, "--optimizers", "sgd", "--variants", "plain", "times-30"]
    assert main([*call, "--steps", "60"]) == 0
    assert "(12 of 12" in capsys.readouterr().err
    scores = [float(row["score"]) for row in rows(tmp_path) if row["method"] == "equal" and row["variant"] == "plain"]
    assert min(scores) > 0.7
    assert "| own_problem:Cameras | plain | sgd | 60 | evidence | 2 | " in (tmp_path / "summary.md").read_text()


def test_a_failed_trial_is_named_at_the_end(tmp_path, monkeypatch, capsys):
    def fail(trial, folders):
        raise RuntimeError("no luck")

    monkeypatch.setattr(campaign, "run_trial", fail)
    trials = Regret(out=tmp_path, methods=("equal",), problems=("wine",), seeds=(0, 1), optimizers=("sgd",), steps=1)
    assert trials.run() == 2
    assert "failed: wine plain sgd 1 equal 0: unexpected RuntimeError: no luck" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--problems", "heart"], "the problem heart needs a folder of data; name it with --data."),
        (["--problems", "letters"], "problem must be one of digits, "),
        (["--problems", "nowhere:Problem"], "problem nowhere:Problem: cannot be imported, "),
        (["--problems", "math:pi"], "problem math:pi: cannot be made, "),
        (["--group", "all"], "group must be one of choosing, confirming, drift; got 'all'."),
        (["--methods", "luck"], "method must be one of equal, "),
        (["--methods", "equal@fast"], "rate must be a number; got 'fast'."),
        (["--methods", "equal@"], "method must be like equal or equal@3; got 'equal@'."),
        (["--methods", "sweep@3"], "a sweep has learning rates of its own; got sweep@3."),
        (["--variants", "burnt"], "variant of digits must be one of plain, "),
        (["--optimizers", "lion"], "optimizer must be one of sgd, adamw; got 'lion'."),
        (["--seeds", "3", "3"], "seeds must be a first one and a larger one; got 3 3."),
        (["--steps", "0"], "steps must be a whole number within 1 to "),
        (["--smallest", "--steps", "0"], "steps must be a whole number within 1 to "),
        (["--smallest", "--group", "choosing"], "--smallest and --group exclude each other."),
        (["--workers", "0"], "workers must be at least 1; got 0."),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(arguments, message, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["regret", str(out), *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith(f"steelyard: {message}")
    assert not any("Traceback" in line for line in lines)
    assert not (out / "results.csv").exists()


def test_a_folder_of_something_else_is_refused(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    assert main(["regret", str(tmp_path), "--smallest"]) == 2
    assert "is not empty and has no results.csv; nothing was written." in capsys.readouterr().err
    (tmp_path / "results.csv").write_text("subject,dsc\n1,0.5\n")
    assert main(["regret", str(tmp_path), "--smallest"]) == 2
    assert "results.csv: must have one column 'problem'" in capsys.readouterr().err
    (tmp_path / "report.html").write_text("mine")
    assert main(["regret", str(tmp_path), "--smallest"]) == 2
    assert "report.html: exists and was not written by this command" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "results.csv", "thesis.txt"]
