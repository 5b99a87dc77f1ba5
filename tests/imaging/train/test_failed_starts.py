"""What a start that failed leaves in a run folder is replaced; anything that was trained is not."""

from dataclasses import replace

import pytest

from steelyard.errors import UserError
from steelyard.experiments.configs import smoke
from steelyard.imaging.runs.split import split_subjects
from steelyard.imaging.train import run_writer
from steelyard.imaging.train.launch import TrainingJob, train


@pytest.fixture
def job(labelled, tmp_path):
    split = split_subjects(labelled.subjects, folds=3)
    config = replace(smoke(), method="conservative-25", epochs=2)
    return TrainingJob(config=config, split=split, slices=labelled, out=tmp_path / "run")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "environment.json"}


def fail_at_the_first_step(job):
    """Start a run whose loss is not a number from the first step on."""
    exploding = replace(job.config, learning_rate=1e30, optimizer="sgd", schedule="plateau")
    with pytest.raises(UserError, match="is nan"):
        list(train(replace(job, config=exploding)))


def test_what_a_failed_start_left_is_replaced(job, tmp_path):
    fresh = replace(job, out=tmp_path / "fresh")
    list(train(fresh))
    fail_at_the_first_step(job)
    assert (job.out / "config.json").exists()
    list(train(job))
    assert contents(job.out) == contents(fresh.out)


@pytest.mark.parametrize("name", ["last.safetensors", "environment.json", "split.json"])
def test_a_kill_while_a_failed_start_is_replaced_does_no_harm(job, monkeypatch, name):
    fail_at_the_first_step(job)
    remove = run_writer.remove

    def killed(path):
        if path.name == name:
            raise KeyboardInterrupt
        remove(path)

    monkeypatch.setattr(run_writer, "remove", killed)
    with pytest.raises(KeyboardInterrupt):
        list(train(job))
    monkeypatch.undo()
    assert [record.epoch for record in train(job)] == [0, 1]


@pytest.mark.parametrize(
    "evidence", ["epochs.csv", "checkpoint.pt", "finished.json", "best.safetensors", "metrics.csv"]
)
def test_a_run_with_a_trace_of_an_epoch_is_not_replaced(job, evidence):
    fail_at_the_first_step(job)
    (job.out / evidence).write_text("")
    with pytest.raises(UserError, match=r"the run there has .*; give another folder"):
        list(train(job))


def test_weights_that_came_without_tables_are_not_replaced(job):
    list(train(job))
    for path in job.out.iterdir():
        if path.name not in ("config.json", "last.safetensors"):
            path.unlink()
    with pytest.raises(UserError, match="the run there has seed 0, not 1"):
        list(train(replace(job, config=replace(job.config, seed=1))))


def test_a_config_of_another_program_is_not_replaced(job):
    job.out.mkdir()
    (job.out / "config.json").write_text('{"colour": "red"}')
    with pytest.raises(UserError, match=r"config.json: .* has no setting 'colour'"):
        list(train(job))
    assert (job.out / "config.json").read_text() == '{"colour": "red"}'
