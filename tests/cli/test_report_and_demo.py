"""The commands that write a page: `report`, and `demo`, which goes all the way to it."""

import pytest

from steelyard.cli import main


def test_the_report_is_one_file_and_its_figures_if_wanted(run_folder, cohort, tmp_path, capsys):
    out, figures = tmp_path / "page.html", tmp_path / "figures"
    command = ["report", str(run_folder), "--data", str(cohort), "--out", str(out), "--figures", str(figures)]
    assert main([*command, "--subjects", "1"]) == 0
    assert "it shows scans" in capsys.readouterr().err
    assert 'class="viewer"' in out.read_text()
    names = {"geometry", "learning", "scans", "scores", "trade_off", "transfer", "weights"}
    assert {path.name for path in figures.iterdir()} == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}


def test_only_figures_of_ours_are_replaced(run_folder, tmp_path, capsys):
    out, figures = tmp_path / "page.html", tmp_path / "figures"
    command = ["report", str(run_folder), "--out", str(out), "--figures", str(figures)]
    figures.mkdir()
    for name in ("scores.svg", "scores.png"):
        mine = figures / name
        mine.write_text("Created by matplotlib")
        assert main(command) == 2
        assert f"{name}: exists and was not written by this command" in capsys.readouterr().err
        assert mine.read_text() == "Created by matplotlib"
        assert not out.exists()
        mine.unlink()
    for _ in range(2):
        assert main(command) == 0


def test_mistakes_are_one_line(run_folder, tmp_path, capsys):
    out = tmp_path / "page.html"
    for given, said in (
        ([str(tmp_path / "nothing")], "there is no run folder in it"),
        ([str(run_folder), "--subjects", "0"], "subjects must be at least 1; got 0"),
        ([str(run_folder), "--data", str(tmp_path / "nothing")], "nothing"),
    ):
        assert main(["report", *given, "--out", str(out)]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    assert not out.exists()


def test_only_a_page_of_ours_is_replaced(run_folder, tmp_path, capsys):
    out = tmp_path / "page.html"
    out.write_text("<!doctype html><title>My page</title>")
    assert main(["report", str(run_folder), "--out", str(out)]) == 2
    assert capsys.readouterr().err == (
        f"steelyard: {out}: exists and was not written by this command; remove it or name another file.\n"
    )
    assert "My page" in out.read_text()
    out.unlink()
    for _ in range(2):
        assert main(["report", str(run_folder), "--out", str(out)]) == 0


@pytest.mark.slow
def test_the_demo_goes_from_nothing_to_a_page_and_again_without_work(tmp_path, capsys):
    command = ["demo", str(tmp_path / "demo"), "--subjects", "4", "--experiment", "smoke"]
    assert main(command) == 0
    first = (tmp_path / "demo" / "index.html").read_text()
    shown = capsys.readouterr()
    assert "conservative-25" in shown.out
    assert str(tmp_path / "demo" / "index.html") in shown.err
    assert (tmp_path / "demo" / "predicted" / "volumes.csv").exists()
    assert main(command) == 0
    assert (tmp_path / "demo" / "index.html").read_text() == first
