"""One step of an optimizer, taken on stand-ins for its parameters."""

import copy
import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

Step = Literal["optimizer", "sgd"]


def innermost(optimizer: Optimizer) -> Optimizer:
    """The optimizer itself, out of the wrappers of Lightning, Fabric and their like."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer) and inner is not optimizer:
        optimizer = inner
    return optimizer


def take_sgd_step(optimizer: Optimizer, stand_ins: Mapping[Tensor, Tensor]) -> None:
    """θ ← θ − η∇L on the stand-ins, with the learning rate η of each parameter's group."""
    with torch.no_grad():
        for group in optimizer.param_groups:
            for stand_in in (stand_ins[p] for p in group["params"] if p in stand_ins):
                if stand_in.grad is not None:
                    stand_in -= group["lr"] * stand_in.grad


def take_own_step(optimizer: Optimizer, stand_ins: Mapping[Tensor, Tensor]) -> None:
    """One step by the optimizer's own rule, from its own state, on the stand-ins and their gradients.

    Neither the optimizer nor its state changes. No step hook fires, and no scheduler that counts steps sees one.
    """
    step = _bare_step(optimizer)
    with torch.no_grad():
        step(_stand_in(optimizer, stand_ins))


def _stand_in(optimizer: Optimizer, stand_ins: Mapping[Tensor, Tensor]) -> Optimizer:
    twin: Any = object.__new__(type(optimizer))
    twin.__dict__.update(vars(optimizer))
    twin._optimizer_step_pre_hooks = OrderedDict()
    twin._optimizer_step_post_hooks = OrderedDict()
    twin.param_groups = [
        {key: _copy(value) for key, value in group.items() if key != "params"}
        | {"params": [stand_ins[p] for p in group["params"] if p in stand_ins]}
        for group in optimizer.param_groups
    ]
    twin.state = defaultdict(dict)
    for key, state in optimizer.state.items():
        if key in stand_ins:
            twin.state[stand_ins[key]] = {name: _copy(value) for name, value in state.items()}
    return twin  # type: ignore[no-any-return]


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def _bare_step(optimizer: Optimizer) -> Callable[[Optimizer], Any]:
    """The class's `step` without the wrapper that fires hooks. A scheduler's counter is on the instance, not here."""
    step: Any = type(optimizer).step
    while getattr(step, "hooked", False):
        step = step.__wrapped__
    closure = inspect.signature(step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"{type(optimizer).__name__} evaluates the loss again inside its step, so a hypothetical step cannot "
            "follow it: use a gradient-based optimizer, or InnerLoop(step='sgd')."
        )
    return step  # type: ignore[no-any-return]


STEPS: dict[Step, Callable[[Optimizer, Mapping[Tensor, Tensor]], None]] = {
    "optimizer": take_own_step,
    "sgd": take_sgd_step,
}
