import io
import subprocess
import sys

import pytest
from rich.console import Console

from steelyard.cli import main
from steelyard.cli.progress import track


def test_a_full_folder_is_one_line_and_exit_code_two(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("keep")
    assert main(["phantom", str(tmp_path), "--subjects", "1"]) == 2
    assert capsys.readouterr().err == f"steelyard: {tmp_path} is not empty; nothing was written.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    "wrong", [["--subjects", "0"], ["--seed", "-1"], ["--scanner", "9t"], ["--workers", "0"], ["--workers", "9999"]]
)
def test_impossible_arguments_write_nothing(tmp_path, capsys, wrong):
    out = tmp_path / "out"
    assert main(["phantom", str(out), *wrong]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not out.exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["phantom", str(tmp_path / "file" / "out")]) == 2
    assert (
        capsys.readouterr().err
        == f"steelyard: {tmp_path}/file/out: {tmp_path}/file is not a directory; a folder is needed.\n"
    )


def test_the_command_makes_heads(tmp_path, capsys, monkeypatch):
    made = []

    def pretend(out, cohort):
        made.append((out, cohort))
        yield "sub-001"

    monkeypatch.setattr("steelyard.imaging.phantom.write_cohort", pretend)
    assert main(["phantom", str(tmp_path), "--subjects", "1", "--seed", "4", "--scanner", "noisy-3t"]) == 0
    ((out, cohort),) = made
    assert out == tmp_path
    assert (cohort.subjects, cohort.seed, cohort.scanner, cohort.workers) == (1, 4, "noisy-3t", 1)
    assert "sub-001 (1 of 1" in capsys.readouterr().err


def test_heads_of_a_run_that_was_stopped_do_not_count_in_the_estimate(tmp_path, capsys, monkeypatch):
    (tmp_path / "sub-001").mkdir()
    monkeypatch.setattr("steelyard.imaging.phantom.write_cohort", lambda *_: iter(("sub-001", "sub-002")))
    assert main(["phantom", str(tmp_path), "--subjects", "3"]) == 0
    said = capsys.readouterr().err
    assert "sub-001 (1 of 3)\n" in said
    assert "sub-002 (2 of 3, about 0 s left)" in said


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_tells_how_much_is_left(terminal):
    out = io.StringIO()
    track(iter("ab"), total=2, title="Making heads", console=Console(file=out, force_terminal=terminal, width=100))
    text = out.getvalue()
    assert "Making heads" in text
    assert "left" in text
    assert ("2/2" if terminal else "b (2 of 2") in text


def test_the_help_does_not_load_the_imaging_stack():
    code = "import sys; from steelyard.cli import main; sys.exit('nibabel' in sys.modules or 'nilearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
