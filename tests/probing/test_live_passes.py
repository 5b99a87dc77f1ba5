"""Passes on the live modules give the gradients of an ordinary pass, and leave no trace."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from steelyard.probing.audit import graph_leaves
from steelyard.probing.sharded.live_passes import gradients_put_aside, live_gradients, unchanged_modules
from toys import batch, everything


class Drawing(nn.Module):
    """Keeps what a pass can change: a counter, a generator, a mode, and a buffer that two modules share."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm1d(6), nn.BatchNorm1d(6)])
        self.norms[1].running_mean = self.norms[0].running_mean
        self.generator = torch.Generator().manual_seed(3)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.extra = self.calls
        return self.norms[1](self.norms[0](x)) + torch.rand(6, generator=self.generator)


def state_of(model):
    tensors = [*model.parameters(), *model.buffers(), *(parameter.grad for parameter in model.parameters())]
    modes = [module.training for module in model.modules()]
    return [None if tensor is None else (id(tensor), tensor.tolist()) for tensor in tensors], modes, model.calls


def test_gradients_are_those_of_an_ordinary_pass_and_nothing_changes():
    torch.manual_seed(0)
    model = everything()
    x, y = batch()["a"]
    mse_loss(model(x), y).backward()  # a gradient that is being accumulated
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    reference, states = copy.deepcopy(model), torch.get_rng_state()
    expected = torch.autograd.grad(mse_loss(reference(x), y), [p for p in reference.parameters() if p.requires_grad])
    torch.set_rng_state(states)
    before = state_of(model)
    loss, gradients = live_gradients(lambda: mse_loss(model(x), y), parameters, modules=[model])
    assert not loss.requires_grad
    for gradient, reference_gradient in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, reference_gradient)
    assert state_of(model) == before
    assert torch.equal(torch.get_rng_state(), states)


def test_leaves_outside_the_modules_keep_their_gradients():
    model, outside = nn.Linear(2, 1), torch.ones(2, requires_grad=True)
    outside.grad = torch.full((2,), 7.0)
    live_gradients(lambda: model(outside).sum(), list(model.parameters()), modules=[model])
    assert outside.grad.tolist() == [7.0, 7.0]
    assert all(leaf is not None for leaf in graph_leaves(model(outside).sum()))
    assert {id(leaf) for leaf in graph_leaves(model(outside).sum())} == {id(outside), *map(id, model.parameters())}


def test_a_loss_without_a_gradient_has_none():
    model = nn.Linear(2, 1)
    loss, gradients = live_gradients(lambda: torch.ones(()), list(model.parameters()), modules=[model])
    assert loss.item() == 1
    assert gradients == [None, None]


@pytest.mark.parametrize("fails", [False, True])
def test_modules_are_put_back_also_after_an_error(fails):
    model = Drawing().train()
    before, generator = state_of(model), model.generator.get_state()
    try:
        with unchanged_modules([model, model.norms]):
            model.eval().train()
            model.eval()
            model.norms[0].train()
            model(torch.randn(4, 6))
            assert model.norms[0].running_mean is model.norms[1].running_mean
            assert model.norms[0].running_mean.abs().sum() > 0
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert fails
    assert state_of(model) == before
    assert torch.equal(model.generator.get_state(), generator)


def test_gradients_are_put_aside_not_added_to():
    leaf, other = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    leaf.grad = kept = torch.ones(1)
    with gradients_put_aside([leaf, other]):
        (leaf + other).sum().backward()
    assert leaf.grad is kept
    assert kept.item() == 1
    assert other.grad is None
