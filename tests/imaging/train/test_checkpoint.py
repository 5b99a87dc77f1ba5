"""Checkpoints that a disk, a kill or a stranger has damaged."""

import io
import os
import pickle
import random
import zipfile
from dataclasses import replace
from threading import Timer

import pytest
import torch
from lightning.fabric import Fabric

from steelyard.errors import UserError
from steelyard.experiments.configs import smoke
from steelyard.imaging.runs.split import split_subjects
from steelyard.imaging.train.checkpoint import load_checkpoint
from steelyard.imaging.train.launch import TrainingJob, train
from steelyard.imaging.train.training_state import TrainingState

CONFIG = replace(smoke(), method="Ours-C-25", epochs=3)
DAMAGED, OTHER = "is damaged or no checkpoint; remove it", "is the checkpoint of something else; remove it"


@pytest.fixture(scope="module")
def stopped(labelled, tmp_path_factory):
    """The bytes of a checkpoint after one epoch, and how many steps an epoch has."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    split = split_subjects(labelled.subjects, folds=3)
    epochs = train(TrainingJob(config=CONFIG, split=split, slices=labelled, out=out))
    steps = len(next(epochs).steps)
    epochs.close()
    return (out / "checkpoint.pt").read_bytes(), steps


@pytest.fixture
def training_state(stopped):
    return TrainingState(CONFIG, Fabric(accelerator="cpu", devices=1), steps=stopped[1])


def refused(path, content, training_state):
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"checkpoint\.pt: is ") as caught:
        load_checkpoint(path, training_state)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def packed(state):
    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getvalue()


def test_a_whole_one_is_taken_over(stopped, training_state, tmp_path):
    (tmp_path / "checkpoint.pt").write_bytes(stopped[0])
    load_checkpoint(tmp_path / "checkpoint.pt", training_state)
    assert training_state.epoch == 1
    assert training_state.cycle.last_epoch == stopped[1]


def test_one_that_was_cut_is_refused(stopped, training_state, tmp_path):
    content = stopped[0]
    for size in (0, 1, 30, 1000, len(content) // 2, len(content) - 1):
        assert DAMAGED in refused(tmp_path / "checkpoint.pt", content[:size], training_state)


def test_a_pipe_is_refused_at_once(training_state, tmp_path):
    path = tmp_path / "checkpoint.pt"
    os.mkfifo(path)
    handle = os.open(path, os.O_RDWR)
    rescue = Timer(5, os.close, [handle])  # otherwise reading the pipe would never end
    rescue.start()
    with pytest.raises(UserError, match=DAMAGED) as caught:
        load_checkpoint(path, training_state)
    assert "Not a regular file" in str(caught.value.__cause__)
    rescue.cancel()
    os.close(handle)


def test_one_that_is_too_large_for_its_network_is_not_read(training_state, tmp_path):
    path = tmp_path / "checkpoint.pt"
    path.touch()
    os.truncate(path, 300_000_000)
    with pytest.raises(UserError, match=DAMAGED) as caught:
        load_checkpoint(path, training_state)
    assert "larger than" in str(caught.value.__cause__)


def test_flipped_bits_of_numbers_are_noticed(stopped, training_state, tmp_path):
    content = stopped[0]
    numbers = content.index(b"PK", 100_000)  # between two tensors, in the middle of them
    for place in (numbers + 500, numbers + 5_000):
        flipped = bytearray(content)
        flipped[place] ^= 64
        assert DAMAGED in refused(tmp_path / "checkpoint.pt", bytes(flipped), training_state)


def test_bytes_that_changed_anywhere_are_no_traceback(stopped, training_state, tmp_path):
    chance = random.Random(0)
    for _ in range(25):
        changed = bytearray(stopped[0])
        for _ in range(20):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        refused(tmp_path / "checkpoint.pt", bytes(changed), training_state)


@pytest.mark.parametrize(
    "other", [None, 3, "x", [], {}, [1, 2], torch.zeros(3), {"network": {}}, torch.nn.Linear(1, 1)], ids=str
)
def test_other_objects_are_refused(other, training_state, tmp_path):
    refused(tmp_path / "checkpoint.pt", packed(other), training_state)


def test_archives_and_pickles_of_others_are_refused_and_not_run(training_state, tmp_path):
    class Payload:
        def __reduce__(self):
            return tmp_path.joinpath("owned").touch, ()

    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Payload()))
        archive.writestr("archive/version", "3")
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(10**7))
    for content in (pickle.dumps(Payload()), stream.getvalue(), bomb.getvalue()):
        assert DAMAGED in refused(tmp_path / "checkpoint.pt", content, training_state)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["epoch"], "x"),
        (["epoch"], 99),
        (["epoch"], True),
        (["waited"], None),
        (["best"], "low"),
        (["network"], {}),
        (["network", "output.bias"], torch.zeros(2)),
        (["network", "output.bias"], torch.zeros(1, dtype=torch.complex64)),
        (["optimizer", "state", 3, "exp_avg"], "x"),
        (["optimizer", "state", 3, "exp_avg"], torch.zeros(2)),
        (["optimizer", "state", 3], {}),
        (["optimizer", "state", 999], {"step": 1, "exp_avg": 1, "exp_avg_sq": 1}),
        (["optimizer", "param_groups", 0, "lr"], "x"),
        (["optimizer", "param_groups", 0, "params", 1], -1),
        (["optimizer", "param_groups"], []),
        (["balancer", "weighting.votes"], torch.zeros(3)),
        (["balancer", "weighting.votes_cast"], None),
        (["cycle"], None),
        (["cycle", "total_steps"], 1),
        (["cycle", "last_epoch"], 10**9),
        (["cycle", "_schedule_phases", 1], float("nan")),
        (["cycle", "_last_lr"], "x"),
    ],
)
def test_values_of_another_form_are_refused(stopped, training_state, tmp_path, place, value):
    state = torch.load(io.BytesIO(stopped[0]), weights_only=True)
    entry = state
    for step in place[:-1]:
        entry = entry[step]
    entry[place[-1]] = value
    assert OTHER in refused(tmp_path / "checkpoint.pt", packed(state), training_state)
