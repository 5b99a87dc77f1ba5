"""Normalisations of each sample, which scale and shift."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.functional import group_norm, instance_norm, layer_norm

from steelyard.probing.layer import PRECISE, Layer
from steelyard.probing.memory_layout import layout_of


class _Scaling(Layer):
    """A normalisation of each sample: with a copy of the parameters for each, whose gradients are the sample's."""

    def __init__(self, module: nn.Module, pieces: Sequence[int] = ()) -> None:
        super().__init__(module, pieces)
        self._copies: dict[Tensor, Tensor] = {}
        self._found: dict[Tensor, Tensor] = {}

    def watch(self) -> Callable[[], None]:
        def forward(input: Tensor) -> Tensor:  # noqa: A002  # the layer's own name for it
            if not self._is_fit(input):
                self._samples.append(-1)
                return self._module.__class__.forward(self._module, input)  # type: ignore[no-any-return]
            self._samples.append(len(input))
            copies = {p: p.expand(len(input), *p.shape) + 0 for p in (self._weight, self._bias) if p is not None}
            self._copies = self._copies or copies  # not those of checkpointing's second run
            return self._normalise(input, *copies.values())

        self._module.forward = forward
        return lambda: delattr(self._module, "forward")

    def sought(self) -> list[GradientEdge]:
        return [get_gradient_edge(self._copies[parameter]) for parameter in self.owned]

    def receive(self, found: Sequence[Tensor]) -> bool:
        self._found = dict(zip(self.owned, found, strict=True))
        return True

    def gradients(self, weights: Tensor | None, rows: slice) -> dict[Tensor, Tensor]:
        chosen = {parameter: each[rows] for parameter, each in self._found.items()}
        if weights is None:
            return {parameter: each.sum(0) for parameter, each in chosen.items()}
        return {
            parameter: (weights.to(each.dtype) @ each.flatten(1)).view_as(parameter)
            for parameter, each in chosen.items()
        }

    def slopes(self, direction: Mapping[Tensor, Tensor], rows: slice) -> Tensor:
        return torch.stack(
            [each[rows].flatten(1) @ direction[p].flatten() for p, each in self._found.items() if p in direction]
        ).sum(0)

    def apart(self) -> list[list[Tensor]]:
        summed = [self._summed(each) for each in self._found.values()]
        return [list(parts) for parts in zip(*summed, strict=True)]

    def _summed(self, each: Tensor) -> Sequence[Tensor]:
        if len(set(self._pieces)) == 1:
            return each.unflatten(0, (len(self._pieces), -1)).sum(1).unbind()  # type: ignore[no-untyped-call,no-any-return]
        return [part.sum(0) for part in each.split_with_sizes(self._pieces)]

    def _is_fit(self, inputs: Tensor) -> bool:
        """Whether it can be done in several operations: of samples, and with no coarser rounding in between."""
        return inputs.dtype in PRECISE and self._are_samples(inputs)

    @abstractmethod
    def _are_samples(self, inputs: Tensor) -> bool:
        """Whether the first dimension is the samples."""

    @abstractmethod
    def _normalise(self, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The layer, with one copy of its parameters for each sample."""


@final
class InstanceNorm(_Scaling):
    """Each channel of each sample by itself."""

    def _are_samples(self, inputs: Tensor) -> bool:
        return bool(inputs.dim() == self._module._get_no_batch_dim() + 1)

    def _normalise(self, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """All channels of all samples as the channels of one, which is how the layer runs anyway."""
        self._module._check_input_dim(inputs)
        one, shift = inputs.reshape(1, -1, *inputs.shape[2:]), None if bias is None else bias.view(-1)
        normal = instance_norm(one, weight=weight.view(-1), bias=shift, eps=self._module.eps).view(inputs.shape)
        layout = layout_of(inputs)
        return normal if layout is None else normal.contiguous(memory_format=layout)


@final
class LayerNorm(_Scaling):
    """All of a sample from some dimension on."""

    def _are_samples(self, inputs: Tensor) -> bool:
        return inputs.dim() > len(self._module.normalized_shape)

    def _normalise(self, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        normal = layer_norm(inputs, self._module.normalized_shape, eps=self._module.eps)
        shape = (len(inputs), *(1,) * (inputs.dim() - weight.dim()), *weight.shape[1:])
        scaled = normal * weight.view(shape)
        return scaled if bias is None else scaled + bias.view(shape)


@final
class GroupNorm(_Scaling):
    """Groups of channels of each sample."""

    def _are_samples(self, inputs: Tensor) -> bool:
        return inputs.dim() > 1

    def _normalise(self, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        normal = group_norm(inputs, self._module.num_groups, eps=self._module.eps)
        shape = (*weight.shape, *(1,) * (inputs.dim() - 2))
        if bias is None:
            return normal * weight.view(shape)
        return torch.addcmul(bias.view(shape), normal, weight.view(shape))
