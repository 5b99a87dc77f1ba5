"""A domain that is only harder than another is learned; a tenth of a share for good would starve it."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import steelyard as sy

STEPS = 1200


def points(name, count, generator):
    """Points with a mark of their domain, and the side of a line or the field of a chequerboard that they lie in."""
    values = torch.randn(count, 4, generator=generator)
    x, y = values[:, 0], values[:, 1]
    sides = {"line": x + y > 0, "chequers": x * y > 0}
    mark = torch.full((count, 1), float(name == "line"))
    return torch.cat([values, mark], dim=1), sides[name].long()


def trained(**settings):
    """A balancer after training, the steps at which it suspected the chequerboard, and the accuracy on new points."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    samples = {name: points(name, 400, generator) for name in ("line", "chequers")}
    inputs, targets = points("chequers", 1000, generator)
    balancer = sy.Balancer(tuple(samples), loss=cross_entropy, **settings)
    suspected_at = []
    for step in range(STEPS):
        rows = torch.randint(400, (16,), generator=generator)
        batch = {name: (x[rows], y[rows]) for name, (x, y) in samples.items()}
        loss = balancer(model, batch, optimizer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if balancer.valuation.suspects.suspected[1]:
            suspected_at.append(step)
    accuracy = (model(inputs).argmax(1) == targets).double().mean().item()
    return balancer, suspected_at, accuracy


def test_a_hard_domain_is_suspected_and_then_trusted_again():
    balancer, suspected_at, accuracy = trained()
    assert 10 < len(suspected_at) < STEPS / 2
    assert not balancer.valuation.suspects.suspected.any()
    assert "noisy labels" not in [flag.kind for flag in balancer.audit().flags]
    _, _, accuracy_with_equal_weights = trained(weighting=sy.Fixed())
    assert accuracy_with_equal_weights > 0.8
    assert accuracy > accuracy_with_equal_weights - 0.05
