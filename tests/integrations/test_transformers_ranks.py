"""Two processes with different data: equal weights and parameters on both after every step, gradients averaged."""

import pytest
import torch
from transformers import TrainerCallback

import ranks
import steelyard as sy
from steelyard.integrations.transformers import STATE_FILE, DomainTrainer, model_loss
from tiny_transformers import DOMAINS, arguments, encoder, labelled

BATCH, ACCUMULATION, RATE = 6, 2, 0.5
SAMPLES = 96  # 8 batches for each rank, 4 steps


class Recorder(TrainerCallback):
    """Keeps what a rank has after each step."""

    def __init__(self, balancer):
        self.balancer, self.records = balancer, []

    def on_step_end(self, args, state, control, model, **kwargs):
        parameters = [parameter.detach().clone() for parameter in model.parameters()]
        self.records.append((self.balancer.weights, parameters))


def trainer(folder, balancer, **settings):
    args = arguments(
        folder,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATION,
        train_sampling_strategy="sequential",
        optim="sgd",
        learning_rate=RATE,
        ddp_backend="gloo",
        per_device_eval_batch_size=12,  # one batch for each rank, and none that is filled with repeated samples
        **settings,
    )
    evaluation = labelled(24, seed=1)
    return DomainTrainer(encoder(), args, train_dataset=samples(), eval_dataset=evaluation, balancer=balancer)


def samples():
    """Ranks take batches in turn. Every fourth batch, which the second rank gets, lacks a domain."""
    drawn = labelled(SAMPLES)
    for number, sample in enumerate(drawn):
        if number // BATCH % 4 == 1 and sample["domain"] == "law":
            sample["domain"] = "chat"
    return drawn


def work(rank, folder):
    equal = sy.Balancer(DOMAINS, objective=model_loss, weighting=sy.Fixed())
    fixed = trainer(folder, equal)
    fixed.train()
    balancer = sy.Balancer(DOMAINS, objective=model_loss)
    learned = trainer(folder, balancer, save_strategy="steps", save_steps=2, logging_steps=4)
    recorder = Recorder(balancer)
    learned.add_callback(recorder)
    learned.train()
    metrics = learned.evaluate()
    resumed = trainer(folder, sy.Balancer(DOMAINS, objective=model_loss), logging_steps=4)
    resumed.train(resume_from_checkpoint=f"{folder}/checkpoint-2")
    return {
        "wrapper": type(learned.model_wrapped).__name__,
        "equal": [parameter.detach() for parameter in fixed.model.parameters()],
        "records": recorder.records,
        "tally": balancer.tally,
        "log": learned.state.log_history[0],
        "metrics": metrics,
        "resumed": [parameter.detach() for parameter in resumed.model.parameters()],
        "resumed weights": resumed.balancer.weights,
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return ranks.run(folder, work), folder


def test_ranks_agree_after_every_step(results):
    (first, second), _ = results
    assert first["wrapper"] == "DistributedDataParallel"
    assert first["tally"] == second["tally"] == {"updated": 4}
    for (weights, parameters), (other_weights, other_parameters) in zip(
        first["records"], second["records"], strict=True
    ):
        assert weights == other_weights
        assert all(map(torch.equal, parameters, other_parameters))
    assert first["records"][0][0] != first["records"][-1][0]


def test_equal_weights_give_the_parameters_of_a_plain_loop(results):
    (first, second), _ = results
    model = encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for start in range(0, SAMPLES, 2 * BATCH * ACCUMULATION):
        for batch in range(start, start + 2 * BATCH * ACCUMULATION, BATCH):
            for name in DOMAINS:
                part = [sample for sample in samples()[batch : batch + BATCH] if sample["domain"] == name]
                if part:  # an absent domain adds nothing
                    inputs = {key: torch.tensor([s[key] for s in part]) for key in ("input_ids", "labels")}
                    (model(**inputs).loss / 3 / ACCUMULATION / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    for parameter, learned, other in zip(model.parameters(), first["equal"], second["equal"], strict=True):
        torch.testing.assert_close(learned, parameter, rtol=1e-4, atol=1e-5)
        assert torch.equal(learned, other)


def test_logs_and_evaluations_are_of_all_ranks(results):
    (first, second), _ = results
    for name in DOMAINS:
        assert first["log"][f"loss/{name}"] == second["log"][f"loss/{name}"]
        assert first["metrics"][f"eval_loss_{name}"] == second["metrics"][f"eval_loss_{name}"]
    mean = sum(first["metrics"][f"eval_loss_{name}"] for name in DOMAINS) / 3  # 8 samples of each
    assert first["metrics"]["eval_loss"] == pytest.approx(mean, rel=1e-4)


def test_one_rank_writes_and_all_resume(results):
    (first, second), folder = results
    state = torch.load(folder / "checkpoint-2" / STATE_FILE, weights_only=True)
    assert len(state) > 3
    weights, parameters = first["records"][-1]
    assert first["resumed weights"] == second["resumed weights"] == weights
    assert all(map(torch.equal, first["resumed"], parameters))
