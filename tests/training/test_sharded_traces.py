"""A vote on a sharded model leaves no trace, in whatever state the model is; what cannot be measured is refused."""

import random

import pytest
import torch
from test_distributed_votes import run
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import mse_loss

import steelyard as sy
from toys import balancer, batch, take_step

NAMES = ("a", "b")


class Traced(nn.Module):
    """Batch statistics, dropout, a counter, and a mode that is not that of the whole."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3))
        self.frozen_norm = nn.BatchNorm1d(8).eval()
        self.last = nn.Linear(8, 1)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.last(self.frozen_norm(self.first(x))) + 0.01 * random.random()


def set_up(*, make=Traced, optimizer_class=torch.optim.AdamW, **settings):
    torch.manual_seed(0)
    random.seed(0)
    model = make()
    fully_shard(model.first, **settings)
    fully_shard(model, **settings)
    optimizer = optimizer_class(model.parameters(), lr=0.01)
    for seed in range(2):
        take_step(mse_loss(model(torch.full((4, 6), 0.1 * seed)), torch.ones(4, 1)), optimizer)
    return model, optimizer


def samples(rank, seed=0):
    return batch((6, 6), names=NAMES, seed=1000 * rank + seed)


def snapshot(model, optimizer):
    for module in (model, model.first):
        module.reshard()
    parameters = list(model.parameters())
    return {
        "parameters": [parameter.to_local().tolist() for parameter in parameters],
        "gradients": [None if p.grad is None else (id(p.grad), p.grad.to_local().tolist()) for p in parameters],
        "buffers": [(id(buffer), buffer.tolist()) for buffer in model.buffers()],
        "modes": [module.training for module in model.modules()],
        "optimizer": [
            {name: getattr(value, "to_local", lambda value=value: value)().tolist() for name, value in state.items()}
            for state in optimizer.state.values()
        ],
        "torch": torch.get_rng_state().tolist(),
        "python": random.getstate(),
        "calls": model.calls,
    }


def measure(model, optimizer, rank, *, loss=mse_loss, **settings):
    losses = balancer(domains=NAMES, loss=loss).domain_losses
    return sy.FirstOrder(**settings).find(model, samples(rank), losses=losses, optimizer=optimizer)


def after_measuring(rank, *, accumulating=False, **settings):
    """The names of what a vote has changed."""
    model, optimizer = set_up()
    optimizer.zero_grad()
    if accumulating:
        mse_loss(model(torch.ones(4, 6)), torch.ones(4, 1)).backward()
    before = snapshot(model, optimizer)
    measurement = measure(model, optimizer, rank, **settings).measurement
    after = snapshot(model, optimizer)
    return measurement.taking_part, [name for name in before if before[name] != after[name]]


def after_an_error(rank, calls):
    """What a vote that fails has changed, and whether the model trains afterwards as if nothing had happened."""
    parameters = []
    for measured in (False, True):
        model, optimizer = set_up()
        count = iter(range(100))

        def loss(outputs, targets, count=count):
            if next(count) == calls:
                raise InterruptedError
            return mse_loss(outputs, targets)

        before, changed = snapshot(model, optimizer), []
        if measured:
            with pytest.raises(InterruptedError):
                measure(model, optimizer, rank, loss=loss)
            after = snapshot(model, optimizer)
            changed = [name for name in before if before[name] != after[name]]
        take_step(mse_loss(model(torch.ones(4, 6)), torch.ones(4, 1)), optimizer)
        parameters.append([parameter.full_tensor() for parameter in model.parameters()])
    return changed, all(map(torch.equal, *parameters))


class FailingForward(Traced):
    """Its forward pass fails between two sharded modules, once it is told to."""

    fails = False

    def forward(self, x):
        hidden = self.first(x)
        if self.fails:
            raise InterruptedError
        return self.last(hidden)


def after_an_error_inside(rank):
    model, optimizer = set_up(make=FailingForward)
    model.fails = True
    with pytest.raises(InterruptedError):
        measure(model, optimizer, rank)
    model.fails = False
    return measure(model, optimizer, rank).measurement.is_finite


class TwoHeads(Traced):
    """Has a head that only the first of two batches uses, so that its gradients wait while a vote passes it by."""

    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(8, 1)
        self.number = 1

    def forward(self, x):
        hidden = self.frozen_norm(self.first(x))
        return self.last(hidden) + self.spare(hidden) if self.number == 0 else self.last(hidden)


class Unnormalised(Traced):
    """Without batch normalisation, which takes no bfloat16 parameters on a CPU."""

    def __init__(self):
        super().__init__()
        self.first, self.frozen_norm = nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 8)


COARSE = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
PENDING = {
    "divided": {},
    "kept whole": {"every_pass": True, "reshards": False},
    "unused": {"make": TwoHeads, "every_pass": True},
    "in bfloat16": {"mp_policy": COARSE, "make": Unnormalised},
}


def accumulated(rank, *, measured, every_pass=False, reshards=True, **settings):
    """Gradients of two batches, of which the first is not reduced at once, and what votes in between measure."""
    model, optimizer = set_up(**settings)
    norms = []
    optimizer.zero_grad()
    model.eval()  # so that both ways draw the same numbers
    for number, (x, y) in enumerate(samples(rank, seed=5).values()):
        model.set_reshard_after_backward(reshards or number == 1)
        model.set_is_last_backward(number == 1)
        model.set_requires_gradient_sync(number == 1)
        if measured and (every_pass or number == 1):
            model.number = 1
            random.seed(1)
            norms.append(measure(model, optimizer, rank).scores.gradient_norms)
        model.number = number
        random.seed(2)
        mse_loss(model(x), y).backward()
    return [parameter.grad.full_tensor() for parameter in model.parameters()], norms


def differences(rank, **settings):
    """Of the gradients with votes from those without, and of what two votes on the same samples measure."""
    plain, _ = accumulated(rank, measured=False, **settings)
    measured, norms = accumulated(rank, measured=True, **settings)
    largest = max(float((one - other).abs().max()) for one, other in zip(plain, measured, strict=True))
    return largest, float((norms[0] - norms[-1]).abs().max())


class Partly(Traced):
    def forward(self, x):
        return self.last(self.first(x))


def refusals(rank):
    """What is refused, each with its message; nobody waits for anybody afterwards."""
    messages = {}

    def note(case, function, *arguments, **settings):
        with pytest.raises((TypeError, ValueError)) as caught:
            function(*arguments, **settings)
        messages[case] = str(caught.value)

    model, optimizer = set_up()
    note("reuse", measure, model, optimizer, rank, reuse=True)
    note("scaler", measure, model, optimizer, rank, scaler=torch.amp.GradScaler("cpu"))
    note("whole steps", measure, model, torch.optim.Adafactor(model.parameters()), rank)
    losses = balancer(domains=NAMES).domain_losses
    note("exact", sy.InnerLoop().measure, model, samples(rank), losses=losses, optimizer=optimizer)
    judged = balancer(domains=NAMES, probe=sy.FirstOrder(), judge=lambda outputs, _: float(outputs.mean()))
    note("judge", judged, model, samples(rank), optimizer)
    held_out = samples(rank, 9) if rank else None
    note("held out", balancer(probe=sy.FirstOrder()), model, samples(rank), optimizer, held_out=held_out)
    partly = Partly()
    fully_shard(partly.first)
    note("partly", measure, partly, torch.optim.SGD(partly.parameters(), lr=0.1), rank)
    model.last.bias.register_post_accumulate_grad_hook(lambda _: None)
    note("hook", measure, model, optimizer, rank)
    return messages


def batches_counted(rank):
    """How many passes batch normalisation has counted after an outer pass in which the second rank lacks a domain."""
    model, _ = set_up()
    before, numbers = int(model.first[1].num_batches_tracked), torch.get_rng_state()
    here = samples(rank)
    if rank:
        del here["b"]
    with torch.no_grad():
        balancer(domains=NAMES, join=False)(model, here)
    drawn = not torch.equal(numbers, torch.get_rng_state())
    return int(model.first[1].num_batches_tracked) - before, drawn


class OwnRule(torch.optim.SGD):
    """Nobody knows what its step does."""


def choices(rank):
    """What `auto` says of two optimizers."""
    descriptions = []
    for optimizer_class in (torch.optim.AdamW, OwnRule):
        model, optimizer = set_up(optimizer_class=optimizer_class)
        learned = sy.Balancer(NAMES, loss=mse_loss)
        take_step(learned(model, samples(rank), optimizer), optimizer)
        descriptions.append((str(learned), learned.probe.step, learned.probe.every, learned.tally))
    return descriptions


def work(rank):
    return {
        "measured": after_measuring(rank),
        "batch mode": after_measuring(rank, meta_test="batch", step="sgd"),
        "accumulating": after_measuring(rank, accumulating=True),
        "errors": [after_an_error(rank, calls) for calls in (0, 1, 3)],
        "inside": after_an_error_inside(rank),
        "pending": {name: differences(rank, **settings) for name, settings in PENDING.items()},
        "refusals": refusals(rank),
        "counted": batches_counted(rank),
        "choices": choices(rank),
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What both ranks return; they are started once, because that takes seconds."""
    return run(tmp_path_factory.mktemp("ranks"), work)


@pytest.mark.parametrize("case", ["measured", "batch mode", "accumulating"])
def test_a_vote_leaves_everything_unchanged(results, case):
    for result in results:
        assert result[case] == ([0, 1], [])


def test_a_vote_that_fails_leaves_everything_unchanged(results):
    for result in results:
        assert result["errors"] == [([], True)] * 3
        assert result["inside"] is True


@pytest.mark.parametrize("case", PENDING)
def test_gradients_that_are_not_reduced_yet_are_kept(results, case):
    for result in results:
        assert max(result["pending"][case]) < 1e-6


def test_a_pass_that_only_keeps_the_other_ranks_company_leaves_no_trace(results):
    assert [result["counted"] for result in results] == [(2, True), (1, True)]


REFUSED = {
    "reuse": "the model is sharded over ranks",
    "scaler": "measured without a gradient scaler",
    "whole steps": r"Adafactor may combine numbers of a whole parameter.*FirstOrder\(step='sgd'\)",
    "exact": r"cannot be copied: pass probe=sy.FirstOrder\(\)",
    "judge": "the judge has none. A sharded model can only be judged by a function with a gradient",
    "held out": "held_out must be passed on all ranks",
    "partly": "not sharded, and whose gradient nobody averages",
    "hook": "a hook that runs when its gradient is ready",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_measured_is_refused_with_advice(results, case):
    for result in results:
        with pytest.raises(ValueError, match=REFUSED[case]):
            raise ValueError(result["refusals"][case])


def test_auto_measures_sharded_models_now_and_then(results):
    for result in results:
        (elementwise, step, every, tally), (whole, other_step, _, _) = result["choices"]
        assert (
            "FirstOrder, because the model is sharded over ranks, so a vote takes extra passes; every 8" in elementwise
        )
        assert (step, every, other_step) == ("optimizer", 8, "sgd")
        assert sum(tally.values()) == 1
        assert "plain gradient steps, because OwnRule may need whole parameters" in whole
