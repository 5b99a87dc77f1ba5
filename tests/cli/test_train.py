import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import heads
import networks_by_hand
import processes
from steelyard.cli import main
from steelyard.experiments.run_evaluation import Judging, prepare_evaluation
from steelyard.imaging.predict import load_trained_network


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    root = tmp_path_factory.mktemp("cohort")
    for number in range(5):
        heads.write_subject(root, f"{number}", seed=number)
    return root


def smoke(cohort, run, *more):
    return ["train", str(cohort), str(run), "--experiment", "smoke", *more]


def weights(run):
    return (run / "last.safetensors").read_bytes(), (run / "steps.csv").read_bytes(), (run / "epochs.csv").read_bytes()


def rows(path):
    with path.open() as stream:
        return list(csv.DictReader(stream))


def test_train_and_evaluate_on_both_domains(cohort, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(smoke(cohort, run, "--method", "conservative-25", "--tensorboard")) == 0
    told = capsys.readouterr().err
    assert "conservative-25, unet of width 4: 3 subjects to train, 1 to validate, 1 to test" in told
    assert "epoch 2: validation flair" in told
    assert list((run / "tensorboard").glob("events*"))
    assert main(["evaluate", str(run), str(cohort)]) == 0
    shown = capsys.readouterr()
    assert "HD95" in shown.out
    held = rows(run / "metrics.csv")
    assert [(row["domain"], row["part"]) for row in held] == [("flair", "test"), ("t1", "test")]
    assert {"dsc", "auc", "average_precision", "ppv", "tpr", "fpr", "brier", "hd95", "lesion_f1"} <= set(held[0])


def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(cohort, tmp_path):
    settings = ("--method", "greedy-25", "--epochs", "6")
    assert main(smoke(cohort, tmp_path / "whole", *settings)) == 0
    run = tmp_path / "killed"
    command = [sys.executable, "-m", "steelyard", *smoke(cohort, run, *settings)]
    for kill in range(20):
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"}) as process:
            before = (run / "checkpoint.pt").stat().st_mtime_ns if (run / "checkpoint.pt").exists() else 0
            while process.poll() is None:
                path = run / "checkpoint.pt"
                if kill < 2 and path.exists() and path.stat().st_mtime_ns > before:
                    process.send_signal(signal.SIGKILL)
                    break
                time.sleep(0.002)
        if (run / "finished.json").exists():
            break
    assert kill >= 2
    assert weights(run) == weights(tmp_path / "whole")


def test_another_dataset_with_the_same_names_is_evaluated_whole(cohort, tmp_path, capsys):
    run = tmp_path / "run"
    main(smoke(cohort, run))
    other = tmp_path / "all"
    for number in range(2):
        heads.write_subject(other, f"{number}", seed=10 + number, contrasts=("t1",) if number else ("flair", "t1"))
    assert main(["evaluate", str(run), str(other)]) == 0
    assert not (run / "metrics-all.csv").exists()  # that is everyone of the run's own dataset
    (path,) = run.glob("metrics-all-*.csv")
    held = rows(path)
    assert [(row["subject"], row["domain"], row["part"]) for row in held] == [
        ("sub-0", "flair", "unseen"),
        ("sub-0", "t1", "unseen"),
        ("sub-1", "t1", "unseen"),
    ]


def test_a_subject_that_was_trained_on_is_known_under_another_name(cohort, tmp_path, capsys):
    run = tmp_path / "run"
    main(smoke(cohort, run))
    split = json.loads((run / "split.json").read_text())["split"]
    trained = split["train"][0].removeprefix("sub-")
    heads.write_subject(tmp_path / "renamed", "stranger", seed=int(trained))
    assert main(["evaluate", str(run), str(tmp_path / "renamed")]) == 2
    assert "--subjects all takes everyone" in capsys.readouterr().err
    assert main(["evaluate", str(run), str(tmp_path / "renamed"), "--subjects", "all"]) == 0
    assert {row["part"] for row in rows(run / "metrics-all.csv")} == {"train"}


def test_two_processes_share_every_batch(cohort, tmp_path):
    run = tmp_path / "run"
    folder = processes.plant(tmp_path / "folder", tmp_path / "mark")
    command = [Path(sys.executable).with_name("steelyard")]
    command += smoke(cohort, run, "--devices", "2", "--method", "conservative-25")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "mark").exists()  # of a module in the current folder
    assert main(smoke(cohort, tmp_path / "one", "--method", "conservative-25")) == 0
    shared, alone = (rows(folder / "steps.csv") for folder in (run, tmp_path / "one"))
    assert len(shared) == len(alone)
    assert shared[0]["loss_flair"] != alone[0]["loss_flair"]
    environment = json.loads((run / "environment.json").read_text())
    assert environment["accelerators"] == [{"kind": "cpu", "devices": 2}]
    assert main(["evaluate", str(run), str(cohort)]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--experiment", "thesis"],
            "one of paper, standard, desk, glioma, demo, smoke; got 'thesis'",
        ),
        (["--method", "Ours"], "method must be of the form"),
        (["--set", "slices.frame.shape=[60,60]"], "model unet cannot take planes of 60×60 pixels"),
        (["--accelerator", "cuda"], "accelerator cuda: 1 needed, and this machine has 0; with --accelerator cpu"),
        (["--split-seed", "-3"], "the seed of the split must lie within"),
        (["--folds", "9"], "9 folds need at least as many subjects with lesion masks; there are 5"),
        (["--set", "colour=red"], "--set takes NAME=VALUE with the name of a setting; got 'colour=red'"),
        (["--set", "learning_rate=fast"], "learning_rate must be a number"),
        (["--model", "nothing:here"], "nothing cannot be imported"),
        (["--model", "nothing:here", "--devices", "2", "--set", "batch_size=4"], "nothing cannot be imported"),
        (["--model", "monai:UNet"], "model monai:UNet"),
        (["--devices", "0"], "devices must be a whole number within 1 to 256"),
        (["--devices", "99999"], "devices must be a whole number within 1 to 256; got 99999"),
        (["--threads", "99999"], "threads must be a whole number within 1 to 256; got 99999"),
        (["--set", "threads=257"], "threads must be a whole number within 1 to 256; got 257"),
        (["--method", "equal", "--set", 'domains=["flair","t2"]'], "no subject has both a t2 scan and a lesion mask"),
    ],
)
def test_bad_arguments_get_one_line(cohort, tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert main(smoke(cohort, tmp_path / "run", *arguments)) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in error
    assert not (tmp_path / "run").exists()


def test_a_start_that_failed_does_not_stand_in_the_way(cohort, tmp_path, capsys):
    run = tmp_path / "run"
    command = smoke(cohort, run, "--model", "monai:UNet", "--tensorboard")
    for devices in ("1", "2"):
        assert main([*command, "--devices", devices]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.endswith("needs channels and strides; add --set options.channels=VALUE options.strides=VALUE.")
        assert not run.exists()
    options = ("--set", "options.channels=[4,8]", "options.strides=[2]")
    exploding = ("learning_rate=1e30", "optimizer=sgd", "schedule=plateau")
    assert main([*command, *options, *exploding]) == 2
    assert json.loads((run / "config.json").read_text())["optimizer"] == "sgd"
    assert main([*command, *options]) == 0
    assert json.loads((run / "config.json").read_text())["optimizer"] == "adamw"


def test_a_scores_table_replaces_its_like_only(cohort, tmp_path, capsys):
    run, out = tmp_path / "run", tmp_path / "thesis.csv"
    main(smoke(cohort, run, "--tensorboard"))
    for path in (out, run / "metrics.csv"):
        path.write_text("chapter,words\n")
        assert main(["evaluate", str(run), str(cohort), *(["--out", str(out)] if path == out else [])]) == 2
        assert "exists and was not written by this command; remove it or name another" in capsys.readouterr().err
        assert path.read_text() == "chapter,words\n"
        path.unlink()
    for _ in range(2):
        assert main(["evaluate", str(run), str(cohort), "--out", str(out)]) == 0
    assert len(rows(out)) == 2


def test_logs_do_not_leave_through_a_link(cohort, tmp_path, capsys):
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    for folder in (run, elsewhere):
        folder.mkdir()
    (run / "tensorboard").symlink_to(elsewhere)
    assert main(smoke(cohort, run, "--tensorboard")) == 2
    assert "tensorboard: is a link" in capsys.readouterr().err
    assert not list(elsewhere.iterdir())


def test_data_that_cannot_be_learned_from_gets_one_line(tmp_path, capsys):
    lone = tmp_path / "lone"
    heads.write_subject(lone, "1")
    assert main(smoke(lone, tmp_path / "run")) == 2
    assert "at least 2 subjects are needed to train and test; there are 1" in capsys.readouterr().err
    unlabelled = tmp_path / "unlabelled"
    heads.write_subject(unlabelled, "1")
    for mask in unlabelled.rglob("*WMH_mask.nii.gz"):
        mask.unlink()
    assert main(smoke(unlabelled, tmp_path / "run")) == 2
    assert "no subject has a lesion mask" in capsys.readouterr().err
    flair = tmp_path / "flair"
    for number in range(5):
        heads.write_subject(flair, f"{number}", contrasts=("flair",))
    assert main(smoke(flair, tmp_path / "run")) == 2
    assert "no subject has both a t1 scan and a lesion mask" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "nowhere"), str(flair)]) == 2
    assert "config.json: there is no such file; this is not a run folder" in capsys.readouterr().err


def test_the_next_command_is_named(cohort, tmp_path, capsys):
    raw, empty = tmp_path / "raw", tmp_path / "empty"
    shutil.copytree(cohort, raw)
    for mask in raw.rglob("*brain_mask.nii.gz"):  # heads that are not stripped
        mask.unlink()
    empty.mkdir()
    run = str(networks_by_hand.write_run(tmp_path / "by_hand"))
    first, train_first = "Run `steelyard preprocess BIDS OUT` first", "`steelyard train` makes one"
    for arguments, advice in (
        (smoke(raw, tmp_path / "run"), first),
        (smoke(empty, tmp_path / "run"), first),
        (smoke(tmp_path / "nowhere", tmp_path / "run"), first),
        (["evaluate", run, str(raw)], first),
        (["experiment", "smoke", str(raw), str(tmp_path / "out")], first),
        (["profile", str(raw), "--experiment", "smoke"], first),
        (["evaluate", str(cohort), run], train_first),
        (["predict", str(cohort), str(cohort), str(tmp_path / "out")], train_first),
        (["predict", str(tmp_path / "nowhere"), str(cohort), str(tmp_path / "out")], train_first),
        (["export", str(cohort), str(tmp_path / "x.onnx")], train_first),
        (["report", str(cohort), "--out", str(tmp_path / "x.html")], train_first),
        (["agreement", str(cohort), str(cohort)], "`steelyard experiment` makes such a folder"),
    ):
        assert main(arguments) == 2
        assert advice in capsys.readouterr().err.splitlines()[-1]


def test_a_network_runs_on_the_accelerator_that_is_named(cohort, tmp_path, monkeypatch):
    run = networks_by_hand.write_run(tmp_path / "by_hand")
    named = []

    def choose(name):
        named.append(name)
        return "meta"  # a device of torch that every machine has; it holds no numbers

    for module in ("experiments.run_evaluation", "imaging.predict.trained_network"):
        monkeypatch.setattr(f"steelyard.{module}.choose_accelerator", choose)
    judging = Judging(accelerator="cuda")
    networks = [prepare_evaluation(run, cohort, judging, out=None, model=None).network]
    networks.append(load_trained_network(run, accelerator="mps").network)
    assert [next(network.parameters()).device.type for network in networks] == ["meta", "meta"]
    assert named == ["cuda", "mps"]


def test_an_accelerator_that_is_missing_is_named_at_once(cohort, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    run, out = str(networks_by_hand.write_run(tmp_path / "by_hand")), str(tmp_path / "out")
    for command in (["train", "nowhere", out], ["evaluate", run, str(cohort)], ["predict", run, str(cohort), out]):
        assert main([*command, "--accelerator", "cuda"]) == 2
        assert "accelerator cuda: 1 needed, and this machine has 0" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_loss_that_explodes_stops_and_keeps_the_last_good_weights(cohort, tmp_path, capsys):
    run = tmp_path / "run"
    exploding = ("--set", "learning_rate=1e30", "optimizer=sgd", "schedule=plateau", "--epochs", "9")
    assert main(smoke(cohort, run, *exploding)) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "is nan" in error
    assert "epoch" in error
    assert "are kept" in error
