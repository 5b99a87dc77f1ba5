from dataclasses import replace

import pytest
import torch
from lightning.fabric import Fabric

from steelyard.errors import UserError
from steelyard.experiments.configs import smoke, standard
from steelyard.imaging.networks.paper import UNet, cross_entropy_minus_dice
from steelyard.imaging.runs.split import split_subjects
from steelyard.imaging.train.sampling import DomainSlices, draw_epoch
from steelyard.imaging.train.training import fit, steps_per_epoch
from steelyard.imaging.train.training_state import TrainingState


def pools(labelled, config):
    split = split_subjects(labelled.subjects, folds=6, seed=2)
    return labelled.part(split, "train", config.trained), labelled.part(split, "validate", config.trained)


def state_for(config, train):
    return TrainingState(config, Fabric(accelerator="cpu", devices=1), steps=steps_per_epoch(train, config))


def test_equal_weights_train_as_a_plain_loop_does_to_the_bit(labelled):
    config = replace(smoke(), optimizer="sgd", learning_rate=0.01, schedule="plateau", augmentation=None)
    train, validate = pools(labelled, config)
    training_state = state_for(config, train)
    list(fit(training_state, train, validate))
    torch.manual_seed(0)
    plain = UNet(width=4).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(2):
        generator = torch.Generator().manual_seed(epoch)
        for draw in draw_epoch(train, batch_size=8, mixing="balanced", generator=generator):
            batch = draw.gather(train)
            logits = plain(torch.cat([batch["flair"][0], batch["t1"][0]]).contiguous(memory_format=torch.channels_last))
            losses = [cross_entropy_minus_dice(logits[:4], batch["flair"][1])]
            losses += [cross_entropy_minus_dice(logits[4:], batch["t1"][1])]
            optimizer.zero_grad()
            (0.5 * losses[0] + 0.5 * losses[1]).backward()
            optimizer.step()
    for name, weight in plain.state_dict().items():
        assert torch.equal(weight, training_state.network.state_dict()[name]), name


@pytest.mark.parametrize(
    "method",
    [
        *("Ours-C-25", "Ours-G-25", "Simple-C", "F90-T10", "t1-only", "GroupDRO", "DWA", "UW", "FAMO"),
        *("evidence", "evidence+first-order", "log-loss", "dual-balancing"),
    ],
)
def test_every_method_trains_and_tells_what_each_step_did(labelled, method):
    config = replace(smoke(), method=method)
    train, validate = pools(labelled, config)
    records = list(fit(state_for(config, train), train, validate))
    assert [record.epoch for record in records] == [0, 1]
    steps = [step for record in records for step in record.steps]
    assert set(steps[0].losses) == set(config.trained)
    asked = method.startswith(("Ours", "Simple"))
    assert all((set(step.hypothetical) == {"flair", "t1"}) == asked for step in steps)
    assert all((step.vote in ("flair", "t1")) == method.startswith("Ours") for step in steps)
    assert set(records[0].validation) == set(config.trained)


def test_all_methods_of_a_seed_start_alike_and_see_the_same_batches(labelled):
    firsts = []
    for method in ("F50-T50", "F10-T90", "Ours-C-25"):
        config = replace(smoke(), method=method, epochs=1)
        train, validate = pools(labelled, config)
        firsts.append(next(fit(state_for(config, train), train, validate)).steps[0].losses)
    assert firsts[0] == firsts[1] == firsts[2]


def test_a_plateau_divides_the_rate_and_stops_and_negative_losses_count_as_better():
    config = replace(
        smoke(), schedule="plateau", optimizer="sgd", learning_rate=0.1, patience=2, stop_after=5, epochs=50
    )
    training_state = state_for(config, {"flair": _slices(), "t1": _slices()})
    assert training_state.finish_epoch(-0.5)
    assert training_state.finish_epoch(-0.50001)
    rates = []
    while not training_state.finished:
        assert not training_state.finish_epoch(-0.5)
        rates.append(training_state.learning_rate)
    assert rates == pytest.approx([0.1, 0.01, 0.01, 0.001, 0.001])
    assert training_state.best == -0.50001


def _slices(value=1.0):
    images = torch.full((8, 1, 16, 16), value)
    return DomainSlices(images, torch.ones_like(images), ("sub-1",) * 4 + ("sub-2",) * 4)


def test_a_loss_that_is_no_number_stops_with_step_and_batch_named():
    config = replace(smoke(), augmentation=None)
    pool = {"flair": _slices(), "t1": _slices(float("nan"))}
    with pytest.raises(UserError, match=r"step 0 of epoch 0: the loss of flair is nan .* t1: sub-1, sub-2.*are kept"):
        list(fit(state_for(config, pool), pool, {}))
    good = {"flair": _slices(), "t1": _slices()}
    with pytest.raises(UserError, match=r"epoch 0: the validation loss of sub-1 \(t1\) is nan"):
        list(fit(state_for(config, good), good, pool))


def test_a_network_learns_what_is_bright(labelled):
    config = replace(smoke(), width=8, method="flair-only", epochs=30, batch_size=4, learning_rate=0.02)
    config = replace(config, augmentation=None)
    train, validate = pools(labelled, config)
    records = list(fit(state_for(config, train), train, validate))
    assert records[-1].validation["flair"] < 0.1
    assert records[0].validation["flair"] > 0.6


def test_the_augmentation_costs_little_of_a_step():
    from time import perf_counter

    config = standard()
    network = UNet(width=16)
    images = torch.randn(8, 1, 128, 128)
    spent = {"change": [], "step": []}
    for _ in range(3):
        start = perf_counter()
        config.augmentation(images, images, generator=torch.Generator())
        spent["change"].append(perf_counter() - start)
        start = perf_counter()
        cross_entropy_minus_dice(network(images), (images > 2).float()).backward()
        spent["step"].append(perf_counter() - start)
    assert min(spent["change"]) < 0.1 * min(spent["step"])
