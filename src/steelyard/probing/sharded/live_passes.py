"""Passes on the live modules themselves, for models that cannot be copied; they leave no trace."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.probing.audit import graph_leaves
from steelyard.probing.probe import Gradients
from steelyard.probing.replica import preserved_random_states

_PLAIN = frozenset((bool, int, float, str, type(None)))


def live_gradients(
    compute: Callable[[], Tensor], parameters: Sequence[Tensor], *, modules: Sequence[nn.Module]
) -> tuple[Tensor, Gradients]:
    """A loss, detached, and its gradients for the parameters, by a backward pass through the live modules.

    Every `grad`, buffers, modes, numbers that modules keep and random numbers are afterwards what they were.

    Args:
        compute: runs the live modules, and returns a scalar.
        parameters: of the live modules; the backward pass may fill their `grad` in ways of its own.
        modules: what `compute` runs.
    """
    with preserved_random_states(parameters), unchanged_modules(modules):
        loss = compute()
        if not loss.requires_grad:
            return loss.detach(), [None] * len(parameters)
        with gradients_put_aside([*parameters, *graph_leaves(loss)]):
            # As `backward()` after a loop's autocast: within it, operations that the model keeps from being cast would
            # be cast.
            with torch.autocast(loss.device.type, enabled=False):
                loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach(), [parameter.grad for parameter in parameters]


@contextmanager
def unchanged_modules(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Within it, modules write to copies of their buffers; modes, plain attributes and generators are put back."""
    members: dict[nn.Module, None] = {}  # in order, each once
    for module in modules:
        members.update(dict.fromkeys(module.modules()))
    numbers = [(module, _plain_attributes(module)) for module in members]
    generators = [(generator, generator.get_state()) for generator in _generators(members)]
    buffers = _exchange_buffers(members)
    try:
        yield
    finally:
        for module, original in buffers:
            module._buffers.clear()
            module._buffers.update(original)
        for module, attributes in numbers:
            vars(module).update(attributes)
        for generator, state in generators:
            generator.set_state(state)


def _exchange_buffers(modules: Iterable[nn.Module]) -> list[tuple[nn.Module, dict[str, Tensor | None]]]:
    """Replace every module's buffers by copies; return the originals."""
    originals: list[tuple[nn.Module, dict[str, Tensor | None]]] = []
    copies: dict[Tensor, Tensor] = {}  # a buffer that several modules share stays shared
    for module in modules:
        originals.append((module, dict(module._buffers)))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = copies.setdefault(buffer, buffer.clone())
    return originals


@contextmanager
def gradients_put_aside(leaves: Iterable[Tensor]) -> Iterator[None]:
    """Within it, leaves have no `grad`; afterwards those that they had."""
    gradients = {leaf: leaf.grad for leaf in leaves}
    try:
        for leaf in gradients:
            leaf.grad = None
        yield
    finally:
        for leaf, gradient in gradients.items():
            leaf.grad = gradient


def _plain_attributes(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if type(value) in _PLAIN}


def _generators(modules: Iterable[nn.Module]) -> Iterator[torch.Generator]:
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, torch.Generator):
                yield value
