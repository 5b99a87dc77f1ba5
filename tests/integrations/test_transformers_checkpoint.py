"""A run that is interrupted and resumed equals one that is not, bit for bit."""

import shutil

import pytest
import torch

pytest.importorskip("transformers")

import steelyard as sy
from steelyard.integrations.transformers import STATE_FILE, DomainTrainer, model_loss
from tiny_transformers import DOMAINS, arguments, encoder, labelled


def trainer(folder, *, domains=DOMAINS, **settings):
    balancer = sy.Balancer(domains, objective=model_loss)
    settings = {"save_strategy": "steps", "save_steps": 5, "num_train_epochs": 2} | settings
    args = arguments(folder, gradient_accumulation_steps=2, logging_steps=5, **settings)
    return DomainTrainer(encoder(dropout=0.1), args, train_dataset=labelled(96), balancer=balancer)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of 8 steps; the checkpoint after the fifth is in the second epoch."""
    training = trainer(tmp_path_factory.mktemp("whole"))
    training.train()
    return training


@pytest.fixture
def checkpoint(whole, tmp_path):
    """A copy of the run's checkpoint, to be changed."""
    return shutil.copytree(f"{whole.args.output_dir}/checkpoint-5", tmp_path / "checkpoint-5")


def state(training):
    tensors = {f"model.{name}": tensor for name, tensor in training.model.state_dict().items()}
    return tensors | {f"balancer.{name}": tensor for name, tensor in training.balancer.state_dict().items()}


def test_a_resumed_run_equals_an_uninterrupted_one(whole, checkpoint, tmp_path):
    resumed = trainer(tmp_path)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert resumed.balancer.tally == whole.balancer.tally == {"updated": 8}
    assert resumed.balancer.weights == whole.balancer.weights
    expected = state(whole)
    for name, tensor in state(resumed).items():
        assert torch.equal(tensor, expected[name]), name
    last, expected_last = (training.state.log_history[-1] for training in (resumed, whole))
    assert last["step"] == expected_last["step"] == 8


def test_without_its_file_the_balancer_starts_anew_and_says_so(checkpoint, tmp_path):
    (checkpoint / STATE_FILE).unlink()
    resumed = trainer(tmp_path, save_strategy="no")
    with pytest.warns(UserWarning, match=r"balancer\.pt does not exist: the weights of the domains start anew"):
        resumed.train(resume_from_checkpoint=str(checkpoint))
    assert resumed.balancer.tally == {"updated": 3}


def test_a_checkpoint_of_other_domains_is_refused(checkpoint, tmp_path):
    with pytest.raises(ValueError, match="the checkpoint weighs the domains"):
        trainer(tmp_path, domains=("news", "chat", "jokes")).train(resume_from_checkpoint=str(checkpoint))


def test_a_checkpoint_of_the_model_alone_has_no_state(tmp_path):
    trainer(tmp_path, save_only_model=True, max_steps=1, save_steps=1).train()
    assert (tmp_path / "checkpoint-1" / "model.safetensors").is_file()
    assert not (tmp_path / "checkpoint-1" / STATE_FILE).exists()


def test_a_write_that_fails_leaves_no_part_of_a_file(whole, checkpoint, monkeypatch):
    before = (checkpoint / STATE_FILE).read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(ValueError, match=r"balancer\.pt: the disk is full"):
        whole._save_optimizer_and_scheduler(str(checkpoint))
    assert (checkpoint / STATE_FILE).read_bytes() == before
    assert not list(checkpoint.glob(".*"))
