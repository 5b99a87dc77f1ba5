"""What every command does alike: names are shown as they are, and mistakes are one line."""

import io
import logging
import os
import signal
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

import networks_by_hand
from steelyard import cli
from steelyard.cli import evaluate, main, progress
from steelyard.cli.command import plain, say
from steelyard.cli.progress import sum_up, track
from steelyard.errors import UserError
from steelyard.processes.workers import JobResult
from steelyard.report.tables.agreement import as_markdown

NAME = "sub-1\nfailed: [bold]all[/bold]\x1b]0;title\x07\x1b[2J\u202e\r\x9b31m"


def is_clean(text, lines):
    """Whether a text has so many lines of printable characters."""
    return text.count("\n") == lines and all(line.isprintable() for line in text.split("\n"))


def test_a_name_cannot_break_the_line_or_steer_the_terminal(capsys, tmp_path):
    say(f"failed: {NAME}")
    sum_up([JobResult(NAME, "failed", NAME)], tmp_path, ready="of 1 scans are done")
    assert is_clean(capsys.readouterr().err, 3)


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_shows_names_as_they_are(terminal):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, color_system=None, width=200)
    track(iter([NAME]), total=1, title="Predicting", console=console)
    assert "\x1b]0;" not in out.getvalue()
    assert "\x9b" not in out.getvalue()
    if not terminal:
        assert is_clean(out.getvalue(), 1)
        assert "[bold]all[/bold]" in out.getvalue()


def running(folder):
    """An experiment with one unit under way."""
    unit = SimpleNamespace(path=folder, key=NAME)
    waiting = {folder: unit}
    return SimpleNamespace(units=[unit], waiting=waiting, done=0, busy=[unit], seconds_left=lambda: 1.0)


def test_a_grid_shows_names_as_they_are(capsys, tmp_path):
    (tmp_path / "epochs.csv").write_text('epoch,"loss_[bold]\x1b[2J"\n0,0.5\n')
    experiment = running(tmp_path)
    shown = progress.GridProgress(experiment)
    shown.show(SimpleNamespace(unit=experiment.units[0], message=NAME))
    shown._last_line = float("-inf")
    shown.show(None)
    assert is_clean(capsys.readouterr().err, 2)


def test_a_grid_on_a_terminal_shows_names_as_they_are(monkeypatch, tmp_path):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system=None, width=300)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    (tmp_path / "epochs.csv").write_text("epoch,loss_[bold]t1[/]\n0,0.5\n")
    with progress.GridProgress(running(tmp_path)) as shown:
        shown.show(None)
    assert "\x1b]0;" not in out.getvalue()
    assert "[bold]t1[/]" in out.getvalue()


def test_tables_show_names_as_they_are(capsys, monkeypatch):
    numbers = {name: 0.5 for name, _, _ in evaluate._COLUMNS}
    monkeypatch.setattr(
        "steelyard.imaging.evaluate.evaluation.summarise",
        lambda _: [{"domain": "[bold]t1\x1b[2J", "subjects": 1} | numbers],
    )
    evaluate._show([])
    shown = capsys.readouterr().out
    assert "[bold]t1" in shown
    assert "\x1b" not in shown
    assert plain(NAME).plain.isprintable()


def test_an_error_and_what_is_logged_are_one_line(capsys, monkeypatch):
    def fail(*_, **__):
        logging.getLogger("steelyard.somewhere").warning(NAME)
        raise UserError(f"{NAME}: no such file.")

    monkeypatch.setattr(logging.getLogger("steelyard.somewhere"), "propagate", False)  # pytest listens above
    monkeypatch.setattr(cli, "parse", lambda _: SimpleNamespace(run=fail))
    assert main(["report"]) == 2
    assert is_clean(capsys.readouterr().err, 2)


def test_an_interrupt_in_python_is_one_line(capsys, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "parse", lambda _: SimpleNamespace(run=interrupt))
    assert main(["report"]) == 128 + signal.SIGINT
    assert capsys.readouterr().err == "steelyard: stopped by SIGINT; run the same command again to finish.\n"


def test_a_markdown_table_keeps_its_rows():
    counts = dict.fromkeys(("traced", "to_the_bit", "steps", "pairs", "subjects"), 1)
    names = ("share", "kappa", "held", "correlation", "curve_correlation", "curve_difference", "time_ratio")
    row = {"model": NAME, "availability": "all", "exact": NAME, "method": NAME} | dict.fromkeys(names) | counts
    table = as_markdown([row])
    assert all(line.isprintable() for line in table.split("\n"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return networks_by_hand.write_run(tmp_path_factory.mktemp("model") / "run")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("precious")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


COMMANDS = {
    "predict": "predict RUN DATA OUT --bias skip",
    "preprocess": "preprocess DATA OUT --brain own",
    "phantom": "phantom OUT --subjects 1",
    "train": "train DATA OUT --experiment smoke",
    "cache": "train DATA OUT/run --cache OUT --experiment smoke",
    "experiment": "experiment smoke DATA OUT",
    "dry run": "experiment smoke DATA OUT --dry-run",
    "evaluate": "evaluate RUN DATA --out OUT",
    "report": "report RUN --out OUT",
    "figures": "report RUN --out page.html --figures OUT",
    "export": "export RUN OUT",
    "profile": "profile DATA --json OUT",
    "benchmark": "benchmark OUT",
    "demo": "demo OUT",
}


@pytest.mark.parametrize("out", ["loop", "file", "file/below", "pipe"])
@pytest.mark.parametrize("command", COMMANDS)
def test_an_out_that_cannot_be_used_is_one_line(command, out, run, cohort, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    before = {path.name for path in folder.iterdir()}
    values = {"RUN": str(run), "DATA": str(cohort), "OUT": str(folder / out), "OUT/run": str(folder / out / "run")}
    assert main([values.get(word, word) for word in COMMANDS[command].split()]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("steelyard: ")]
    assert len(said) == 1
    assert out.partition("/")[0] in said[0]
    assert {path.name for path in folder.iterdir()} == before
    assert (folder / "file").read_text() == "precious"


def test_an_experiment_that_cannot_start_leaves_no_trace(cohort, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    out = tmp_path / "out"
    command = ["experiment", "smoke", str(cohort), str(out), "--availability", "all", "--folds", "5"]
    for wrong, fault in (
        (("--models", "nosuch:x"), "nosuch cannot be imported"),
        (("--models", "monai:UNet"), "model monai:UNet"),
        (("--workers", "999"), "999 workers"),
        (("--accelerator", "cuda"), "accelerator cuda"),
    ):
        assert main([*command, *wrong]) == 2
        assert fault in capsys.readouterr().err
        assert not out.exists()
    out.mkdir()
    (out / "slices").symlink_to(tmp_path)
    assert main(command) == 2
    assert "slices: is a link" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [out]
