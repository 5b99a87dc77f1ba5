"""Votes as a plain loop casts them: real steps of a real optimizer, on deep copies."""

import copy
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import mse_loss

from toys import take_step


class PlainSteps(NamedTuple):
    """A model after a step for each domain, and after the step for a gradient of zero; each domain's loss and norm."""

    replicas: list[nn.Module]
    losses: torch.Tensor
    norms: torch.Tensor


def plain_steps(model, optimizer, trains, losses, *, live_buffers=False):
    replicas, values, norms, used = [], [], [], set()
    for name, (x, y) in trains.items():
        replica, stepper = copy.deepcopy((model, optimizer))
        stepper.zero_grad()
        loss = losses[name](replica(x), y)
        loss.backward()
        gradients = {number: p.grad for number, p in enumerate(replica.parameters()) if p.grad is not None}
        used |= gradients.keys()
        values.append(loss.detach())
        norms.append(torch.cat([gradient.flatten() for gradient in gradients.values()]).norm())
        stepper.step()
        replicas.append(replica)
    replica, stepper = copy.deepcopy((model, optimizer))
    for number, parameter in enumerate(replica.parameters()):
        parameter.grad = torch.zeros_like(parameter) if number in used else None
    stepper.step()
    replicas.append(replica)
    if live_buffers:
        for replica in replicas:
            for copied, live in zip(replica.buffers(), model.buffers(), strict=True):
                copied.copy_(live)
    return PlainSteps(replicas, torch.stack(values).double(), torch.stack(norms).double())


def exact_table(steps, tests, judges, *, evaluate=True):
    """Entry (i, j): the score of domain j after a step for domain i; the last row is the zero step's."""
    rows = []
    for replica in steps.replicas:
        replica.train(replica.training and not evaluate)
        with torch.no_grad():
            rows.append([float(judges[name](replica(x), y)) for name, (x, y) in tests.items()])
    return torch.tensor(rows, dtype=torch.float64)


def first_order_table(model, steps, tests, judges):
    """Entry (i, j): the score of domain j before any step, plus the inner product of step i and its gradient."""
    replica = copy.deepcopy(model).eval()
    parameters = list(replica.parameters())
    levels, columns = [], []
    for name, (x, y) in tests.items():
        score = judges[name](replica(x), y)
        gradients = torch.autograd.grad(score, parameters, allow_unused=True)
        column = []
        for stepped in steps.replicas:
            pairs = zip(stepped.parameters(), parameters, gradients, strict=True)
            column.append(sum(((new - old) * g).sum().item() for new, old, g in pairs if g is not None))
        levels.append(score.item())
        columns.append(column)
    levels = torch.tensor(levels, dtype=torch.float64)
    return levels + torch.tensor(columns, dtype=torch.float64).T, levels


def for_all(function, names):
    return dict.fromkeys(names, function)


def optimizer_with_state(kind, model, samples, rate=0.05):
    """An optimizer that has taken some steps, so that momentum and weight decay move the model by themselves."""
    if kind == "SGD":
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=0.1)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.1)
    for x, y in samples.values():
        output = model(x)
        if isinstance(output, tuple):
            output = sum(output)
        take_step(mse_loss(output, y), optimizer)
    return optimizer
