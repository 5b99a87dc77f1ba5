"""Apart from the returned loss's own forward pass, a call leaves everything bit-identical.

Under dropout a shared vote's passes are that forward pass: `test_shared_dropout.py` looks at them.
"""

import copy
import random
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import steelyard as sy
from toys import DOMAINS, balancer, batch, everything, take_step

np = pytest.importorskip("numpy", reason="numpy's generator must be left unchanged, too")


def snapshot(model, optimizer):
    tensors = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())]
    return copy.deepcopy(
        {
            "tensors": [None if t is None else t.detach().clone() for t in tensors],
            "optimizer": optimizer.state_dict(),
            "modes": [module.training for module in model.modules()],
            "trainable": [parameter.requires_grad for parameter in model.parameters()],
            "torch": torch.get_rng_state(),
            "python": random.getstate(),
            "numpy": np.random.get_state(),
            "calls": model.calls,
        }
    )


def assert_same(before, after):
    assert before.keys() == after.keys()
    for key in before:
        np.testing.assert_equal(_arrays(after[key]), _arrays(before[key]), err_msg=key)


def _arrays(value):
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, dict):
        return {key: _arrays(item) for key, item in value.items()}
    return [_arrays(item) for item in value] if isinstance(value, list | tuple) else value


def set_up(optimizer_class=torch.optim.AdamW, **kwargs):
    random.seed(1)
    np.random.seed(1)
    model = everything()
    model.draws_elsewhere = True
    optimizer = optimizer_class(model.parameters(), lr=0.01, **kwargs)
    for x, y in batch(seed=9).values():
        take_step(mse_loss(model(x), y), optimizer)
    mse_loss(model(torch.ones(2, 6)), torch.ones(2, 1)).backward()  # gradients being accumulated
    return model, optimizer


PROBES = {
    "inner loop": sy.InnerLoop,
    "inner loop, detecting": partial(sy.InnerLoop, reuse="detect"),
    "first order": sy.FirstOrder,
}
every_probe = pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES)


@every_probe
@pytest.mark.parametrize("meta_test", ["eval", "batch"])
@pytest.mark.parametrize("step", ["optimizer", "sgd"])
def test_a_probe_leaves_everything_as_found(meta_test, step, probe):
    model, optimizer = set_up(torch.optim.SGD if step == "optimizer" else torch.optim.AdamW)
    judge = balancer(probe=probe(meta_test=meta_test, step=step))
    before = snapshot(model, optimizer)
    measurement = judge.probe.measure(model, batch(), losses=judge.domain_losses, optimizer=optimizer)
    assert measurement.taking_part == [0, 1]
    assert_same(before, snapshot(model, optimizer))


@every_probe
@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.Adam])
def test_with_the_weights_held_a_probe_changes_no_bit_of_training(join, optimizer_class, probe):
    results = []
    for each in (None, probe(step="sgd")):
        torch.manual_seed(1)
        model, optimizer = set_up(optimizer_class)
        judge = balancer(weighting=sy.Fixed([0.3, 0.7]), probe=each, join=join)
        for seed in range(5):
            take_step(judge(model, batch(seed=seed), optimizer), optimizer)
        results.append(snapshot(model, optimizer))
        assert bool(judge.last.measured) is (each is not None)
    assert_same(*results)


class InterruptedRunError(Exception):
    pass


def failing(function, calls, error):
    """The function, failing in its n-th call."""
    count = iter(range(1, 1000))

    def run(*args):
        if next(count) == calls:
            raise error
        return function(*args)

    return run


@pytest.mark.parametrize("error", [InterruptedRunError, KeyboardInterrupt])
@pytest.mark.parametrize("call", [1, 2, 3, 4])
@pytest.mark.parametrize("where", ["model", "loss"])
@every_probe
def test_an_interruption_anywhere_leaves_everything_as_found(where, call, error, probe):
    if call == 4 and probe is not sy.InnerLoop and where == "model":
        call = 3  # fewer passes than the inner loop
    model, optimizer = set_up(torch.optim.SGD, momentum=0.9)
    loss = failing(mse_loss, call, error()) if where == "loss" else mse_loss
    judge = balancer(probe=probe(), loss=loss)
    before = snapshot(model, optimizer)
    handle = model.last.register_forward_pre_hook(failing(lambda *_: None, call, error())) if where == "model" else None
    with pytest.raises(error):
        judge(model, batch(), optimizer)
    if handle:
        handle.remove()
    assert_same(before, snapshot(model, optimizer))
    assert judge.weights == {"a": 0.5, "b": 0.5}


def test_hypothetical_steps_never_write_to_the_live_model():
    seen = []

    class Spy(nn.Linear):
        def forward(self, x):
            untouched = live.weight is original and torch.equal(original, value)
            seen.append((self is live, untouched))
            return super().forward(x)

    live = Spy(6, 1)
    original, value = live.weight, live.weight.detach().clone()
    optimizer = torch.optim.SGD(live.parameters(), lr=1.0)
    balancer(probe=sy.InnerLoop())(live, batch(), optimizer)
    # Two steps, the scores after each, the scores after the zero step; then the outer pass.
    assert seen == [(False, True)] * 5 + [(True, True)]


def test_no_step_hook_fires_and_no_scheduler_counts():
    model, optimizer = set_up(torch.optim.SGD)
    model.zero_grad()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    fired = []
    handles = [
        optimizer.register_step_pre_hook(lambda *_: fired.append("pre")),
        optimizer.register_step_post_hook(lambda *_: fired.append("post")),
        register_optimizer_step_pre_hook(lambda *_: fired.append("global pre")),
        register_optimizer_step_post_hook(lambda *_: fired.append("global post")),
    ]
    judge = balancer(probe=sy.InnerLoop())
    loss = judge(model, batch(), optimizer)
    assert judge.last.vote in DOMAINS
    assert not fired
    assert not getattr(optimizer, "_opt_called", False)
    loss.backward()
    optimizer.step()
    assert fired == ["global pre", "pre", "post", "global post"]
    assert optimizer._opt_called
    scheduler.step()
    for handle in handles:
        handle.remove()


def test_a_loss_with_memory_does_not_remember_hypothetical_steps():
    class Remembering(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(()))
            self.calls = 0

        def forward(self, output, target):
            loss = mse_loss(output, target)
            self.mean.lerp_(loss.detach(), 0.1)
            self.calls += 1
            return loss

    memories = []
    for probe in (None, sy.InnerLoop(), sy.FirstOrder()):
        torch.manual_seed(2)
        model, optimizer = set_up()
        memory = Remembering()
        balancer(loss=memory, probe=probe)(model, batch(), optimizer)
        memories.append((memory.mean.item(), memory.calls))
    assert memories[0] == memories[1] == memories[2]
