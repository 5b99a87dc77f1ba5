"""An OUT that cannot be used is one line and exit code 2, whatever the command; and nothing is left behind."""

import os

import pytest

import networks_by_hand
from steelyard.cli import main


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


def test_an_experiment_that_cannot_start_leaves_no_trace(cohort, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["experiment", "smoke", str(cohort), str(out), "--availability", "all", "--folds", "5"]
    for wrong, fault in (
        (("--models", "nosuch:x"), "nosuch cannot be imported"),
        (("--models", "monai:UNet"), "model monai:UNet"),
        (("--workers", "999"), "999 workers"),
        (("--accelerator", "tpu"), "accelerator tpu"),
    ):
        assert main([*command, *wrong]) == 2
        assert fault in capsys.readouterr().err
        assert not out.exists()
    out.mkdir()
    (out / "slices").symlink_to(tmp_path)
    assert main(command) == 2
    assert "slices: is a link" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [out]
