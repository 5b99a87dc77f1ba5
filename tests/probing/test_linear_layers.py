"""Networks of layers linear in their parameters: gradients read off them, equal to automatic differentiation."""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import steelyard as sy
from steelyard.probing.first_order import FirstOrder
from steelyard.probing.layered_sum import LayeredSum
from toys import balancer, batch

NAMES = ("a", "b", "c")


class Positions(nn.Module):
    """Linear layers over the last of three dimensions; the first is the samples, or is not."""

    def __init__(self, *, samples_first=True):
        super().__init__()
        self.first, self.last = nn.Linear(2, 5, bias=False), nn.Linear(5, 1)
        self.samples_first = samples_first

    def forward(self, x):
        x = x.unflatten(1, (3, 2))
        if not self.samples_first:
            x = x.transpose(0, 1)
        x = self.last(self.first(x).tanh())
        return x.mean(1) if self.samples_first else x.mean(0)


def layers(activation):
    return nn.Sequential(nn.Linear(6, 8), activation, nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def convolutions():
    """Of all settings, forth and back, with activations written into outputs, and two kinds of normalisation."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 6)),
        nn.Conv1d(1, 4, 3, padding=2, stride=2, bias=False),
        nn.ReLU(inplace=True),
        nn.Conv1d(4, 8, 2, dilation=2, groups=2),
        nn.InstanceNorm1d(8, affine=True),
        nn.ReLU(inplace=True),
        nn.ConvTranspose1d(8, 6, 2, stride=2, output_padding=1, groups=2),
        nn.GroupNorm(3, 6),
        nn.Tanh(),
        nn.Flatten(),
        nn.LazyLinear(1),
    )


def images():
    """Rearranged in memory; a bias before an instance normalisation has no gradient but rounding."""
    model = nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 4, 3, padding=1),
        nn.InstanceNorm2d(4, affine=True),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(24, 1),
    )
    return model.to(memory_format=torch.channels_last)


def normalised():
    return nn.Sequential(
        nn.Linear(6, 8),
        nn.LayerNorm(8, bias=False),
        nn.ReLU(),
        nn.Unflatten(1, (2, 4)),
        nn.LayerNorm(4),
        nn.Flatten(),
        nn.Linear(8, 1),
    )


def half_frozen():
    model = layers(nn.ReLU())
    model[0].requires_grad_(False)
    model[2].weight.requires_grad_(False)
    return model


READABLE = {
    "layers": lambda: layers(nn.ReLU()),
    "in place": lambda: layers(nn.ReLU(inplace=True)),
    "positions": Positions,
    "convolutions": convolutions,
    "images": images,
    "normalised": normalised,
    "half frozen": half_frozen,
}


class Resizing(nn.Module):
    """Says how large a transposed convolution's output shall be."""

    def __init__(self):
        super().__init__()
        self.larger = nn.ConvTranspose1d(1, 1, 2, stride=2)

    def forward(self, x):
        return self.larger(x.unsqueeze(1), output_size=[13]).mean(2)


@pytest.fixture
def layered(monkeypatch):
    """How each attempt to read gradients off went."""
    record, run = [], LayeredSum.run
    monkeypatch.setattr(LayeredSum, "run", lambda self, **k: record.append(run(self, **k)) or record[-1])
    return record


@pytest.mark.parametrize("make", READABLE.values(), ids=READABLE)
@pytest.mark.parametrize("stepped", ["all", "last"])
def test_values_and_gradients_are_those_of_separate_passes(make, stepped, layered):
    model = make().double()
    samples = batch(sizes=(6, 4, 7), names=NAMES, dtype=torch.float64)
    model(samples["a"][0])
    for parameter in model.parameters():
        nn.init.normal_(parameter)  # scales and shifts of normalisations, too
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(parameters if stepped == "all" else parameters[-2:], lr=0.1, momentum=0.9)
    found = []
    for along in ("domains", "sum"):
        judge = balancer(domains=NAMES, weighting=sy.Fixed([0.2, 0.3, 0.5]), probe=FirstOrder(along=along))
        for _ in range(2):  # audited, then not
            model.zero_grad()
            judge(model, samples, optimizer).backward()
        found.append((judge.last.measured, [p.grad.clone() for p in parameters]))
    assert layered == [True, True]
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-10)
    for mine, theirs in zip(found[1][1], found[0][1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Positions(samples_first=False),
        lambda: nn.Sequential(nn.Linear(6, 8), nn.PReLU(), nn.Linear(8, 1)),
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 1, 3, padding="same"), nn.Flatten(), nn.Linear(6, 1)
        ),
        Resizing,
    ],
    ids=["samples not first", "another kind of layer", "padding by name", "output size"],
)
def test_other_networks_are_measured_by_a_difference(make, layered):
    model = make().double()
    samples = batch(sizes=(2, 2, 2), names=NAMES, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = [0.2, 0.3, 0.5]
    judge = balancer(domains=NAMES, weighting=sy.Fixed(weights), probe=FirstOrder(along="sum"))
    for _ in range(2):
        model.zero_grad()
        judge(model, samples, optimizer).backward()
    assert not any(layered)
    expected = sum(w * mse_loss(model(x), y) for w, (x, y) in zip(weights, samples.values(), strict=True))
    for parameter, gradient in zip(
        model.parameters(), torch.autograd.grad(expected, list(model.parameters())), strict=True
    ):
        torch.testing.assert_close(parameter.grad, gradient)


def test_a_loss_that_is_no_mean_is_measured_by_a_difference(layered):
    model = layers(nn.ReLU())
    judge = balancer(probe=FirstOrder(along="sum"), loss=lambda o, y: (o - y).square().sum() ** 0.5)
    judge(model, batch(), torch.optim.SGD(model.parameters(), lr=0.1)).backward()
    assert layered == [False]
    assert judge.last.vote
    assert judge.probe.reuse.reason is None


class Rewriting(nn.Module):
    """Writes into a layer's input after the layer has run."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, x):
        x = x + 0
        y = self.layer(x)
        x.mul_(0.5)
        return y + x.mean(1, keepdim=True)


def test_an_input_that_is_written_to_is_an_error_as_in_a_plain_step():
    model = Rewriting()
    judge = balancer(probe=FirstOrder(along="sum"))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        judge(model, batch(), torch.optim.SGD(model.parameters(), lr=0.1))
