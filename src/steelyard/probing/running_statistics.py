"""Running statistics: how learning passes move them, and what that does to losses that are judged on them."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from steelyard.probing.gradient_probe import Pass

_ROUNDING = 1e-6  # of a loss, which is the same to the bit if a buffer does not matter

Statistics = list[tuple[Tensor, Tensor]]
"""Each layer's running mean and variance."""


class RunningStatistics:
    """The running statistics that a network learns on batches and is judged by.

    Moving them changes what a layer makes of its inputs, x → (x − μ) / √(σ² + ε), as moving its inputs would. So the
    gradient of the judged loss at these inputs tells what the statistics do to it, whatever the layer does next.

    Args:
        judge: A stand-in of the network, in the modes found.
        evaluating: Whether to set it to evaluation mode, and tap the layers for which that makes a difference;
            otherwise running statistics judge nothing.
        watching: Whether to look for other buffers that learning passes change, which takes longer.
    """

    def __init__(self, judge: nn.Module, *, evaluating: bool, watching: bool) -> None:
        self._judge = judge
        self._watching = evaluating and watching
        self._noted: list[dict[str, Tensor]] = []
        self._layers = {
            place: _tapped(module)
            for place, module in enumerate(judge.modules() if evaluating else ())
            if isinstance(module, _NormBase) and module.training and module.running_mean is not None
        }
        if evaluating:
            judge.eval()

    @property
    def sought(self) -> list[Tensor]:
        """What the judged loss is to be differentiated for besides the parameters: two tensors a layer."""
        return [tensor for layer in self._layers.values() for tensor in layer.sought]

    def of(self, learner: nn.Module) -> Statistics:
        """Those of another stand-in of the same network, after a pass of its own; its other buffers may be noted."""
        modules = list(learner.modules())
        if self._watching and len(self._noted) < 2:  # two domains' are enough to see what differs
            self._noted.append({name: b for name, b in learner.named_buffers() if b.is_floating_point()})
        return [(modules[place].running_mean, modules[place].running_var) for place in self._layers]  # type: ignore[misc]

    def warn_of_others(self, tested: Pass, judge_again: Callable[[], Mapping[str, Tensor]]) -> None:
        """Warn if learning passes leave other buffers behind, too, each its own, and these matter.

        Args:
            tested: The judge's pass, with the gradients for what is `sought`.
            judge_again: Its losses, from another pass.
        """
        unseen = self._unseen(tested.besides) if len(self._noted) == 2 else []
        if not unseen:
            return
        judged = []
        with torch.no_grad():
            for noted in self._noted:
                for name, buffer in self._judge.named_buffers():
                    if name in unseen and buffer.shape == noted[name].shape:
                        buffer.copy_(noted[name])
                judged.append(judge_again())
        if any(abs(one - judged[1][name]) > _ROUNDING * abs(one) for name, one in judged[0].items()):
            warnings.warn(
                f"the forward pass changes the buffer {unseen[0]!r}, and what that does to losses judged in "
                "evaluation mode is no part of votes to first order: use InnerLoop(), or meta_test='batch'.",
                stacklevel=2,
            )

    def _unseen(self, gradients: Sequence[Tensor | None]) -> list[str]:
        """Buffers that learning passes leave behind differently, other than those of layers that gave gradients."""
        names = [name for name, _ in self._judge.named_modules()]
        known = {
            f"{names[place]}.{statistic}".lstrip(".")
            for place, found in zip(self._layers, gradients[::2], strict=True)
            if found is not None
            for statistic in ("running_mean", "running_var")
        }
        one, other = self._noted
        return [name for name in one if name not in known and name in other and not torch.equal(one[name], other[name])]

    def change(self, learned: Statistics, gradients: Sequence[Tensor | None]) -> Tensor:
        """What learned statistics in place of the judge's add to its loss, to first order in what leaves the layers.

        Args:
            learned: As `of` found them.
            gradients: Of the judged loss, for what is `sought`.
        """
        found = [
            layer.change(mean, variance, (first, second))
            for layer, (mean, variance), first, second in zip(
                self._layers.values(), learned, gradients[::2], gradients[1::2], strict=True
            )
            if first is not None and second is not None  # of a layer that was run
        ]
        if not found:
            return torch.zeros((), dtype=torch.float64)
        return torch.stack([each.to(found[0].device) for each in found]).sum()


class _Tapped(ABC):
    """A layer of the judge, watched so that the loss's gradients at its inputs are known in sums over each channel."""

    def __init__(self, layer: _NormBase) -> None:
        mean, variance = layer.running_mean, layer.running_var
        assert mean is not None  # noqa: S101
        assert variance is not None  # noqa: S101
        self._mean, self._variance, self._eps = mean.clone(), variance.clone(), layer.eps

    @property
    @abstractmethod
    def sought(self) -> tuple[Tensor, Tensor]:
        """What the judged loss is differentiated for."""

    @abstractmethod
    def pulls(self, found: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """How the loss changes as the inputs are shifted, and as they are stretched about μ."""

    def change(self, mean: Tensor, variance: Tensor, found: Sequence[Tensor]) -> Tensor:
        """As if x were moved so that the layer's own statistics made of it what the learned ones make of x."""
        pull, pull_apart = self.pulls(found)
        ratio = ((self._variance.double() + self._eps) / (variance.double() + self._eps)).sqrt()
        return ((ratio - 1) * pull_apart - ratio * (mean.double() - self._mean.double()) * pull).sum()


class _Scaled(_Tapped):
    """A layer that makes γ (x − μ) / √(σ² + ε) + β of x: the gradients of γ and β have the sums in them.

    They are those of stand-ins of γ and β while the layer runs, so that nothing else that uses these counts.
    """

    def __init__(self, layer: _NormBase) -> None:
        super().__init__(layer)
        assert layer.running_mean is not None  # noqa: S101
        self._scale = _stand_in(layer.weight, torch.ones_like(layer.running_mean))
        self._shift = _stand_in(layer.bias, torch.zeros_like(layer.running_mean))
        self._own: dict[str, nn.Parameter | None] = {}
        layer.register_forward_pre_hook(self._put_in)
        layer.register_forward_hook(self._take_out, prepend=True, always_call=True)  # before any that looks at it

    def _put_in(self, layer: nn.Module, _: tuple[Tensor, ...]) -> None:
        self._own = dict(layer._parameters)
        layer._parameters.update(weight=self._scale, bias=self._shift)  # type: ignore[call-overload]

    def _take_out(self, layer: nn.Module, *_: object) -> None:
        layer._parameters.update(self._own)

    @property
    def sought(self) -> tuple[Tensor, Tensor]:
        return self._shift, self._scale

    def pulls(self, found: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        scale = self._scale.detach().double()
        return scale / (self._variance.double() + self._eps).sqrt() * found[0].double(), scale * found[1].double()


def _stand_in(parameter: Tensor | None, neutral: Tensor) -> Tensor:
    """A tensor of the same values, whose gradient is part of the parameter's, if it has one."""
    if parameter is not None and parameter.requires_grad:
        return parameter.view_as(parameter)
    return (neutral if parameter is None else parameter.detach()).requires_grad_()


class _Hooked(_Tapped):
    """A layer of any other kind, whose inputs are as if shifted by `shift`, and stretched about μ by `stretch`."""

    def __init__(self, layer: _NormBase) -> None:
        super().__init__(layer)
        self._shift = torch.zeros_like(self._mean, dtype=torch.float64, requires_grad=True)
        self._stretch = torch.zeros_like(self._shift, requires_grad=True)
        layer.register_forward_pre_hook(self._tap)

    def _tap(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, *others = inputs
        return _Tap.apply(x, self._mean, self._shift, self._stretch), *others  # type: ignore[no-untyped-call]

    @property
    def sought(self) -> tuple[Tensor, Tensor]:
        return self._shift, self._stretch

    def pulls(self, found: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        return found[0], found[1]


def _tapped(layer: _NormBase) -> _Tapped:
    """Watched in the way that costs nothing, where the layer runs as torch has it with parameters as they are."""
    usual = type(layer).forward in (_BatchNorm.forward, _InstanceNorm.forward) and "forward" not in vars(layer)
    plain = {"weight", "bias"} <= layer._parameters.keys() and not layer._forward_pre_hooks
    return _Scaled(layer) if usual and plain else _Hooked(layer)


class _Tap(torch.autograd.Function):
    """x, and backwards the gradients by which a shift and a stretch of it would count."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mean: Tensor, *_: Tensor) -> Tensor:
        """Return x; it costs nothing."""
        ctx.save_for_backward(x, mean)
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, Tensor, Tensor]:
        """Return the gradient, and its sums over all but the channels."""
        x, mean = ctx.saved_tensors
        others = [0, *range(2, x.dim())]
        wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        centred = x - mean.to(x.dtype).view(-1, *[1] * (x.dim() - 2))
        return gradient, None, wide.sum(others).double(), (wide * centred).sum(others).double()


def mean_statistics(each: Sequence[Statistics]) -> Statistics:
    """The average over passes."""
    return [
        (torch.stack([mean for mean, _ in layer]).mean(0), torch.stack([variance for _, variance in layer]).mean(0))
        for layer in zip(*each, strict=True)
    ]
