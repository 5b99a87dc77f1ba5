"""Layers that are linear in their own parameters: gradients from what goes in and what comes back."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.functional import group_norm, instance_norm, layer_norm, linear


class Layer(ABC):
    """What one layer of a network has seen in one run over samples, which are the first dimension."""

    def __init__(self, module: nn.Module) -> None:
        self._module: Any = module
        self._samples: list[int] = []

    @property
    def owned(self) -> list[Tensor]:
        """The parameters that are differentiated."""
        return [parameter for parameter in self._module.parameters() if parameter.requires_grad]

    def ran_once_over(self, samples: int) -> bool:
        """Whether it ran once, over this many samples, in a way that is understood."""
        return self._samples == [samples]

    @abstractmethod
    def watch(self) -> Callable[[], None]:
        """Take notes while the network runs; returns what ends that."""

    @abstractmethod
    def sought(self) -> list[GradientEdge]:
        """Where in the automatic differentiation the loss's gradients are asked for."""

    @abstractmethod
    def receive(self, found: Sequence[Tensor]) -> bool:
        """Take them; whether they can be used."""

    @abstractmethod
    def gradients(self, weights: Tensor | None, rows: slice) -> dict[Tensor, Tensor]:
        """Each parameter's gradient if each of the chosen samples' losses had a weight."""

    @abstractmethod
    def slopes(self, direction: Mapping[Tensor, Tensor], rows: slice) -> Tensor:
        """For each of the chosen samples, the inner product of its gradient and a direction."""


class _Product(Layer):
    """Weights times the input: a gradient is Σ_i δ_i ⊗ a_i over the samples, a_i the input, δ_i what comes back."""

    _layout: torch.memory_format | None = None
    _into: Tensor
    _version: int
    _edge: GradientEdge
    _delta: Tensor

    def watch(self) -> Callable[[], None]:
        # First of all hooks, because another may return something else than what the layer has made.
        handles = [self._module.register_forward_hook(self._note, with_kwargs=True, prepend=True)]
        if self._layout is not None:
            handles.append(self._module.register_forward_pre_hook(self._arrange))

        def unwatch() -> None:
            for handle in handles:
                handle.remove()

        return unwatch

    def _arrange(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Rearrange the input in memory once, as the layer would do for itself each time."""
        if not inputs or inputs[0].dim() != self._module.weight.dim():
            return inputs
        return (_arranged(inputs[0], self._layout), *inputs[1:])

    def _note(self, _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        if len(inputs) != 1 or named or not isinstance(output, Tensor) or output.grad_fn is None:
            self._samples.append(-1)
            return
        self._samples.append(len(output))
        if len(self._samples) > 1:  # in vain, or checkpointing's second run
            return
        self._into, self._version = inputs[0].detach(), inputs[0]._version
        self._edge = get_gradient_edge(output)  # stays what it is if an activation writes into the output
        if self._layout is not None and output.dim() == self._module.weight.dim():
            # Before it is captured, and before the layer's own backward pass. The hook must not lead back here: what
            # the layer holds would stay in memory until a collector of cycles comes by.
            output.register_hook(partial(_arranged, layout=self._layout))  # type: ignore[no-untyped-call]

    def sought(self) -> list[GradientEdge]:
        return [self._edge]

    def receive(self, found: Sequence[Tensor]) -> bool:
        self._delta = found[0]
        return (
            self._into._version == self._version and self._into.dtype == self._delta.dtype == self._module.weight.dtype
        )

    def gradients(self, weights: Tensor | None, rows: slice) -> dict[Tensor, Tensor]:
        delta = self._delta[rows]
        if weights is not None:
            delta = delta * weights.to(delta.dtype).view(-1, *(1,) * (delta.dim() - 1))
        found = zip((self._module.weight, self._module.bias), self._contract(self._into[rows], delta), strict=True)
        return {parameter: each for parameter, each in found if each is not None and parameter.requires_grad}

    def slopes(self, direction: Mapping[Tensor, Tensor], rows: slice) -> Tensor:
        weight = direction.get(self._module.weight)
        bias = None if self._module.bias is None else direction.get(self._module.bias)
        weight = torch.zeros_like(self._module.weight) if weight is None else weight
        moved = self._apply(self._into[rows], weight, bias)
        return (moved * self._delta[rows]).sum(tuple(range(1, moved.dim())))

    @abstractmethod
    def _contract(self, into: Tensor, delta: Tensor) -> tuple[Tensor, Tensor | None]:
        """Σ_i δ_i ⊗ a_i, and Σ_i δ_i where there is a bias."""

    @abstractmethod
    def _apply(self, into: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer with other parameters."""


@final
class _Linear(_Product):
    def _contract(self, into: Tensor, delta: Tensor) -> tuple[Tensor, Tensor | None]:
        flat = delta.flatten(0, -2)
        return flat.T @ into.flatten(0, -2), None if self._module.bias is None else flat.sum(0)

    def _apply(self, into: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return linear(into, weight, bias)


@final
class _Convolution(_Product):
    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._layout = _layout_of(self._module.weight)

    def _contract(self, into: Tensor, delta: Tensor) -> tuple[Tensor, Tensor | None]:
        module, biased = self._module, self._module.bias is not None
        sizes = [module.out_channels] if biased else None
        wanted = [False, True, biased]
        _, weight, bias = torch.ops.aten.convolution_backward(
            delta, into, module.weight, sizes, *self._settings, wanted
        )
        return weight, bias

    def _apply(self, into: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.convolution(into, weight, bias, *self._settings)

    def receive(self, found: Sequence[Tensor]) -> bool:
        batched = self._into.dim() == self._module.weight.dim()
        return super().receive(found) and batched

    @property
    def _settings(self) -> tuple[Any, ...]:
        module = self._module
        return (
            module.stride,
            module.padding,
            module.dilation,
            module.transposed,
            module.output_padding,
            module.groups,
        )


class _Scaling(Layer):
    """A normalisation of each sample: with a copy of the parameters for each, whose gradients are the sample's."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._copies: dict[Tensor, Tensor] = {}
        self._found: dict[Tensor, Tensor] = {}

    def watch(self) -> Callable[[], None]:
        def forward(input: Tensor) -> Tensor:  # noqa: A002  # the layer's own name for it
            self._samples.append(len(input))
            copies = {p: p.expand(len(input), *p.shape) + 0 for p in self._module.parameters()}
            self._copies = self._copies or copies  # not those of checkpointing's second run
            return self._normalise(input, copies[self._module.weight], copies.get(self._module.bias))

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

    @abstractmethod
    def _normalise(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer, with one copy of its parameters for each sample."""


@final
class _InstanceNorm(_Scaling):
    def _normalise(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """All channels of all samples as the channels of one, which is how the layer runs anyway."""
        assert bias is not None  # noqa: S101
        self._module._check_input_dim(inputs)
        one = inputs.reshape(1, -1, *inputs.shape[2:])
        normal = instance_norm(one, weight=weight.view(-1), bias=bias.view(-1), eps=self._module.eps).view(inputs.shape)
        layout = _layout_of(inputs)
        return normal if layout is None else normal.contiguous(memory_format=layout)


@final
class _LayerNorm(_Scaling):
    def _normalise(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        normal = layer_norm(inputs, self._module.normalized_shape, eps=self._module.eps)
        shape = (len(inputs), *(1,) * (inputs.dim() - weight.dim()), *weight.shape[1:])
        scaled = normal * weight.view(shape)
        return scaled if bias is None else scaled + bias.view(shape)


@final
class _GroupNorm(_Scaling):
    def _normalise(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        assert bias is not None  # noqa: S101
        normal = group_norm(inputs, self._module.num_groups, eps=self._module.eps)
        shape = (*weight.shape, *(1,) * (inputs.dim() - 2))
        return torch.addcmul(bias.view(shape), normal, weight.view(shape))


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_KINDS: dict[type[nn.Module], type[Layer]] = {
    nn.Linear: _Linear,
    nn.LayerNorm: _LayerNorm,
    nn.GroupNorm: _GroupNorm,
    **dict.fromkeys(_CONVOLUTIONS, _Convolution),
    **dict.fromkeys(_INSTANCE_NORMS, _InstanceNorm),
}


def _layout_of(tensor: Tensor) -> torch.memory_format | None:
    """How the tensor lies in memory if channels are last in it."""
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    if layout is None or tensor.is_contiguous() or not tensor.is_contiguous(memory_format=layout):
        return None
    return layout


def _arranged(tensor: Tensor, layout: torch.memory_format | None) -> Tensor:
    return tensor.contiguous(memory_format=layout or torch.preserve_format)


def layer_of(module: nn.Module) -> Layer | None:
    """The module as a layer, if it is of a kind that is known."""
    kind = _KINDS.get(type(module))
    known = "forward" not in vars(module) and not module._forward_pre_hooks
    if kind is _Convolution:
        known &= module.padding_mode == "zeros" and not isinstance(module.padding, str)
    if kind is _InstanceNorm:
        known &= not module.track_running_stats
    return kind(module) if kind is not None and known else None
