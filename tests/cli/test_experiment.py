import csv
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import heads
import processes
from steelyard.cli import main

NARROW = ("--methods", "equal", "conservative-25", "--availability", "2F", "--test-folds", "0", "1")


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    root = tmp_path_factory.mktemp("cohort")
    for number in range(6):
        heads.write_subject(root, f"{number}", seed=number)
    return root


def experiment(cohort, out, *more):
    return ["experiment", "smoke", str(cohort), str(out), *NARROW, *more]


@pytest.fixture(scope="module")
def undisturbed(cohort, tmp_path_factory):
    """Four runs that one worker did in peace."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert main(experiment(cohort, out)) == 0
    return out


def rows(path):
    with path.open() as stream:
        return list(csv.DictReader(stream))


def stamps(out):
    return {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*") if path.is_file()}


def assert_same_bytes(out, undisturbed):
    """Results, design and every table."""
    tables = [path.relative_to(undisturbed) for path in (undisturbed / "tables").iterdir()]
    assert len(tables) > 5
    assert {path.name for path in (out / "tables").iterdir()} == {path.name for path in tables}
    for name in ("results.csv", "curves.csv.gz", "experiment.json", *tables):
        assert (out / name).read_bytes() == (undisturbed / name).read_bytes()


def children(process):
    """The workers of a running experiment; the tracker of shared resources is none."""
    try:
        found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        return [int(child) for child in found if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    except OSError:
        return []


def test_the_table_has_a_row_per_run_subject_and_domain(undisturbed):
    held = rows(undisturbed / "results.csv")
    assert len(held) == 4 * 2 * 2
    assert list(held[0])[:8] == ["model", "availability", "method", "fold", "repeat", "subject", "domain", "dsc"]
    runs = [(row["availability"], row["method"], row["fold"]) for row in held[::4]]
    assert runs == [("2F", method, fold) for method in ("equal", "conservative-25") for fold in ("0", "1")]
    timed = rows(undisturbed / "timings.csv")
    assert len(timed) == 4
    parts = ("seconds_per_step", "validation_seconds", "evaluation_seconds")
    assert all(float(row[part]) > 0 for row in timed for part in parts)
    assert len(json.loads((undisturbed / "experiment.json").read_text())["splits"]) == 3


def test_methods_are_paired(undisturbed):
    runs = undisturbed / "runs" / "unet-2F"
    for fold in ("fold-0_repeat-0", "fold-1_repeat-0"):
        fixed, learned = (runs / method / fold for method in ("equal", "conservative-25"))
        assert (fixed / "split.json").read_bytes() == (learned / "split.json").read_bytes()
        first = [rows(run / "steps.csv")[0] for run in (fixed, learned)]
        assert first[0]["loss_flair"] == first[1]["loss_flair"]
        assert first[0]["loss_t1"] == first[1]["loss_t1"]
        split = json.loads((fixed / "split.json").read_text())["split"]
        assert len(split["train"]) - len(split["withheld"]["flair"]) == 2


@pytest.mark.parametrize("kills", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_killed_again_and_again_it_comes_to_the_same_bytes(kills, cohort, undisturbed, tmp_path):
    out = tmp_path / "killed"
    folder = processes.plant(tmp_path / "folder", tmp_path / "mark")
    command = [Path(sys.executable).with_name("steelyard"), *experiment(cohort, out, "--workers", "2")]
    chance = random.Random(0)
    for kill in range(kills):
        before = stamps(out)
        with subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None and stamps(out) == before:
                time.sleep(0.005)
            time.sleep(chance.random() * 0.3)
            victims = children(process.pid) if kill == 1 else []
            for worker in victims[:1]:
                os.kill(worker, signal.SIGKILL)
                time.sleep(0.3)
            process.kill()
        assert process.returncode == -signal.SIGKILL
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert_same_bytes(out, undisturbed)
    assert not (out / "failures.csv").exists()
    assert not (tmp_path / "mark").exists()


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced_and_its_run_done(cohort, undisturbed, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "steelyard", *experiment(cohort, out)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not list((out / "runs").rglob("epochs.csv")):
            time.sleep(0.005)
        (worker,) = children(process.pid)
        os.kill(worker, signal.SIGKILL)
        assert process.wait(timeout=300) == 0
    assert_same_bytes(out, undisturbed)


def test_results_without_weights_still_have_tables_figures_and_a_page(cohort, undisturbed, tmp_path, capsys):
    """As they are kept in a repository: no weights, no record of steps."""
    out = tmp_path / "out"
    shutil.copytree(undisturbed, out)
    for path in [*out.rglob("*.safetensors"), *out.rglob("steps.csv"), *(out / "tables").iterdir()]:
        path.unlink()
    drawn = (out / "figures" / "trade_off_unet-2F.png").stat().st_mtime_ns
    assert main(experiment(cohort, out)) == 0
    for path in (undisturbed / "tables").iterdir():
        assert (out / "tables" / path.name).read_bytes() == path.read_bytes()
    page = (out / "report.html").read_text()
    assert "there are no weights" in page
    assert "Gain and cost, unet (2F)" in page
    assert (out / "figures" / "trade_off_unet-2F.png").stat().st_mtime_ns > drawn
    assert "what a step took: conservative-25" in capsys.readouterr().err


def test_the_report_command_makes_the_page_of_an_experiment_anew(cohort, undisturbed, tmp_path):
    assert main(["report", str(undisturbed), "--data", str(cohort), "--out", str(tmp_path / "page.html")]) == 0
    pages = [path.read_text() for path in (tmp_path / "page.html", undisturbed / "report.html")]
    # Gradients for a figure depend, in the last digit, on the number of threads.
    anew, before = (re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL) for page in pages)
    assert "Was learning the weights worth it?" in anew
    assert anew == before


def test_the_page_says_which_runs_are_not_in_its_tables(cohort, undisturbed, tmp_path):
    out = Path(shutil.copytree(undisturbed, tmp_path / "out"))
    results = (out / "results.csv").read_text().splitlines(keepends=True)
    (out / "results.csv").write_text("".join(line for line in results if ",conservative-25," not in line))
    next(out.glob("runs/*/conservative-25/*/metrics.csv")).unlink()
    assert main(["report", str(out), "--out", str(out / "page.html")]) == 0
    page = (out / "page.html").read_text()
    assert "not judged yet, and not here: 1;" in page
    assert "not in its tables and comparisons: 1;" in page


def test_a_table_of_ones_own_beside_runs_is_left_alone(undisturbed, tmp_path):
    out = Path(shutil.copytree(undisturbed, tmp_path / "out"))
    (out / "experiment.json").unlink()
    (out / "results.csv").write_text("mine\n1\n")
    assert main(["report", str(out), "--out", str(out / "page.html")]) == 0
    assert "One network for several domains" in (out / "page.html").read_text()


LIGHT = ("experiment.json", "results.csv", "curves.csv.gz")


def light_copy(undisturbed, out):
    """What a repository keeps of an experiment."""
    out.mkdir()
    for name in LIGHT:
        shutil.copy(undisturbed / name, out / name)
    return out


def test_runs_in_the_table_of_results_count_as_done_without_their_folders(cohort, undisturbed, tmp_path, capsys):
    out = light_copy(undisturbed, tmp_path / "out")
    assert main(experiment(cohort, out)) == 0
    assert "4 runs in all, 4 done, 0 to do" in capsys.readouterr().err
    assert_same_bytes(out, undisturbed)
    assert not (out / "runs").exists()
    assert "# Conclusion" in (out / "tables.md").read_text()
    assert (out / "figures.png").stat().st_size < 200_000


def test_a_run_that_is_not_in_the_table_is_added_to_the_others(cohort, undisturbed, tmp_path, capsys):
    out = light_copy(undisturbed, tmp_path / "out")
    whole = (out / "results.csv").read_text().splitlines(keepends=True)
    left = [line for line in whole if not line.startswith("unet,2F,conservative-25,1,")]
    (out / "results.csv").write_text("".join(left))
    assert len(left) == len(whole) - 4
    assert main(experiment(cohort, out)) == 0
    assert "4 runs in all, 3 done, 1 to do" in capsys.readouterr().err
    assert_same_bytes(out, undisturbed)
    assert [path.name for path in (out / "runs").glob("*/*/*")] == ["fold-1_repeat-0"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("--set", "epochs=3"), "experiment.json: the run there has epochs 2, not 3; give another folder"),
        (("--split-seed", "1"), "experiment.json: the run there has split_seed 0, not 1; give another folder"),
    ],
)
def test_a_light_folder_with_other_settings_is_refused(cohort, undisturbed, tmp_path, capsys, changes, message):
    out = light_copy(undisturbed, tmp_path / "out")
    assert main(experiment(cohort, out, *changes)) == 2
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in out.iterdir()) == sorted(LIGHT)


def test_a_light_folder_of_other_data_is_refused(undisturbed, tmp_path, capsys):
    out = light_copy(undisturbed, tmp_path / "out")
    for number in range(6):
        heads.write_subject(tmp_path / "others", f"{number}", seed=number + 9)
    assert main(experiment(tmp_path / "others", out)) == 2
    assert "experiment.json: the run there has another digests" in capsys.readouterr().err


@pytest.mark.parametrize("names", [("equal", "conservative-25"), ("F50-T50", "Ours-C-25")])
def test_what_is_done_is_not_done_again_by_either_name(cohort, undisturbed, capsys, names):
    before = stamps(undisturbed)
    assert main(experiment(cohort, undisturbed, "--methods", *names)) == 0
    assert "4 runs in all, 4 done, 0 to do" in capsys.readouterr().err
    assert stamps(undisturbed) == before


def test_a_failing_run_is_reported_and_the_rest_goes_on(cohort, undisturbed, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(undisturbed, out)
    bad = out / "runs" / "unet-2F" / "equal" / "fold-0_repeat-0"
    shutil.rmtree(bad)
    bad.mkdir()
    (bad / "diary.txt").write_text("not a run")
    unjudged = out / "runs" / "unet-2F" / "conservative-25" / "fold-1_repeat-0"
    (unjudged / "metrics.csv").unlink()
    trained = (unjudged / "last.safetensors").stat().st_mtime_ns
    assert main(experiment(cohort, out)) == 2
    error = capsys.readouterr().err
    assert "failed twice: unet 2F equal fold 0 repeat 0" in error
    (row,) = rows(out / "failures.csv")
    assert "is not empty and holds no run" in row["message"]
    assert (unjudged / "last.safetensors").stat().st_mtime_ns == trained
    whole = (undisturbed / "results.csv").read_text().splitlines()
    assert (out / "results.csv").read_text().splitlines() == [whole[0], *whole[5:]]
    assert main(experiment(cohort, out, "--methods", "conservative-25")) == 0
    assert rows(out / "failures.csv") == [row]


def tree(folder):
    """Everything in a folder, with its size and age; nothing if there is none."""
    found = [folder, *folder.rglob("*")] if folder.exists() else []
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def test_single_domain_methods_that_are_asked_for_are_run_with_the_networks_asked_for(cohort, tmp_path, capsys):
    asked = ("--methods", "flair-only", "--models", "lightweight", "--dry-run")
    assert main(["experiment", "smoke", str(cohort), str(tmp_path / "out"), *asked]) == 0
    assert "lightweight" in capsys.readouterr().err


def test_a_dry_run_tells_and_writes_nothing(cohort, undisturbed, tmp_path, capsys):
    new = tmp_path / "new"
    assert main(experiment(cohort, new, "--dry-run")) == 0
    told = capsys.readouterr().err
    assert "4 runs in all, 0 done, 4 to do" in told
    assert "unet 2F conservative-25: 2 runs of 4 steps, about" in told
    assert "with 1 workers of 1 threads, if no run stops early" in told
    assert not new.exists()
    out = shutil.copytree(undisturbed, tmp_path / "out")
    shutil.rmtree(out / "slices")
    before = tree(out)
    assert main(experiment(cohort, out, "--dry-run")) == 0
    assert "about 0:00:00 with 1 workers" in capsys.readouterr().err
    assert tree(out) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--accelerator", "cuda"), "accelerator cuda: "),
        (("--models", "monai:Nonsense"), "monai:Nonsense"),
    ],
)
def test_a_dry_run_says_in_one_line_what_the_experiment_cannot_use(cohort, tmp_path, capsys, arguments, message):
    if arguments[-1] == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has the accelerator")
    assert main(experiment(cohort, tmp_path / "out", "--dry-run", *arguments)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", [None, "thesis.tex"])
def test_a_dry_run_leaves_any_folder_as_it_is(cohort, tmp_path, capsys, name):
    if name is not None:
        (tmp_path / name).touch()
    before = tree(tmp_path)
    assert main(experiment(cohort, tmp_path, "--dry-run", "--methods", "equal")) == (0 if name is None else 2)
    assert ("is not empty and holds no experiment" in capsys.readouterr().err) == (name is not None)
    assert tree(tmp_path) == before


def test_a_dry_run_asks_the_cluster_for_its_size(cohort, undisturbed, monkeypatch, capsys):
    class Cluster:
        size = 7
        closed = False

        def __init__(self, address, *, workers, threads, accelerator):
            assert (address, workers, threads, accelerator) == ("auto", None, 1, "auto")

        def close(self):
            Cluster.closed = True

    monkeypatch.setattr("steelyard.experiments.experiment.RayExecutor", Cluster)
    assert main(experiment(cohort, undisturbed, "--dry-run", "--ray", "auto", "--accelerator", "auto")) == 0
    assert "with 7 workers" in capsys.readouterr().err
    assert Cluster.closed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "epochs=3"), "has epochs 2, not 3; give another folder"),
        (("--workers", "0"), "workers must be at least 1; got 0"),
        (("--workers", "999"), "999 workers of 1 threads need 999 cores"),
        (("--availability", "5F"), "availability 5F, fold 0: 5 of the training subjects"),
        (("--availability", "2T"), "only flair scans can be made scarce; write 2F"),
        (("--domains", "flair@A", "t1"), "participants.tsv: there is no such file"),
    ],
)
def test_bad_arguments_get_one_line(cohort, undisturbed, tmp_path, capsys, arguments, message):
    out = tmp_path / "out"
    if arguments[0] == "--set":
        shutil.copytree(undisturbed, out)
    assert main(experiment(cohort, out, *arguments)) == 2
    assert message in capsys.readouterr().err.strip().splitlines()[-1]


def test_the_number_of_folds_is_ones_own(cohort, tmp_path, capsys):
    wide = ["experiment", "smoke", str(cohort), str(tmp_path / "out"), "--methods", "equal", "--availability", "all"]
    assert main([*wide, "--folds", "2", "--dry-run"]) == 0
    assert "2 runs in all" in capsys.readouterr().err


def test_somebody_elses_folder_is_left_alone(cohort, tmp_path, capsys):
    (tmp_path / "thesis.tex").touch()
    assert main(experiment(cohort, tmp_path)) == 2
    assert "is not empty and holds no experiment" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_ray_cluster_comes_to_the_same_bytes(cohort, undisturbed, tmp_path):
    out = tmp_path / "out"
    folder = processes.plant(tmp_path / "folder", tmp_path / "mark")
    command = [Path(sys.executable).with_name("steelyard")]
    command += experiment(cohort, out, "--ray", "local", "--workers", "2")
    exposed, ports = [], 0
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            addresses, number = processes.open_ports([process.pid, *processes.descendants(process.pid)])
            exposed += addresses
            ports = max(ports, number)
            time.sleep(0.5)
        assert process.returncode == 0, process.stderr.read()
    assert not exposed
    assert ports >= 5  # of the driver, its two workers, and two parts of Ray at least
    assert not (tmp_path / "mark").exists()
    assert_same_bytes(out, undisturbed)
