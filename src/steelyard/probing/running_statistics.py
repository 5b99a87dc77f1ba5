"""Running statistics: how learning passes move them, and what that does to losses that are judged on them."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

Moves = list[Tensor]
"""How far each layer's running mean and variance went: two tensors a layer."""


class _Layer(NamedTuple):
    """One normalisation: where it learns statistics, where it is judged on them, and what stands in for γ and β there.

    y = γ (x − μ) / √(σ² + ε) + β, so that ∂L/∂μ = −γ/√(σ² + ε) · ∂L/∂β and ∂L/∂σ² = −γ/(2(σ² + ε)) · ∂L/∂γ: the
    gradients of γ and β tell what running statistics do, which torch does not differentiate for.
    """

    learner: _NormBase
    judge: _NormBase
    scale: Tensor
    shift: Tensor


class RunningStatistics:
    """The running statistics of a network that learns on batch statistics and is judged on running ones.

    Args:
        learner: A stand-in of the network, in the modes found.
        judge: Another, in the modes of the vote. Its layers' γ and β become views, to be differentiated for.

    Attributes:
        sought: What the judged loss is to be differentiated for besides the parameters; two tensors a layer.
    """

    def __init__(self, learner: nn.Module, judge: nn.Module) -> None:
        self._layers = [
            _Layer(mine, yours, *_exposed(yours))
            for mine, yours in zip(learner.modules(), judge.modules(), strict=True)
            if isinstance(mine, _NormBase) and isinstance(yours, _NormBase)
            if mine.running_mean is not None and mine.training and not yours.training
        ]
        self._found = [(buffer, buffer.clone()) for buffer in learner.buffers()]
        self.sought = [tensor for layer in self._layers for tensor in (layer.scale, layer.shift)]

    def take(self) -> Moves:
        """What the learner's last pass has done to the statistics; its buffers are put back as found."""
        moves = [
            getattr(layer.learner, name) - getattr(layer.judge, name)
            for layer in self._layers
            for name in ("running_mean", "running_var")
        ]
        for buffer, found in self._found:
            buffer.copy_(found)
        return moves

    def change(self, moves: Moves, gradients: Sequence[Tensor | None]) -> Tensor:
        """What the moves add to the loss of these gradients, to first order."""
        found = [torch.zeros((), dtype=torch.float64)]
        for place, layer in enumerate(self._layers):
            of_scale, of_shift = gradients[2 * place : 2 * place + 2]
            mean, variance = moves[2 * place : 2 * place + 2]
            if of_scale is not None and of_shift is not None:
                held = layer.judge.running_var
                assert held is not None  # noqa: S101
                spread = held + layer.judge.eps
                each = mean * of_shift / spread.sqrt() + variance * of_scale / spread / 2
                found.append(-(layer.scale.detach() * each).double().sum().cpu())
        return torch.stack(found).sum()


def mean_moves(one: Moves, other: Moves) -> Moves:
    """How far two passes moved the statistics on average."""
    return [(mine + yours) / 2 for mine, yours in zip(one, other, strict=True)]


def _exposed(layer: _NormBase) -> Iterator[Tensor]:
    """Put tensors of its own in the places of γ and β, which it may share with others, not train or not have."""
    for name, fill in (("weight", torch.ones_like), ("bias", torch.zeros_like)):
        held: Tensor | None = layer._parameters.pop(name)
        if held is None:
            assert layer.running_mean is not None  # noqa: S101
            held = fill(layer.running_mean)
        with torch.enable_grad():
            own = held.view_as(held) if held.requires_grad else held.clone().requires_grad_()
        setattr(layer, name, own)
        yield own
