"""What the trainer logs, and what an evaluation tells about each domain."""

import pytest
import torch

pytest.importorskip("transformers")

import steelyard as sy
from steelyard.integrations.transformers import DomainTrainer, MeanLosses, model_loss
from tiny_transformers import DOMAINS, arguments, encoder, labelled, language_model, pad, texts


class OneRank:
    """Stands for an accelerator of one process."""

    def reduce(self, tensor, reduction):
        assert reduction == "sum"
        return tensor


def trainer(folder, *, train=None, evaluate=None, model=None, collator=None, **settings):
    return DomainTrainer(
        encoder() if model is None else model,
        arguments(folder, **settings),
        train_dataset=labelled(72) if train is None else train,
        eval_dataset=evaluate,
        data_collator=collator,
        balancer=sy.Balancer(DOMAINS, objective=model_loss),
    )


def test_logs_of_training_have_losses_and_weights(tmp_path):
    training, reports = trainer(tmp_path, logging_steps=3, train_sampling_strategy="sequential"), []
    training.balancer.register_forward_hook(lambda module, *_: reports.append(module.last))
    training.train()
    first, second, last = training.state.log_history
    assert "train_loss" in last
    assert "weight/news" not in last
    for logs, of_these in ((first, reports[:3]), (second, reports[3:])):
        for name in DOMAINS:
            mean = sum(report.losses[name].item() for report in of_these) / 3  # of 4 samples in each batch
            assert logs[f"loss/{name}"] == pytest.approx(mean, rel=1e-5)
            assert logs[f"weight/{name}"] == of_these[-1].weights[name]
            assert f"share/{name}" in logs
        assert not any(name.startswith("transfer/") for name in logs)
        assert all(isinstance(number, int | float) for number in logs.values())
    weighted = sum(r.weights[name] * r.losses[name].item() for r in reports[:3] for name in DOMAINS) / 3
    assert first["loss"] == pytest.approx(weighted, rel=1e-4)


def test_a_domain_that_was_absent_has_no_loss_in_the_log(tmp_path):
    samples = [sample for sample in labelled(36) if sample["domain"] != "law"]
    training = trainer(tmp_path, train=samples, logging_steps=1, max_steps=1)
    training.train()
    logs = training.state.log_history[0]
    assert {name for name in logs if name.startswith("loss/")} == {"loss/news", "loss/chat"}
    assert "weight/law" in logs


@pytest.mark.parametrize("language", [False, True])
def test_an_evaluation_tells_the_loss_of_each_domain(tmp_path, language):
    samples, model, collator = labelled(21, seed=1), encoder(), None
    if language:
        samples, model, collator = texts(21, seed=1), language_model(), pad
    training = trainer(tmp_path, evaluate=samples, model=model, collator=collator, per_device_eval_batch_size=21)
    metrics = training.evaluate()
    for name in DOMAINS:
        part = [sample for sample in samples if sample["domain"] == name]
        batch = pad(part) if language else {k: torch.tensor([s[k] for s in part]) for k in ("input_ids", "labels")}
        with torch.no_grad():
            assert metrics[f"eval_loss_{name}"] == pytest.approx(model(**batch).loss.item(), rel=1e-4)
    plain = pad(samples) if language else {k: torch.tensor([s[k] for s in samples]) for k in ("input_ids", "labels")}
    with torch.no_grad():
        assert metrics["eval_loss"] == pytest.approx(model(**plain).loss.item(), rel=1e-4)


def test_evaluation_batches_count_by_their_samples(tmp_path):
    samples = labelled(21, seed=1)
    one_batch = trainer(tmp_path, evaluate=samples, per_device_eval_batch_size=21).evaluate()
    several = trainer(tmp_path, evaluate=samples, per_device_eval_batch_size=4).evaluate()
    for name in DOMAINS:
        assert several[f"eval_loss_{name}"] == pytest.approx(one_batch[f"eval_loss_{name}"], rel=1e-4)


def test_evaluations_leave_votes_and_weights_alone(tmp_path):
    training = trainer(tmp_path, evaluate=labelled(21, seed=1), eval_strategy="steps", eval_steps=2)
    training.train()
    assert training.balancer.tally == {"updated": 6}
    assert training.balancer.counters.batches == 6


def test_an_evaluation_without_domains_has_the_loss_of_all(tmp_path):
    samples = [{key: sample[key] for key in ("input_ids", "labels")} for sample in labelled(9)]
    metrics = trainer(tmp_path, evaluate=samples).evaluate()
    assert "eval_loss" in metrics
    assert not any(name.startswith("eval_loss_") for name in metrics)


def test_predictions_of_samples_without_labels(tmp_path):
    samples = [{key: sample[key] for key in ("input_ids", "domain")} for sample in labelled(9)]
    output = trainer(tmp_path).predict(samples)
    assert output.predictions.shape == (9, 2)
    assert not any("loss" in name for name in output.metrics)


def test_means_begin_anew_when_they_are_taken():
    losses = MeanLosses(DOMAINS, torch.device("cpu"))
    losses.add({"news": torch.tensor(1.0)}, {"news": torch.zeros(3)})
    losses.add({"news": torch.tensor(5.0), "law": torch.tensor(2.0)}, {"news": torch.zeros(1), "law": torch.zeros(2)})
    assert losses.take(OneRank()) == {"news": 2.0, "law": 2.0}
    assert losses.take(OneRank()) == {}
