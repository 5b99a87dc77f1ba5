"""nnU-Net's trainer with domains: the real package, on a tiny dataset in its own format."""

import copy
import json
import os
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

import steelyard as sy
from toys import reference_hypothetical_losses

pytest.importorskip("nnunetv2")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from nnunetv2.training.dataloading.nnunet_dataset import nnUNetDatasetBlosc2
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    from steelyard.integrations.nnunet import nnUNetTrainerDomains

PATCH = [16, 16, 16]
CASES = ["oslo_0", "oslo_1", "oslo_2", "rome_0", "rome_1", "rome_2"]
DATASET = {"channel_names": {"0": "MR"}, "labels": {"background": 0, "lesion": 1}, "numTraining": 6}
ARCHITECTURE = {
    "n_stages": 3,
    "features_per_stage": [4, 8, 8],
    "conv_op": "torch.nn.modules.conv.Conv3d",
    "kernel_sizes": 3 * [[3, 3, 3]],
    "strides": [[1, 1, 1], [2, 2, 2], [2, 2, 2]],
    "n_conv_per_stage": [1, 1, 1],
    "n_conv_per_stage_decoder": [1, 1],
    "conv_bias": True,
    "norm_op": "torch.nn.modules.instancenorm.InstanceNorm3d",
    "norm_op_kwargs": {"eps": 1e-5, "affine": True},
    "dropout_op": None,
    "dropout_op_kwargs": None,
    "nonlin": "torch.nn.LeakyReLU",
    "nonlin_kwargs": {"inplace": True},
}
CONFIGURATION = {
    "data_identifier": "plans_3d",
    "preprocessor_name": "DefaultPreprocessor",
    "batch_size": 2,
    "patch_size": PATCH,
    "spacing": [1.0, 1.0, 1.0],
    "normalization_schemes": ["ZScoreNormalization"],
    "use_mask_for_norm": [False],
    "batch_dice": False,
    "architecture": {
        "network_class_name": "dynamic_network_architectures.architectures.unet.PlainConvUNet",
        "arch_kwargs": ARCHITECTURE,
        "_kw_requires_import": ["conv_op", "norm_op", "dropout_op", "nonlin"],
    },
}
PLANS = {
    "dataset_name": "Dataset001_Tiny",
    "plans_name": "plans",
    "configurations": {"3d_fullres": CONFIGURATION},
    "label_manager": "LabelManager",
    "transpose_forward": [0, 1, 2],
    "transpose_backward": [0, 1, 2],
}


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """The folder of a preprocessed dataset."""
    for name in ("raw", "preprocessed", "results"):
        monkeypatch.setenv(f"nnUNet_{name}", str(tmp_path / name))
    monkeypatch.setenv("nnUNet_n_proc_DA", "0")
    base = tmp_path / "preprocessed" / "Dataset001_Tiny"
    (base / "plans_3d").mkdir(parents=True)
    generator = np.random.default_rng(0)
    for case in CASES:
        seg = np.zeros((1, 20, 20, 20), np.int16)
        corner = generator.integers(2, 10, 3)
        seg[(0, *(slice(start, start + 8) for start in corner))] = 1
        data = (seg + generator.normal(size=seg.shape)).astype(np.float32)
        locations = {1: np.argwhere(seg == 1)}
        file, shape = str(base / "plans_3d" / case), seg.shape
        nnUNetDatasetBlosc2.save_case(data, seg, {"class_locations": locations}, file, shape, shape, shape, shape)
    (base / "dataset.json").write_text(json.dumps(DATASET))
    (base / "dataset_fingerprint.json").write_text("{}")
    split = {"train": CASES[:2] + CASES[3:5], "val": CASES[2:3] + CASES[5:]}
    (base / "splits_final.json").write_text(json.dumps([split]))
    return base


def make_trainer(kind=nnUNetTrainerDomains):
    torch.manual_seed(0)
    plans = {**copy.deepcopy(PLANS), "continue_training": False}
    trainer = kind(plans, "3d_fullres", 0, copy.deepcopy(DATASET), device=torch.device("cpu"))
    trainer.initialize()
    return trainer


def make_batch(*keys, seed=0):
    """As nnU-Net's loaders make it: one target for each resolution."""
    generator = torch.Generator().manual_seed(seed)
    target = (torch.rand(len(keys), 1, *PATCH, generator=generator) > 0.8).to(torch.int16)
    data = target + torch.randn(target.shape, generator=generator)
    return {"data": data, "target": [target, target[..., ::2, ::2, ::2]], "keys": np.array(keys)}


PAIRS = [("oslo_0", "rome_0"), ("rome_1", "rome_0"), ("rome_1", "oslo_1"), ("oslo_0", "oslo_1")]


def train(trainer, steps):
    trainer.network.train()
    return [trainer.train_step(make_batch(*PAIRS[step % 4], seed=step))["loss"] for step in steps]


class Equal(nnUNetTrainerDomains):
    def make_balancer(self, domains):
        return sy.Balancer(domains, loss=self.loss, weighting=sy.Fixed())


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("size", [1, 1000])  # of the loss: large gradients are clipped
def test_equal_weights_train_as_nnunet_does(dataset, scaled, size):
    plain, equal = make_trainer(nnUNetTrainer), make_trainer(Equal)
    for trainer in (plain, equal):
        trainer.loss.weight_factors = tuple(size * factor for factor in trainer.loss.weight_factors)
        if scaled:  # as on a GPU
            trainer.grad_scaler = torch.amp.GradScaler("cpu")
    np.testing.assert_allclose(train(equal, range(4)), train(plain, range(4)), rtol=1e-4)
    for parameter, expected in zip(equal.network.parameters(), plain.network.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-3, atol=1e-5)


def test_votes_are_cast_on_gathered_samples(dataset):
    trainer = make_trainer()
    train(trainer, range(8))
    assert trainer.balancer.domains == ("oslo", "rome")
    tally = trainer.balancer.tally
    # A vote needs two samples of each domain: they are there in the third step, and again in the sixth.
    assert tally["updated"] + tally.get("a tie", 0) == 2
    assert int(trainer.balancer.transfer.count.max()) == 2


class Exact(nnUNetTrainerDomains):
    def make_balancer(self, domains):
        return sy.Balancer(domains, loss=self.loss, weighting=sy.DirichletVote(), probe=sy.InnerLoop())


def test_hypothetical_losses_equal_a_reference(dataset):
    """Four samples in a batch: each domain has one to step from and one to judge by, at two resolutions."""
    trainer = make_trainer(Exact)
    samples = make_batch("oslo_0", "rome_0", "oslo_1", "rome_1")
    halves = {}
    for name, (first, second) in {"oslo": (0, 2), "rome": (1, 3)}.items():
        halves[name] = tuple(
            (samples["data"][[row]], [target[[row]] for target in samples["target"]]) for row in (first, second)
        )
    trainer.network.train()
    expected = reference_hypothetical_losses(trainer.network, trainer.optimizer, halves, loss=trainer.loss)
    trainer.train_step(samples)
    assert trainer.balancer.last.measured == pytest.approx(expected, rel=1e-5)


def test_learned_weights_change_the_training(dataset):
    trainer = make_trainer()
    train(trainer, range(20))
    assert trainer.balancer.weights["oslo"] != pytest.approx(0.5, abs=1e-6)
    equal = make_trainer(Equal)
    train(equal, range(20))
    pairs = zip(trainer.network.parameters(), equal.network.parameters(), strict=True)
    assert not all(torch.equal(parameter, other) for parameter, other in pairs)


def test_a_resumed_training_equals_an_uninterrupted_one(dataset, tmp_path):
    whole, stopped, resumed = make_trainer(), make_trainer(), make_trainer()
    train(whole, range(10))
    train(stopped, range(5))  # one sample of oslo is waiting for another
    assert stopped.balancer.probe.gathering.kept
    file = str(tmp_path / "checkpoint.pth")
    stopped.save_checkpoint(file)
    assert [path.name for path in tmp_path.glob("checkpoint*")] == ["checkpoint.pth"]
    resumed.load_checkpoint(file)
    train(resumed, range(5, 10))
    assert resumed.balancer.tally == whole.balancer.tally
    assert resumed.balancer.weights == whole.balancer.weights
    for parameter, expected in zip(resumed.network.parameters(), whole.network.parameters(), strict=True):
        assert torch.equal(parameter, expected)


def test_a_checkpoint_of_another_trainer_is_refused(dataset, tmp_path):
    file = str(tmp_path / "checkpoint.pth")
    make_trainer(nnUNetTrainer).save_checkpoint(file)
    with pytest.raises(ValueError, match=r"checkpoint\.pth must be a checkpoint of nnUNetTrainerDomains"):
        make_trainer().load_checkpoint(file)


def test_no_checkpoint_where_checkpointing_is_disabled(dataset, tmp_path):
    trainer = make_trainer()
    trainer.disable_checkpointing = True
    trainer.save_checkpoint(str(tmp_path / "checkpoint.pth"))
    assert not list(tmp_path.glob("checkpoint*"))


def test_domains_by_file(dataset):
    (dataset / "domains.json").write_text(json.dumps({case: f"scanner {case[-1]}" for case in CASES}))
    assert make_trainer().balancer.domains == ("scanner 0", "scanner 1")
    (dataset / "domains.json").write_text(json.dumps({"oslo_0": "x"}))
    with pytest.raises(ValueError, match=r"must name the domain of every case; 'oslo_1' is missing"):
        make_trainer()
    (dataset / "domains.json").write_text("[]")
    with pytest.raises(ValueError, match="must map case to domain; got list"):
        make_trainer()


@pytest.mark.parametrize(
    ("domain_of", "message"),
    [
        (lambda self, case: "here", "all training cases are of the domain 'here'"),
        (lambda self, case: case, "each training case is a domain of its own, such as 'oslo_0'"),
    ],
)
def test_domains_that_cannot_be_meant(dataset, domain_of, message):
    kind = type("Other", (nnUNetTrainerDomains,), {"domain_of": domain_of})
    with pytest.raises(ValueError, match=f"{message}: put a domains.json beside dataset.json"):
        make_trainer(kind)


def test_several_gpus_are_refused(dataset):
    plans = {**copy.deepcopy(PLANS), "continue_training": False}
    trainer = nnUNetTrainerDomains(plans, "3d_fullres", 0, copy.deepcopy(DATASET), device=torch.device("cpu"))
    trainer.is_ddp = True
    with pytest.raises(ValueError, match="nnUNetTrainerDomains trains on one GPU"):
        trainer.initialize()


class Recorder:
    def __init__(self):
        self.values = {}

    def log(self, name, value, step):
        self.values[name] = value


def test_an_epoch_with_the_loaders_of_nnunet(dataset, capsys):
    trainer = make_trainer()
    recorder = Recorder()
    trainer.logger.loggers.append(recorder)
    trainer.on_train_start()
    trainer.on_train_epoch_start()
    outputs = [trainer.train_step(next(trainer.dataloader_train)) for _ in range(6)]
    trainer.on_train_epoch_end(outputs)
    trainer.current_epoch += 1
    trainer.on_train_end()
    assert all(np.isfinite(output["loss"]) for output in outputs)
    assert trainer.balancer.counters.batches == 6
    assert recorder.values["domains/weight/oslo"] == trainer.balancer.weights["oslo"]
    text = capsys.readouterr().out
    assert re.search(r"Training cases by domain: \{'oslo': 2, 'rome': 2\}", text)
    assert re.search(r"Weights of the domains: oslo \d\.\d{3}, rome \d\.\d{3}", text)
    assert str(trainer.balancer.audit()) in text


EXTERNAL = """
from steelyard.integrations.nnunet import nnUNetTrainerDomains


class nnUNetTrainerShort(nnUNetTrainerDomains):
    def initialize(self):
        self.num_epochs, self.num_iterations_per_epoch, self.num_val_iterations_per_epoch = 2, 4, 1
        super().initialize()
"""


@pytest.mark.framework
def test_the_commands_of_nnunet(tmp_path):
    """Plan, preprocess, train by the trainer's name, and predict, as in docs/nnunet.md."""
    nibabel = pytest.importorskip("nibabel")
    raw = tmp_path / "raw" / "Dataset001_Tiny"
    generator = np.random.default_rng(0)
    for case in CASES:
        labels = np.zeros((24, 24, 24), np.uint8)
        corner = generator.integers(2, 12, 3)
        labels[tuple(slice(start, start + 8) for start in corner)] = 1
        image = (2 * labels + generator.normal(size=labels.shape)).astype(np.float32)
        for folder, name, values in (("imagesTr", f"{case}_0000", image), ("labelsTr", case, labels)):
            (raw / folder).mkdir(parents=True, exist_ok=True)
            nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), raw / folder / f"{name}.nii.gz")
    (raw / "dataset.json").write_text(json.dumps({**DATASET, "file_ending": ".nii.gz"}))
    (tmp_path / "trainers").mkdir()
    (tmp_path / "trainers" / "short.py").write_text(EXTERNAL)
    # nnU-Net's search for a trainer by name imports its transformers too, and these timm, which asks for torchvision.
    for module in ("timm", "timm/layers", "timm/models", "timm/models/eva"):
        (tmp_path / module).mkdir()
        (tmp_path / module / "__init__.py").write_text("def __getattr__(name): return type(name, (), {})")
    environment = {**os.environ, "nnUNet_n_proc_DA": "1", "nnUNet_extTrainer": str(tmp_path / "trainers")}
    environment |= {f"nnUNet_{name}": str(tmp_path / name) for name in ("raw", "preprocessed", "results")}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])

    def run(module, entry, *arguments):
        code = f"from {module} import {entry}; {entry}()"
        subprocess.run([sys.executable, "-c", code, *arguments], env=environment, check=True, timeout=600)

    planning, training = "nnunetv2.experiment_planning.plan_and_preprocess_entrypoints", "nnunetv2.run.run_training"
    run(planning, "plan_and_preprocess_entry", "-d", "1", "-c", "3d_fullres", "-np", "1", "-npfp", "1")
    train_arguments = ("1", "3d_fullres", "0", "-tr", "nnUNetTrainerShort", "-device", "cpu")
    run(training, "run_training_entry", *train_arguments)
    results = tmp_path / "results" / "Dataset001_Tiny" / "nnUNetTrainerShort__nnUNetPlans__3d_fullres"
    checkpoint = torch.load(results / "fold_0" / "checkpoint_final.pth", weights_only=False)
    assert int(checkpoint["balancer"]["counters.presence"][0]) == 8  # steps
    (log,) = (results / "fold_0").glob("training_log_*.txt")
    assert "Weights of the domains: oslo 0." in log.read_text()
    images, out = str(raw / "imagesTr"), tmp_path / "predicted"
    which = ("-d", "1", "-c", "3d_fullres", "-f", "0", "-tr", "nnUNetTrainerShort", "-device", "cpu")
    run("nnunetv2.inference.predict_from_raw_data", "predict_entry_point", "-i", images, "-o", str(out), *which)
    assert {path.name for path in out.glob("*.nii.gz")} == {f"{case}.nii.gz" for case in CASES}
