import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import heads
import processes
from steelyard.processes.import_path import leave_out_current_folder

COMMAND = Path(sys.executable).with_name("steelyard")
LIBRARY = str(Path(os.__file__).parent)


@pytest.fixture
def path(monkeypatch, tmp_path):
    """An import path as `python -m` has it: the current folder, the standard library, then what is installed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), "", LIBRARY, "/installed"])
    return sys.path


def test_the_current_folder_is_left_out_here_and_in_children(path):
    leave_out_current_folder()
    assert sys.path == [LIBRARY, "/installed"]
    assert os.environ["PYTHONSAFEPATH"] == "1"
    assert "PYTHONPATH" not in os.environ


def test_what_is_installed_in_the_current_folder_is_kept(path, tmp_path):
    path.append(str(tmp_path))
    leave_out_current_folder()
    assert sys.path == [LIBRARY, "/installed", str(tmp_path)]


@pytest.mark.parametrize("folder", [".", "sub/.."])
def test_a_user_may_name_the_current_folder(folder, path, tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    monkeypatch.setenv("PYTHONPATH", folder)
    leave_out_current_folder()
    assert str(tmp_path) in sys.path
    assert Path(os.environ["PYTHONPATH"]).is_absolute()
    assert Path(os.environ["PYTHONPATH"]).resolve() == tmp_path.resolve()


def test_an_empty_entry_names_nothing(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}/other{os.pathsep}")
    path.insert(0, f"{tmp_path}/other")
    leave_out_current_folder()
    assert os.environ["PYTHONPATH"] == f"{tmp_path}/other"
    assert sys.path == [f"{tmp_path}/other", LIBRARY, "/installed"]


def test_a_current_folder_that_was_deleted_is_no_fault(path, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    leave_out_current_folder()


def run(command, folder):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_started_as_a_module_the_command_imports_nothing_from_the_current_folder(tmp_path):
    folder = processes.plant(tmp_path / "sent", tmp_path / "mark")
    (folder / "steelyard.py").unlink()  # that `python -m steelyard` would run, whatever steelyard does
    run([sys.executable, "-m", "steelyard", "phantom", "--help"], folder)
    assert not (tmp_path / "mark").exists()


def test_figures_obey_no_settings_in_the_current_folder(run_folder, tmp_path):
    folder = processes.plant(tmp_path / "sent", tmp_path / "mark")
    run([COMMAND, "report", run_folder, "--out", "../report.html"], folder)
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_workers_import_nothing_from_the_current_folder(tmp_path):
    folder = processes.plant(tmp_path / "sent", tmp_path / "mark")
    for number in range(2):
        heads.write_subject(folder, str(number), seed=number)
    skip = ["--brain", "own", "--align", "skip", "--bias", "skip", "--normalise", "skip"]
    run([COMMAND, "preprocess", ".", "../out", "--workers", "2", *skip], folder)
    assert not (tmp_path / "mark").exists()
    assert len(list((tmp_path / "out").glob("figures/*.jpg"))) == 2


@pytest.mark.slow
def test_predict_and_phantom_import_nothing_from_a_run_that_somebody_sent(cohort, run_folder, tmp_path):
    sent = tmp_path / "sent"
    shutil.copytree(run_folder / "F50-T50" / "fold-0_repeat-0", sent)
    processes.plant(sent, tmp_path / "mark")
    skip = ["--brain", "skip", "--bias", "skip", "--normalise", "skip"]
    run([COMMAND, "predict", ".", cohort / "sub-0", cohort / "sub-1", "../out", "--workers", "2", *skip], sent)
    run([COMMAND, "phantom", "../heads", "--subjects", "2", "--workers", "2"], sent)
    assert not (tmp_path / "mark").exists()


@pytest.mark.slow
@pytest.mark.parametrize("more", [["--workers", "2"], ["--ray", "local", "--workers", "2"]])
def test_a_network_of_ones_own_needs_its_folder_named(more, cohort, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(
        "from steelyard.imaging.networks.paper import UNet\ndef make():\n    return UNet(width=4)\n"
    )
    command = [COMMAND, "experiment", "smoke", cohort, "out", "--methods", "F50-T50", "--availability", "2F", *more]
    command += ["--models", "own:make", "--test-folds", "0", "1"]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert refused.returncode == 2
    assert "own cannot be imported, No module named 'own'; is its folder in PYTHONPATH?" in refused.stderr
    monkeypatch.setenv("PYTHONPATH", ".")
    run(command, tmp_path)
