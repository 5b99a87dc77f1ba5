"""Networks of layers linear in their parameters: gradients read off them, equal to automatic differentiation."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn.functional import linear, mse_loss
from torch.utils.checkpoint import checkpoint

import steelyard as sy
from steelyard.probing.first_order import FirstOrder
from steelyard.probing.layered_pass import LayeredPass
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


class Named(nn.Module):
    """Gives a normalisation its input by name, and runs some layers a second time to save memory."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 8))
        self.norm, self.last = nn.LayerNorm(8), nn.Linear(8, 1)

    def forward(self, x):
        return self.last(self.norm(input=checkpoint(self.first, x, use_reentrant=False)))


def hooked():
    """A hook makes something else of a layer's output."""
    model = layers(nn.ReLU())
    model[0].register_forward_hook(lambda _, inputs, output: 2 * output)
    return model


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
    "named": Named,
    "hooked": hooked,
}


class Resizing(nn.Module):
    """Says how large a transposed convolution's output shall be."""

    def __init__(self):
        super().__init__()
        self.larger = nn.ConvTranspose1d(1, 1, 2, stride=2)

    def forward(self, x):
        return self.larger(x.unsqueeze(1), output_size=[13]).mean(2)


class Resizing2d(nn.Module):
    """The same without a name, rearranged in memory."""

    def __init__(self):
        super().__init__()
        self.larger = nn.ConvTranspose2d(2, 2, 2, stride=2).to(memory_format=torch.channels_last)

    def forward(self, x):
        return self.larger(x.view(-1, 2, 1, 3), [3, 7]).mean((1, 2, 3))[:, None]


class OneByOne(nn.Module):
    """Convolutions of single images, without a dimension of samples."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(2, 2, (1, 2)).to(memory_format=torch.channels_last)

    def forward(self, x):
        return torch.stack([self.layer(each.view(2, 1, 3)).mean()[None] for each in x])


class Tied(nn.Module):
    """Uses a layer's weights once more, where a gate that starts as zero hides it."""

    def __init__(self):
        super().__init__()
        self.layer, self.gate, self.last = nn.Linear(6, 6), nn.Linear(6, 6, bias=False), nn.Linear(6, 1)
        nn.init.zeros_(self.gate.weight)

    def forward(self, x):
        return self.last(self.layer(x).tanh() + self.gate(linear(x.relu(), self.layer.weight)))


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
    for along in (None, "domains", "sum"):
        probe = FirstOrder(along=along or "domains")
        probe.unlayered.fill_(along is None)
        judge = balancer(domains=NAMES, weighting=sy.Fixed([0.2, 0.3, 0.5]), probe=probe)
        for _ in range(2):  # audited, then not
            model.zero_grad()
            judge(model, samples, optimizer).backward()
        found.append((judge.last.measured, [p.grad.clone() for p in parameters]))
    assert layered == [True] * 4
    for measured, gradients in found[1:]:
        assert measured == pytest.approx(found[0][0], rel=1e-10)
        for mine, theirs in zip(gradients, found[0][1], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


def test_any_optimizer_steps_along_what_is_read_off(layered):
    model, found = layers(nn.ReLU()).double(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for unlayered in (True, False):
        probe = FirstOrder()
        probe.unlayered.fill_(unlayered)
        judge = balancer(probe=probe)
        judge(model, batch(dtype=torch.float64), optimizer)
        found.append(judge.last.measured)
    assert layered == [True]
    assert found[1] == pytest.approx(found[0], rel=1e-10)


def test_gradients_of_scaled_losses_are_taken_in_passes(layered):
    model = layers(nn.ReLU())
    probe = FirstOrder(scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    balancer(probe=probe)(model, batch(), torch.optim.SGD(model.parameters(), lr=0.1)).backward()
    assert layered == []
    assert probe.reuse.reason is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: Positions(samples_first=False),
        lambda: nn.Sequential(nn.Linear(6, 8), nn.PReLU(), nn.Linear(8, 1)),
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 1, 3, padding="same"), nn.Flatten(), nn.Linear(6, 1)
        ),
        Resizing,
        Resizing2d,
        OneByOne,
        Tied,
    ],
    ids=[
        "samples not first",
        "another kind of layer",
        "padding by name",
        "output size",
        "output size by place",
        "one by one",
        "tied",
    ],
)
@pytest.mark.parametrize("along", ["domains", "sum"])
def test_other_networks_are_measured_otherwise(make, along, layered):
    model = make().double()
    samples = batch(sizes=(2, 2, 2), names=NAMES, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = [0.2, 0.3, 0.5]
    judge = balancer(domains=NAMES, weighting=sy.Fixed(weights), probe=FirstOrder(along=along))
    for _ in range(2):
        model.zero_grad()
        judge(model, samples, optimizer).backward()
    assert layered == [False]  # and not tried again
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


@pytest.mark.parametrize("along", ["domains", "sum"])
def test_an_input_that_is_written_to_is_an_error_as_in_a_plain_step(along):
    model = Rewriting()
    judge = balancer(probe=FirstOrder(along=along))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        judge(model, batch(), torch.optim.SGD(model.parameters(), lr=0.1))


class Penalised(nn.Module):
    """A loss with a small penalty on the model's parameters."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, output, target):
        return mse_loss(output, target) + 1e-4 * sum(p.square().sum() for p in self.model.parameters())


@pytest.mark.parametrize("along", ["domains", "sum"])
def test_a_small_penalty_on_the_parameters_is_in_the_gradients(along, layered):
    model = layers(nn.ReLU())
    loss, samples = Penalised(model), batch()
    judge = balancer(weighting=sy.Fixed([0.3, 0.7]), probe=FirstOrder(along=along), loss=loss)
    judge(model, samples, torch.optim.SGD(model.parameters(), lr=0.1)).backward()
    plain = sum(w * loss(model(x), y) for w, (x, y) in zip((0.3, 0.7), samples.values(), strict=True))
    assert layered == [False]
    for parameter, gradient in zip(
        model.parameters(), torch.autograd.grad(plain, list(model.parameters())), strict=True
    ):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-5, atol=1e-6)


class Turning(nn.Module):
    """Turns the samples round for its first layer, once it is told to."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 1)
        self.turned = False

    def forward(self, x):
        return self.last(self.first(x.flip(0)).tanh().flip(0) if self.turned else self.first(x).tanh())


@pytest.mark.parametrize("along", ["domains", "sum"])
def test_a_network_that_comes_to_do_something_else_is_looked_at_again(along, layered):
    model = Turning()
    judge = balancer(probe=FirstOrder(along=along, every=2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(34):
        model.turned = step >= 29
        judge(model, batch(), optimizer)
    assert layered == [True] * 15 + [False]
    assert judge.probe.unlayered
    assert judge.last.vote


@pytest.mark.parametrize("along", ["domains", "sum"])
def test_nothing_is_kept_in_memory_until_a_collector_of_cycles_comes_by(along, monkeypatch):
    kept, run = [], LayeredPass.run

    def watched(self, **kwargs):
        found = run(self, **kwargs)
        kept.extend(weakref.ref(layer) for layer in self._layers._layers)
        return found

    monkeypatch.setattr(LayeredPass, "run", watched)
    model = images()
    gc.disable()
    try:
        judge = balancer(probe=FirstOrder(along=along))
        judge(model, batch(), torch.optim.SGD(model.parameters(), lr=0.1)).backward()
        assert len(kept) == 4
        assert not any(layer() for layer in kept)
    finally:
        gc.enable()
