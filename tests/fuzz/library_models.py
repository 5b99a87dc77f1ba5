"""Small models of every kind that has given trouble, or might."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH = 8


class Recurrent(nn.Module):
    """Reads the features one after another."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.recurrent = nn.GRU(1, WIDTH, batch_first=True)
        self.output = nn.Linear(WIDTH, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """One number a sample."""
        states, _ = self.recurrent(inputs.unsqueeze(-1))
        return self.output(states[:, -1])


class Attention(nn.Module):
    """One layer of a transformer, over the features."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.embedding = nn.Linear(1, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, dropout=0.0, batch_first=True)
        self.output = nn.Linear(WIDTH, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """One number a sample."""
        return self.output(self.layer(self.embedding(inputs.unsqueeze(-1))).mean(1))


class Tied(nn.Module):
    """One matrix used twice, a frozen layer, and a head that is never used."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, features)
        self.again = nn.Linear(features, features)
        self.again.weight = self.first.weight
        self.frozen = nn.Linear(features, features).requires_grad_(False)
        self.output = nn.Linear(features, 1)
        self.spare = nn.Linear(features, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """One number a sample."""
        return self.output(self.frozen(self.again(self.first(inputs).tanh())))


class Counting(nn.Module):
    """Counts its calls in a buffer, and keeps the mean of what it has seen."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.layer = nn.Linear(features, 1)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(features))

    def forward(self, inputs: Tensor) -> Tensor:
        """One number a sample."""
        if self.training:
            self.calls += 1
            self.seen.lerp_(inputs.detach().mean(0).to(self.seen), 0.1)
        return self.layer(inputs)


class Slotted(nn.Module):
    """Keeps a number outside its `__dict__`."""

    __slots__ = ("gain",)

    def __init__(self, features: int) -> None:
        super().__init__()
        self.gain = 0.5
        self.layer = nn.Linear(features, 1)

    def __deepcopy__(self, memo: dict[int, object]) -> "Slotted":
        """A copy by hand: torch's modules cannot be copied with slots."""
        twin = Slotted(self.layer.in_features)
        twin.layer = copy.deepcopy(self.layer, memo)
        return twin

    def forward(self, inputs: Tensor) -> Tensor:
        """One number a sample."""
        return self.gain * self.layer(inputs)


class Checkpointed(nn.Module):
    """Runs its first layers again in the backward pass."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, WIDTH), nn.Tanh())
        self.output = nn.Linear(WIDTH, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """One number a sample."""
        return self.output(checkpoint(self.body, inputs, use_reentrant=False))


class Branching(nn.Module):
    """Takes another way by the sign of a sum over the batch."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.ways = nn.ModuleList([nn.Linear(features, 1), nn.Linear(features, 1)])

    def forward(self, inputs: Tensor) -> Tensor:
        """One number a sample."""
        return self.ways[int(inputs.sum() > 0)](inputs)


def _stack(*middle: nn.Module) -> Callable[[int], nn.Module]:
    def make(features: int) -> nn.Module:
        return nn.Sequential(nn.Linear(features, WIDTH), *(_fresh(layer) for layer in middle), nn.Linear(WIDTH, 1))

    return make


def _fresh(layer: nn.Module) -> nn.Module:
    """A layer of the same kind and settings, with state of its own."""
    return copy.deepcopy(layer)


def _images(norm: Callable[[], nn.Module]) -> Callable[[int], nn.Module]:
    def make(features: int) -> nn.Module:
        layers = nn.Conv1d(1, 4, 3, padding=1), norm(), nn.ReLU(), nn.Flatten(), nn.Linear(4 * features, 1)
        return nn.Sequential(nn.Unflatten(1, (1, features)), *layers)

    return make


def _spectral(features: int) -> nn.Module:
    first = nn.utils.parametrizations.spectral_norm(nn.Linear(features, WIDTH))
    return nn.Sequential(first, nn.Tanh(), nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 1)))


def _half_evaluating(features: int) -> nn.Module:
    model = nn.Sequential(nn.Linear(features, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, 1))
    model[1].eval()
    model[2].eval()
    return model


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda features: nn.Linear(features, 1),
    "smooth": _stack(nn.Tanh()),
    "deep": _stack(nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.SiLU()),
    "batch normalisation": _stack(nn.BatchNorm1d(WIDTH), nn.ReLU()),
    "batch normalisation, no statistics": _stack(nn.BatchNorm1d(WIDTH, track_running_stats=False), nn.Tanh()),
    "layer normalisation": _stack(nn.LayerNorm(WIDTH), nn.ReLU()),
    "group normalisation": _images(lambda: nn.GroupNorm(2, 4)),
    "instance normalisation": _images(lambda: nn.InstanceNorm1d(4, affine=True)),
    "instance normalisation, statistics": _images(lambda: nn.InstanceNorm1d(4, track_running_stats=True)),
    "dropout": _stack(nn.Dropout(0.3), nn.Tanh()),
    "dropout and statistics": _stack(nn.BatchNorm1d(WIDTH), nn.Dropout(0.3), nn.Tanh()),
    "in place": _stack(nn.ReLU(inplace=True)),
    "recurrent": Recurrent,
    "attention": Attention,
    "tied": Tied,
    "counting": Counting,
    "slots": Slotted,
    "checkpointed": Checkpointed,
    "branching": Branching,
    "parametrized": _spectral,
    "partly in evaluation mode": _half_evaluating,
}
