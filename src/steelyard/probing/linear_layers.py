"""Networks of linear layers: every gradient from what goes into a layer and what comes back."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.probing.gradient_probe import Leaves

Gradients = Sequence[Tensor | None]


class LinearLayers:
    """The linear layers of a network that has no other parameters.

    A layer's gradient is Σ_i δ_i ⊗ a_i over the samples, a_i its input and δ_i the loss's gradient at its output. Where
    samples do not meet, weighing a sample's loss weighs its δ_i. One backward pass down to the δ_i, without any
    parameter's gradient, is therefore enough for the gradients under all weights of the samples.
    """

    def __init__(self, layers: Sequence[nn.Linear], leaves: Leaves) -> None:
        self._layers = layers
        self._places = {id(leaf): i for i, leaf in enumerate(leaves.stand_ins)}
        self._seen: dict[int, list[tuple[Tensor, Tensor]]] = {id(layer): [] for layer in layers}
        self._deltas: list[Tensor] = []

    @classmethod
    def of(cls, model: nn.Module, leaves: Leaves) -> "LinearLayers | None":
        """The layers, if every parameter to be differentiated is one's weight or bias, and no two layers share any."""
        layers = [module for module in model.modules() if type(module) is nn.Linear]
        owned = [id(p) for layer in layers for p in layer.parameters() if p.requires_grad]
        known = {id(leaf) for leaf in leaves.stand_ins}
        return cls(layers, leaves) if len(owned) == len(set(owned)) and set(owned) == known else None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note inputs and outputs while the network runs."""

        def note(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            self._seen[id(layer)].append((inputs[0].detach(), output))

        handles = [layer.register_forward_hook(note) for layer in self._layers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def ran_once_over(self, samples: int) -> bool:
        """Whether every layer ran once, over this many samples."""
        return all(len(seen) == 1 and seen[0][0].shape[0] == samples for seen in self._seen.values())

    @property
    def outputs(self) -> list[Tensor]:
        """What the layers returned, in the automatic differentiation."""
        return [self._seen[id(layer)][0][1] for layer in self._layers]

    def receive(self, deltas: Sequence[Tensor | None]) -> bool:
        """Take the loss's gradients at the outputs; whether all layers have one."""
        self._deltas = [delta for delta in deltas if delta is not None]
        return len(self._deltas) == len(self._layers)

    def gradients(self, weights: Tensor, *, chosen: slice | None = None) -> list[Tensor | None]:
        """The parameters' gradients if each of the chosen samples' losses had a weight."""
        found: list[Tensor | None] = [None] * len(self._places)
        for layer, into, delta in self._rows(chosen):
            weighed = (delta * weights.view(-1, *(1,) * (delta.dim() - 1))).flatten(0, -2)
            found[self._places[id(layer.weight)]] = weighed.T @ into.flatten(0, -2)
            if layer.bias is not None:
                found[self._places[id(layer.bias)]] = weighed.sum(0)
        return found

    def slopes(self, direction: Gradients, *, chosen: slice | None = None) -> Tensor:
        """For each of the chosen samples, the inner product of its gradient and a direction."""
        total: Tensor | None = None
        for layer, into, delta in self._rows(chosen):
            along = direction[self._places[id(layer.weight)]]
            bias = None if layer.bias is None else direction[self._places[id(layer.bias)]]
            if along is None and bias is None:
                continue
            moved = nn.functional.linear(into, torch.zeros_like(layer.weight) if along is None else along, bias)
            each = (moved * delta).flatten(1).sum(1)
            total = each if total is None else total + each
        assert total is not None  # noqa: S101
        return total

    def _rows(self, chosen: slice | None) -> Iterator[tuple[nn.Linear, Tensor, Tensor]]:
        rows = chosen or slice(None)
        for layer, delta in zip(self._layers, self._deltas, strict=True):
            yield layer, self._seen[id(layer)][0][0][rows], delta[rows]


def alike(found: Gradients, expected: Gradients) -> bool:
    """Whether gradients are the same up to rounding."""
    for mine, theirs in zip(found, expected, strict=True):
        if mine is None or theirs is None:
            return False
        scale = float(theirs.abs().max())
        if float((mine - theirs).abs().max()) > 1e4 * torch.finfo(mine.dtype).eps * scale:
            return False
    return True
