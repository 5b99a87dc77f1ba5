"""What a step of the trainer does: the gradients of a plain loop, one vote, weights that stay until the next step."""

import copy

import pytest
import torch

pytest.importorskip("transformers")

import steelyard as sy
from steelyard.integrations.transformers import DomainTrainer, model_loss
from tiny_transformers import DOMAINS, arguments, encoder, labelled, language_model, pad, texts

BATCH = 12
RATE = 0.5


def trainer(model, folder, balancer, samples, **settings):
    collator = pad if "labels" in samples[0] and isinstance(samples[0]["labels"], list) else None
    settings = {"train_sampling_strategy": "sequential", "optim": "sgd", "learning_rate": RATE} | settings
    args = arguments(folder, **settings)
    return DomainTrainer(model, args, train_dataset=samples, data_collator=collator, balancer=balancer)


def equal():
    return sy.Balancer(DOMAINS, objective=model_loss, weighting=sy.Fixed())


def collated(samples):
    """The micro-batches of an epoch, in order, by domain."""
    batches = []
    for start in range(0, len(samples), BATCH):
        batch = {}
        for name in DOMAINS:
            part = [sample for sample in samples[start : start + BATCH] if sample["domain"] == name]
            if isinstance(part[0]["labels"], list):
                batch[name] = pad(part)
            else:
                batch[name] = {key: torch.tensor([s[key] for s in part]) for key in ("input_ids", "labels")}
        batches.append(batch)
    return batches


def plain_loop(model, samples, accumulation):
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    batches = collated(samples)
    for start in range(0, len(batches), accumulation):
        step = batches[start : start + accumulation]
        for batch in step:
            losses = [model(**samples).loss for samples in batch.values()]
            (sum(losses) / len(losses) / len(step)).backward()
        optimizer.step()
        optimizer.zero_grad()


def assert_same_parameters(model, other, **tolerance):
    for (name, parameter), expected in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


@pytest.mark.parametrize("accumulation", [1, 2, 4])
@pytest.mark.parametrize(("make_model", "samples"), [(encoder, labelled(72)), (language_model, texts(72))])
def test_equal_weights_give_the_parameters_of_a_plain_loop(tmp_path, make_model, samples, accumulation):
    model, plain = make_model(), make_model()
    start = copy.deepcopy(model)
    trainer(model, tmp_path, equal(), samples, gradient_accumulation_steps=accumulation).train()
    plain_loop(plain, samples, accumulation)  # of 6 batches, the last step of 4 has 2
    assert_same_parameters(model, plain, rtol=1e-4, atol=1e-5)
    moved = [(new - old).abs().max() for new, old in zip(model.parameters(), start.parameters(), strict=True)]
    assert max(moved) > 0.01  # so that half or twice the gradients would be seen


def test_older_versions_divide_by_the_accumulated_batches_as_well(tmp_path):
    model, plain = language_model(), language_model()
    training = trainer(model, tmp_path, equal(), texts(72), gradient_accumulation_steps=2)
    training.loss_is_scaled_for_ga = None  # they do not know this attribute
    training.train()
    plain_loop(plain, texts(72), 2)
    assert_same_parameters(model, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_one_vote_per_step_and_constant_weights_in_it(tmp_path, accumulation):
    balancer, reports = sy.Balancer(DOMAINS, objective=model_loss), []
    balancer.register_forward_hook(lambda module, *_: reports.append(module.last))
    settings = {"gradient_accumulation_steps": accumulation, "num_train_epochs": 2}
    trainer(encoder(), tmp_path, balancer, labelled(72), **settings).train()
    steps_per_epoch = -(-6 // accumulation)
    assert balancer.tally == {"updated": 2 * steps_per_epoch}
    assert len(reports) == 12
    assert reports[0].weights != reports[-1].weights
    for epoch in (reports[:6], reports[6:]):
        for start in range(0, 6, accumulation):
            first, *later = epoch[start : start + accumulation]
            assert first.outcome is sy.Outcome.UPDATED
            assert {report.outcome for report in later} <= {sy.Outcome.NOT_DUE}
            assert all(report.weights == first.weights for report in later)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(("make_model", "samples"), [(encoder, labelled(BATCH)), (language_model, texts(BATCH))])
def test_hypothetical_losses_equal_a_reference(tmp_path, make_model, samples, bf16):
    model = make_model()
    (batch,) = collated(samples)
    expected = reference(model, batch, bf16=bf16)
    weighting, probe = sy.DirichletVote(), sy.InnerLoop(step="optimizer", meta_test="step")
    balancer = sy.Balancer(DOMAINS, objective=model_loss, weighting=weighting, probe=probe)
    trainer(model, tmp_path, balancer, samples, optim="adamw_torch", bf16=bf16).train()
    tolerance = 1e-2 if bf16 else 1e-4  # bf16 has 8 bits of precision
    assert balancer.last.measured == pytest.approx(expected, rel=tolerance)
    assert max(expected.values()) - min(expected.values()) > 0.05


def reference(model, batch, *, bf16):
    """A real step of a real optimizer on a deep copy, from the first two samples of a domain; judged by the others."""
    losses = {}
    for name, samples in batch.items():
        replica = copy.deepcopy(model)
        optimizer = torch.optim.AdamW(replica.parameters(), lr=RATE, weight_decay=0.0)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss = replica(**{key: tensor[:2] for key, tensor in samples.items()}).loss
        loss.backward()
        optimizer.step()
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            others = [{key: tensor[2:] for key, tensor in part.items()} for part in batch.values()]
            losses[name] = sum(replica(**part).loss.item() for part in others)
    return losses


@pytest.mark.parametrize("probe", ["auto", sy.InnerLoop()])
def test_bf16_trains(tmp_path, probe):
    balancer = sy.Balancer(DOMAINS, objective=model_loss, probe=probe)
    training = trainer(language_model(0.1), tmp_path, balancer, texts(72), bf16=True, optim="adamw_torch")
    losses = [entry["loss"] for entry in training.train() and training.state.log_history if "loss" in entry]
    assert balancer.tally == {"updated": 6}
    assert all(torch.tensor(losses).isfinite())
    assert {parameter.dtype for parameter in training.model.parameters()} == {torch.float32}


def test_a_domain_without_targets_is_absent_and_does_not_spoil_the_loss(tmp_path):
    samples = texts(BATCH)
    for sample in samples:
        if sample["domain"] == "chat":
            sample["labels"] = [-100] * len(sample["labels"])
    balancer = sy.Balancer(DOMAINS, objective=model_loss)
    model = language_model()
    trainer(model, tmp_path, balancer, samples).train()
    assert set(balancer.last.losses) == {"news", "law"}
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_regression_targets_of_minus_100_are_targets(tmp_path):
    model = encoder()
    model.num_labels, model.config.num_labels, model.config.problem_type = 1, 1, "regression"
    model.classifier = torch.nn.Linear(16, 1)
    samples = [sample | {"labels": -100.0 if sample["domain"] == "law" else 1.0} for sample in labelled(BATCH)]
    balancer = equal()
    trainer(model, tmp_path, balancer, samples, learning_rate=1e-6).train()
    assert set(balancer.last.losses) == set(DOMAINS)


def test_settings_that_would_have_no_effect_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no effect here, because the balancer computes the loss"):
        trainer(encoder(), tmp_path, equal(), labelled(3), label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match="no effect here, because the balancer computes the loss"):
        DomainTrainer(encoder(), arguments(tmp_path), balancer=equal(), compute_loss_func=lambda *_, **__: None)


def test_several_gpus_in_one_process_are_refused(tmp_path):
    args = arguments(tmp_path)
    args._n_gpu = 2  # as TrainingArguments finds them
    with pytest.raises(ValueError, match="one process for each of the 2 GPUs"):
        DomainTrainer(encoder(), args, balancer=equal())


def test_another_trainer_can_be_extended(tmp_path):
    from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

    class Extended(DomainTrainer, Seq2SeqTrainer):
        pass

    args = Seq2SeqTrainingArguments(**arguments(tmp_path).to_dict() | {"eval_strategy": "epoch"})
    balancer = equal()
    extended = Extended(
        encoder(), args, train_dataset=labelled(12), eval_dataset=labelled(6, seed=1), balancer=balancer
    )
    extended.train()
    assert set(balancer.last.losses) == set(DOMAINS)
    assert "eval_loss_news" in extended.state.log_history[1]
