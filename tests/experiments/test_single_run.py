import json
from dataclasses import replace

import pytest
import torch

import heads
from steelyard.errors import UserError
from steelyard.experiments.configs import smoke
from steelyard.experiments.single_run import SplitChoice, prepare_job, train_run
from steelyard.imaging.train.launch import train


@pytest.fixture
def stopped(tmp_path):
    """A run that was stopped after its first epoch."""
    for number in range(5):
        heads.write_subject(tmp_path / "cohort", f"{number}", seed=number)
    job = prepare_job(smoke(), tmp_path / "cohort", tmp_path / "run", SplitChoice(), cache=None)
    epochs = train(job)
    next(epochs)
    epochs.close()
    return job


def record(job, kind):
    """Say in the run folder that the last epoch was trained on another kind of device."""
    path = job.out / "environment.json"
    environment = json.loads(path.read_text())
    path.write_text(json.dumps(environment | {"accelerators": [{"kind": kind, "devices": 1}]}))


def kinds(job):
    return [entry["kind"] for entry in json.loads((job.out / "environment.json").read_text())["accelerators"]]


def test_a_run_of_the_cpu_stays_there_on_a_machine_with_a_gpu(stopped, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    train_run(stopped, list, accelerator="auto")
    assert (stopped.out / "finished.json").exists()
    assert kinds(stopped) == ["cpu"]


def test_a_run_of_a_gpu_is_not_resumed_elsewhere_unless_the_user_says_so(stopped, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    record(stopped, "cuda")
    with pytest.raises(
        UserError, match=r"run: was trained on cuda so far; .* with --accelerator cpu it runs on the CPU"
    ):
        train_run(stopped, list, accelerator="auto")
    train_run(stopped, list, accelerator="cpu")
    assert kinds(stopped) == ["cuda", "cpu"]
    record(stopped, "cuda")
    train_run(stopped, list, accelerator="auto")  # it is finished, so nothing is trained


@pytest.mark.parametrize("accelerators", [[], "cpu", ["cpu"], [{"kind": "toaster"}]])
def test_a_record_that_says_nothing_is_passed_over(stopped, accelerators):
    path = stopped.out / "environment.json"
    path.write_text(json.dumps({"accelerators": accelerators}))
    train_run(stopped, list, accelerator="auto")
    assert (stopped.out / "finished.json").exists()


def test_a_failed_start_binds_nobody_to_its_device(stopped, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    other = replace(stopped, out=stopped.out.with_name("other"))
    exploding = replace(other.config, learning_rate=1e30, optimizer="sgd", schedule="plateau")
    with pytest.raises(UserError, match="is nan"):
        train_run(replace(other, config=exploding), list, accelerator="cpu")
    record(other, "cuda")
    train_run(other, list, accelerator="auto")
    assert kinds(other) == ["cpu"]
