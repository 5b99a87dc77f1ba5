"""BERT and GPT-2 of transformers: a batch as a tokenizer gives it, one line of `forward=`, and cheap votes."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

import steelyard as sy

transformers = pytest.importorskip("transformers")
DOMAINS = ("news", "mail", "code")
WEIGHTS = [0.2, 0.3, 0.5]


def bert(dropout, attention="sdpa"):
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=3,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        attn_implementation=attention,
    )
    return transformers.BertForSequenceClassification(config).train()


def gpt2(dropout, attention="sdpa"):
    config = transformers.GPT2Config(
        vocab_size=50,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=16,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation=attention,
    )
    return transformers.GPT2LMHeadModel(config).train()


def logits(model, samples):
    return model(samples["input_ids"], attention_mask=samples["attention_mask"]).logits


def class_loss(outputs, samples):
    return cross_entropy(outputs, samples["labels"])


def next_token_loss(outputs, samples):
    return cross_entropy(outputs[:, :-1].flatten(0, 1), samples["labels"][:, 1:].flatten())


SETTINGS = {"bert": (bert, class_loss), "gpt2": (gpt2, next_token_loss)}
every_model = pytest.mark.parametrize("name", SETTINGS)


def batch(name, *, seed=0, size=4, encoding=True):
    generator = torch.Generator().manual_seed(seed)
    samples = {}
    for domain in DOMAINS:
        tokens = torch.randint(50, (size, 8), generator=generator)
        mask = torch.ones_like(tokens)
        mask[-1, 5:] = 0  # padding
        labels = tokens if name == "gpt2" else torch.randint(3, (size,), generator=generator)
        values = {"input_ids": tokens, "attention_mask": mask, "labels": labels}
        samples[domain] = transformers.BatchEncoding(values) if encoding else values
    return samples


def parts(name, dropout, **kwargs):
    """A model, its loss, and an optimizer."""
    make, loss = SETTINGS[name]
    torch.manual_seed(1)
    model = make(dropout, **kwargs)
    return model, loss, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def balancer(loss, probe=None):
    return sy.Balancer(DOMAINS, forward=logits, loss=loss, weighting=sy.Fixed(WEIGHTS), probe=probe)


def plain_loss(model, loss, samples):
    """As a loop of one's own has it: each domain by itself."""
    return sum(w * loss(logits(model, values), values) for w, values in zip(WEIGHTS, samples.values(), strict=True))


def assert_same_gradients(loss, expected, model, other, **tolerances):
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    for gradient, expectation in zip(gradients, torch.autograd.grad(expected, list(other.parameters())), strict=True):
        torch.testing.assert_close(gradient, expectation, **tolerances)


@every_model
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("encoding", [True, False])
def test_gradients_of_a_shared_vote_are_a_plain_loops(name, attention, encoding):
    model, loss, optimizer = parts(name, 0.0, attention=attention)
    model, samples = model.double(), batch(name, encoding=encoding)
    judge = balancer(loss, sy.FirstOrder())
    for _ in range(2):
        weighted = judge(model, samples, optimizer)
        assert judge.probe.reuse.reason is None
        assert_same_gradients(weighted, plain_loss(model, loss, samples), model, model)


@every_model
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_with_dropout_gradients_and_generator_are_those_of_the_passes(name, attention):
    model, loss, optimizer = parts(name, 0.1, attention=attention)
    samples, judge = batch(name), balancer(loss, sy.FirstOrder())
    for step in range(2):
        torch.manual_seed(step)
        weighted = judge(model, samples, optimizer)
        state = torch.get_rng_state()
        assert judge.probe.reuse.reason is None
        torch.manual_seed(step)
        expected = 0.0
        for rows in (slice(0, 2), slice(2, 4)):
            halves = {}
            for domain, values in samples.items():
                halves[domain] = {key: value[rows] for key, value in values.items()}
            expected = expected + plain_loss(model, loss, halves) / 2
        assert torch.equal(torch.get_rng_state(), state)
        assert_same_gradients(weighted, expected, model, model, rtol=1e-4, atol=1e-6)


@every_model
def test_the_default_votes_on_every_step_and_resumes_identically(name):
    def run(stop):
        model, loss, optimizer = parts(name, 0.1)
        judge = sy.Balancer(DOMAINS, forward=logits, loss=loss)
        for step in range(4):
            if step == stop:
                states = copy.deepcopy([part.state_dict() for part in (model, optimizer, judge)])
                state = torch.get_rng_state()
                model, loss, optimizer = parts(name, 0.1)
                judge = sy.Balancer(DOMAINS, forward=logits, loss=loss)
                for part, saved in zip((model, optimizer, judge), states, strict=True):
                    part.load_state_dict(saved)
                torch.set_rng_state(state)
            optimizer.zero_grad()
            judge(model, batch(name, seed=step), optimizer).backward()
            optimizer.step()
        assert (type(judge.probe), judge.probe.every, judge.probe.reuse.reason) == (sy.FirstOrder, 1, None)
        return judge.weights, [value.tolist() for value in model.state_dict().values()]

    assert run(None) == run(2)


@every_model
def test_without_sharing_the_draws_of_training_are_a_plain_loops(name):
    results = []
    for probe in (None, sy.FirstOrder(reuse=False), sy.InnerLoop()):
        model, loss, optimizer = parts(name, 0.1)
        judge = balancer(loss, probe)
        for step in range(2):
            optimizer.zero_grad()
            judge(model, batch(name, seed=step), optimizer).backward()
            optimizer.step()
        results.append([*model.state_dict().values(), torch.get_rng_state()])
    for values in results[1:]:
        assert all(torch.equal(*pair) for pair in zip(values, results[0], strict=True))


@pytest.mark.parametrize("network", ["bert", "gpt2"])
def test_the_tasks_of_the_benchmark_share_their_votes(network):
    from steelyard.benchmark.tasks import make_task

    task = make_task(network, 3)
    small = {
        name: (inputs[:4, :16], targets[:4, :16] if network == "gpt2" else targets[:4])
        for name, (inputs, targets) in task.batch.items()
    }
    judge = sy.Balancer(tuple(small), loss=task.loss, forward=task.forward)
    state = torch.get_rng_state()
    judge(task.model, small, task.optimizer).backward()
    assert (judge.probe.every, judge.probe.reuse.reason) == (1, None)
    assert not torch.equal(torch.get_rng_state(), state)  # they have dropout
