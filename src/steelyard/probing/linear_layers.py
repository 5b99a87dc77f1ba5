"""Networks of layers that are linear in their parameters: all gradients, under any weights of the samples."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from steelyard.probing.gradient_probe import Leaves
from steelyard.probing.layer import Layer
from steelyard.probing.layer_kinds import layer_of
from steelyard.probing.reuse import leaf_uses
from steelyard.probing.shared import Gradients


class LinearLayers:
    """The layers of a network that has no parameters but theirs: linear, convolutions, normalisations of each sample.

    A layer's gradient is a sum over the samples of what its input and the loss's gradient at its output make of it.
    Where samples do not meet, weighing a sample's loss weighs what comes back for that sample. One backward pass down
    to the layers, without any parameter's gradient, is therefore enough for the gradients under all weights of the
    samples, or for those of pieces of them.
    """

    def __init__(self, layers: Sequence[Layer], leaves: Leaves) -> None:
        self._layers = layers
        self._leaves = leaves.stand_ins

    @classmethod
    def of(cls, model: nn.Module, leaves: Leaves, *, pieces: Sequence[int] = ()) -> "LinearLayers | None":
        """The layers, if every parameter to be differentiated is one's, and no two layers share any.

        Args:
            model: the network.
            leaves: what is to be differentiated.
            pieces: sizes of runs of samples whose gradients alone are sought; nothing else is kept then.
        """
        modules = [
            module
            for module in model.modules()
            if any(p is not None and p.requires_grad for p in module._parameters.values())
        ]
        layers = [layer for layer in (layer_of(module, pieces) for module in modules) if layer is not None]
        owned = [id(parameter) for layer in layers for parameter in layer.owned]
        fit = len(layers) == len(modules) and len(owned) == len(set(owned))
        return cls(layers, leaves) if fit and set(owned) == {id(leaf) for leaf in leaves.stand_ins} else None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Have the layers take notes while the network runs."""
        with ExitStack() as stack:
            for layer in self._layers:
                stack.callback(layer.watch())
            yield

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Have them take what comes back."""
        for layer in self._layers:
            layer.listening = True
        try:
            yield
        finally:
            for layer in self._layers:
                layer.listening = False

    def ran_once_over(self, samples: int) -> bool:
        """Whether every layer ran once, over this many samples."""
        return all(layer.ran_once_over(samples) for layer in self._layers)

    def are_all_that_uses_parameters(self, loss: Tensor) -> bool:
        """Whether nothing but the layers' own runs leads from a parameter to the loss: no penalty, no tied use.

        A gradient along such a way may be too small to be seen when gradients are compared, or grow later.
        """
        uses = Counter(map(id, leaf_uses(loss)))
        return all(uses[id(leaf)] == 1 for leaf in self._leaves)

    @property
    def sought(self) -> list[GradientEdge]:
        """Where the loss's gradients are asked for."""
        return [place for layer in self._layers for place in layer.sought()]

    def receive(self, found: Sequence[Tensor | None]) -> bool:
        """Take them; whether all layers have theirs, and can use them."""
        given = [gradient for gradient in found if gradient is not None]
        if len(given) != len(found):
            return False
        waiting = iter(given)
        with torch.autocast(self._leaves[0].device.type, enabled=False):  # as in the backward pass
            return all(layer.receive([next(waiting) for _ in layer.sought()]) for layer in self._layers)

    @torch.no_grad()
    def gradients(self, weights: Tensor | None, *, chosen: slice | None = None) -> list[Tensor | None]:
        """The parameters' gradients if each of the chosen samples' losses had a weight (one, unless given)."""
        found = [layer.gradients(weights, chosen or slice(None)) for layer in self._layers]
        placed = {parameter: gradient for each in found for parameter, gradient in each.items()}
        return [placed.get(leaf) for leaf in self._leaves]

    @torch.no_grad()
    def apart(self) -> list[list[Tensor | None]]:
        """The parameters' gradients for each of the pieces."""
        where = {id(leaf): i for i, leaf in enumerate(self._leaves)}
        places = [where[id(parameter)] for layer in self._layers for parameter in layer.owned]
        found = []
        for parts in zip(*(layer.apart() for layer in self._layers), strict=True):
            placed: list[Tensor | None] = [None] * len(self._leaves)
            for place, gradient in zip(places, chain.from_iterable(parts), strict=True):
                placed[place] = gradient
            found.append(placed)
        return found

    @torch.no_grad()
    def slopes(self, direction: Gradients, *, chosen: slice | None = None) -> Tensor:
        """For each of the chosen samples, the inner product of its gradient and a direction."""
        along = {leaf: part for leaf, part in zip(self._leaves, direction, strict=True) if part is not None}
        moving = [layer for layer in self._layers if any(parameter in along for parameter in layer.owned)]
        return torch.stack([layer.slopes(along, chosen or slice(None)) for layer in moving]).sum(0)
