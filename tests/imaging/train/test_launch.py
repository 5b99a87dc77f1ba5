"""What a run learns from, before its first step."""

from dataclasses import replace

import torch
from lightning.fabric import Fabric

from steelyard.experiments.configs import smoke
from steelyard.imaging.runs.mask_shift import MaskShift
from steelyard.imaging.runs.split import split_subjects
from steelyard.imaging.train.launch import TrainingJob, prepare_training


def prepared(labelled, out, **settings):
    split = split_subjects(labelled.subjects, folds=6, seed=2)
    job = TrainingJob(config=replace(smoke(), **settings), split=split, slices=labelled, out=out)
    return prepare_training(job, Fabric(accelerator="cpu", devices=1))


def test_masks_of_the_named_domain_alone_are_shifted_to_learn_from(labelled, tmp_path):
    before = {domain: slices.masks.clone() for domain, slices in labelled.domains.items()}
    shift = MaskShift(domains=("flair",), pixels=3)
    _, *right = prepared(labelled, tmp_path)
    _, *wrong = prepared(labelled, tmp_path, mask_shift=shift)
    for true_slices, shifted_slices in zip(right, wrong, strict=True):  # training, then validation
        assert not torch.equal(true_slices["flair"].masks, shifted_slices["flair"].masks)
        assert torch.equal(true_slices["flair"].images, shifted_slices["flair"].images)
        assert torch.equal(true_slices["t1"].masks, shifted_slices["t1"].masks)
    for domain, slices in labelled.domains.items():
        assert torch.equal(slices.masks, before[domain])


def test_all_methods_of_a_seed_learn_from_the_same_wrong_masks(labelled, tmp_path):
    shift = MaskShift(domains=("t1",), pixels=3)
    masks = []
    for method, seed in (("equal", 0), ("conservative-25", 0), ("t1-only", 0), ("equal", 1)):
        _, train_slices, _ = prepared(labelled, tmp_path, mask_shift=shift, method=method, seed=seed)
        masks.append(train_slices["t1"].masks)
    assert torch.equal(masks[0], masks[1])
    assert torch.equal(masks[0], masks[2])
    assert not torch.equal(masks[0], masks[3])


def test_evidence_alone_is_judged_by_soft_dice(labelled, tmp_path):
    judges = {}
    for method in ("evidence", "evidence+first-order", "greedy-25", "shift-conservative", "equal"):
        training_state, _, _ = prepared(labelled, tmp_path, method=method)
        judges[method] = training_state.balancer.domain_losses.have_judge
    assert [method for method, has_judge in judges.items() if has_judge] == ["evidence", "evidence+first-order"]
