"""Small models, batches and references that several tests share."""

import copy
import random

import torch
from torch import nn
from torch.nn.functional import mse_loss

import steelyard as sy

DOMAINS = ("a", "b")


class Everything(nn.Module):
    """Whatever can leave a trace: batch statistics, dropout, spectral norm's vectors, a frozen layer, tied weights."""

    def __init__(self):
        super().__init__()
        self.first = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8))
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.3)
        self.tied = nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)
        self.again.weight = self.tied.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.frozen_norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 1)
        self.calls = 0
        self.draws_elsewhere = False  # from Python's and numpy's generators too

    def forward(self, x):
        self.calls += 1
        if self.draws_elsewhere:
            import numpy as np  # here: the other toys need torch alone

            x = x + 0.01 * random.random() + 0.01 * np.random.rand()  # noqa: NPY002
        x = self.dropout(self.norm(self.first(x)).relu())
        x = self.again(self.tied(x).tanh())
        return self.last(self.frozen_norm(self.frozen(x)))


def everything():
    model = Everything().train()
    model.frozen_norm.eval()
    return model


def smooth():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def batch(sizes=(6, 6), *, seed=0, names=DOMAINS, features=6, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for d, (name, size) in enumerate(zip(names, sizes, strict=True)):
        x = torch.randn(size, features, generator=generator, dtype=dtype)
        made[name] = (x, (1 + 2 * d) * x.sum(1, keepdim=True) + d)
    return made


def balancer(*, domains=DOMAINS, weighting=None, probe=None, loss=mse_loss, **kwargs):
    if "objective" in kwargs:
        loss = None
    weighting = weighting or (sy.Fixed() if probe is None else sy.DirichletVote())
    return sy.Balancer(domains, loss=loss, weighting=weighting, probe=probe, **kwargs)


def take_step(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def reference_hypothetical_losses(model, optimizer, halves, *, loss=mse_loss, evaluate=True):
    """The inner loop in ten lines: real steps of a real optimizer, on deep copies. Halves: name -> (train, test)."""
    found = {}
    for name in halves:
        replica, stepper = copy.deepcopy((model, optimizer))
        (x, y), _ = halves[name]
        stepper.zero_grad()
        loss(replica(x), y).backward()
        stepper.step()
        replica.train(not evaluate and replica.training)
        with torch.no_grad():
            found[name] = sum(loss(replica(x), y).item() for _, (x, y) in halves.values())
    return found


def first_halves(samples, m):
    return {name: ((x[:m], y[:m]), (x[m:], y[m:])) for name, (x, y) in samples.items()}
