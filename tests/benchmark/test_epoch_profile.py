from dataclasses import replace

import pytest
import torch
from lightning.fabric import Fabric

from steelyard.benchmark.epoch_profile import PARTS, Stopwatch, profile_epoch
from steelyard.experiments.configs import smoke
from steelyard.imaging.networks.weights_file import load_weights
from steelyard.imaging.runs.split import Split
from steelyard.imaging.train import training
from steelyard.imaging.train.data import LabelledSlices
from steelyard.imaging.train.launch import TrainingJob, prepare_training
from steelyard.imaging.train.sampling import BatchIndices, DomainSlices
from steelyard.imaging.train.training import fit


def noise(seed):
    images = torch.randn(24, 1, 32, 32, generator=torch.Generator().manual_seed(seed))
    return DomainSlices(images, (images > 1).float(), ("s0",) * 16 + ("s1",) * 8)


def job(out, method):
    slices = LabelledSlices({"flair": noise(0), "t1": noise(1)}, {"s0": "0", "s1": "1"})
    config = replace(smoke(), method=method, batch_size=8)
    return TrainingJob(
        config=config, split=Split(train=("s0",), validate=("s1",), test=()), slices=slices, out=out / method
    )


def test_every_moment_belongs_to_the_innermost_part():
    times = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0])
    watch = Stopwatch(clock=lambda: next(times))
    with watch.part("forward"), pytest.raises(KeyError), watch.part("vote"):
        raise KeyError
    watch.add_time()
    assert {name: seconds for name, seconds in watch.seconds.items() if seconds} == {
        "other": 1.0 + 5.0,
        "forward": 2.0 + 4.0,
        "vote": 3.0,
    }


@pytest.mark.parametrize("method", ["Ours-C-25", "F50-T50"])
def test_the_parts_add_up_to_the_epoch_and_training_is_as_ever(tmp_path, method):
    given = job(tmp_path, method)
    before = BatchIndices.gather, training.augment_batch, training.validate_on, training.record_step
    profile = profile_epoch(given)
    assert (BatchIndices.gather, training.augment_batch, training.validate_on, training.record_step) == before
    assert profile.steps == 4
    assert list(profile.seconds) == list(PARTS)
    assert sum(profile.seconds.values()) == pytest.approx(profile.total, rel=0.02)
    idle = {name for name, seconds in profile.seconds.items() if seconds == 0}
    assert idle == (set() if method.startswith("Ours") else {"vote"})
    assert max(profile.seconds, key=profile.seconds.get) in ("vote", "forward", "backward", "validation", "records")
    training_state, learned, judged = prepare_training(given, Fabric(accelerator="cpu", devices=1))
    next(fit(training_state, learned, judged))
    plain = {name: tensor.clone() for name, tensor in training_state.network.state_dict().items()}
    load_weights(training_state.network, given.out / "last.safetensors")
    assert all(torch.equal(tensor, plain[name]) for name, tensor in training_state.network.state_dict().items())
