"""Layers whose weights multiply the input: linear ones and convolutions."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.functional import linear

from steelyard.probing.layer import PRECISE, Layer
from steelyard.probing.memory_layout import arranged, layout_of


class _Product(Layer):
    """Weights times the input: a gradient is Σ_i δ_i ⊗ a_i over the samples, a_i the input, δ_i what comes back.

    Gradients of pieces are taken as soon as δ is there, so that neither it nor the input is kept (but in layers that no
    other comes before).
    """

    _layout: torch.memory_format | None = None
    _into: Tensor
    _version: int
    _delta: Tensor

    def __init__(self, module: nn.Module, pieces: Sequence[int] = ()) -> None:
        super().__init__(module, pieces)
        self._edge: GradientEdge | None = None
        self._wanted = [False, *(each is not None and each.requires_grad for each in (self._weight, self._bias))]
        self._taken = False
        self._apart: list[list[Tensor]] = []

    def watch(self) -> Callable[[], None]:
        # First of all hooks, because another may return something else than what the layer has made.
        handles = [self._module.register_forward_hook(self._note, with_kwargs=True, prepend=True)]
        if self._layout is not None:
            handles.append(self._module.register_forward_pre_hook(self._arrange))

        def unwatch() -> None:
            self._edge = None  # so that nothing is kept of the graph
            for handle in handles:
                handle.remove()

        return unwatch

    def _arrange(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Rearrange the input in memory once, as the layer would do for itself each time."""
        return (arranged(inputs[0], self._layout), *inputs[1:]) if inputs else inputs

    def _note(self, _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        if len(inputs) != 1 or named or not isinstance(output, Tensor) or output.grad_fn is None:
            self._samples.append(-1)
            return
        if inputs[0].dim() < 2 or len(inputs[0]) != len(output):
            self._samples.append(-1)
            return
        self._samples.append(len(output))
        if len(self._samples) > 1:  # in vain, or checkpointing's second run
            return
        self._into, self._version = inputs[0].detach(), inputs[0]._version
        # Either stays what it is if an activation writes into the output (of a view, nothing comes back then).
        if inputs[0].requires_grad:  # the backward pass goes through the layer: after all hooks of others on the output
            output.grad_fn.register_prehook(self._hear)
        else:
            self._edge = get_gradient_edge(output)

    def _hear(self, deltas: tuple[Tensor | None, ...]) -> tuple[Tensor] | None:
        if not self.listening or deltas[0] is None:
            return None
        delta = arranged(deltas[0], self._layout)
        self._take(delta)
        return (delta,)

    def _take(self, delta: Tensor) -> None:
        self._taken = self._is_fit(delta)
        if self._taken and self._pieces:
            pairs = zip(*(each.split_with_sizes(self._pieces) for each in (self._into, delta)), strict=True)
            self._apart = [self._owned(self._contract(*pair)) for pair in pairs]
            del self._into
        elif self._taken:
            self._delta = delta

    def _is_fit(self, delta: Tensor) -> bool:
        """Whether the input is still what it was, and what comes back is of its kind."""
        same = self._into.dtype == delta.dtype == self._weight.dtype
        return same and delta.dtype in PRECISE and self._into._version == self._version

    def apart(self) -> list[list[Tensor]]:
        return self._apart

    def sought(self) -> list[GradientEdge]:
        return [] if self._edge is None else [self._edge]

    def receive(self, found: Sequence[Tensor]) -> bool:
        for delta in found:
            self._take(arranged(delta, self._layout))
        return self._taken

    def gradients(self, weights: Tensor | None, rows: slice) -> dict[Tensor, Tensor]:
        delta = self._delta[rows]
        if weights is not None:
            delta = delta * weights.to(delta.dtype).view(-1, *(1,) * (delta.dim() - 1))
        return dict(zip(self.owned, self._owned(self._contract(self._into[rows], delta)), strict=True))

    def _owned(self, found: tuple[Tensor | None, Tensor | None]) -> list[Tensor]:
        """Of the weight's and the bias's gradients those that are sought."""
        return [
            gradient
            for gradient, wanted in zip(found, self._wanted[1:], strict=True)
            if wanted and gradient is not None
        ]

    def slopes(self, direction: Mapping[Tensor, Tensor], rows: slice) -> Tensor:
        weight = direction.get(self._weight)
        bias = None if self._bias is None else direction.get(self._bias)
        weight = torch.zeros_like(self._weight) if weight is None else weight
        moved = self._apply(self._into[rows], weight, bias)
        return (moved * self._delta[rows]).sum(tuple(range(1, moved.dim())))

    @abstractmethod
    def _contract(self, into: Tensor, delta: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Σ_i δ_i ⊗ a_i, and Σ_i δ_i where there is a bias."""

    @abstractmethod
    def _apply(self, into: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer with other parameters."""


@final
class LinearLayer(_Product):
    """Any number of dimensions, the last of which is multiplied."""

    def _contract(self, into: Tensor, delta: Tensor) -> tuple[Tensor | None, Tensor | None]:
        flat, wanted = delta.flatten(0, -2), self._wanted
        return flat.T @ into.flatten(0, -2) if wanted[1] else None, flat.sum(0) if wanted[2] else None

    def _apply(self, into: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return linear(into, weight, bias)


@final
class Convolution(_Product):
    """Of one to three dimensions, transposed or not, padded with zeros."""

    def __init__(self, module: nn.Module, pieces: Sequence[int] = ()) -> None:
        super().__init__(module, pieces)
        own = self._module
        self._layout = layout_of(self._weight)
        self._settings = (own.stride, own.padding, own.dilation, own.transposed, own.output_padding, own.groups)

    def _contract(self, into: Tensor, delta: Tensor) -> tuple[Tensor | None, Tensor | None]:
        biases = None if self._bias is None else list(self._bias.shape)
        backward = torch.ops.aten.convolution_backward.default
        _, weight, bias = backward(delta, into, self._weight, biases, *self._settings, self._wanted)
        return weight, bias

    def _apply(self, into: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.convolution(into, weight, bias, *self._settings)

    def _is_fit(self, delta: Tensor) -> bool:
        batched = self._into.dim() == self._weight.dim()
        return super()._is_fit(delta) and batched
