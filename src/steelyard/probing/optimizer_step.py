"""Hypothetical steps: one step of an optimizer, taken on replicas of its parameters."""

import copy
import inspect
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from steelyard.probing.passes import GradientRows, Leaves
from steelyard.probing.probe import Gradients
from steelyard.probing.replica import Replica

Rule = Literal["optimizer", "sgd"]

# Modules of optimizer wrappers that add no rule of their own.
_TRANSPARENT = ("accelerate.", "lightning.", "lightning_fabric.", "pytorch_lightning.")


class HypotheticalSteps:
    """The steps that an optimizer would take now.

    Args:
        optimizer: whose state and learning rates the steps have; wrappers of Lightning, Fabric and Accelerate are
            looked through.
        rule: how they are taken: by the optimizer's own rule, or as θ − η∇L.
    """

    def __init__(self, optimizer: Optimizer, rule: Rule) -> None:
        self.optimizer = innermost(optimizer)
        self._rule = rule
        self._linear = linear_steps(self.optimizer, rule)

    @property
    def are_linear(self) -> bool:
        """Whether a step is linear in the gradient, so that none need be taken to know ⟨Δ, G⟩."""
        return self._linear is not None

    def take(self, replica: Replica, leaves: Leaves, gradients: Gradients) -> None:
        """Step the replica's parameters along the gradients."""
        # An optimizer that is not torch's own may write into the gradients, which are used again.
        writes = not type(self.optimizer).__module__.startswith("torch.optim.")
        for leaf, gradient in zip(leaves.replicas, gradients, strict=True):
            leaf.grad = gradient
            if writes and gradient is not None:
                leaf.grad = gradient.clone()
        if self._rule == "sgd":
            take_sgd_step(self.optimizer, replica.parameters)
        else:
            take_own_step(self.optimizer, replica.parameters)

    def slopes(
        self, trained: GradientRows, tested: GradientRows, replica: Replica, leaves: Leaves, *, zero_step: bool
    ) -> Tensor:
        """⟨Δ_i, h_j⟩ for the step Δ_i along each row of gradients and each gradient h_j; float64 on the CPU.

        Args:
            trained: each domain's gradients on its meta-train half, one row each.
            tested: the gradients of what the steps are judged by, one row each.
            replica: on which steps may be taken; they are taken back.
            leaves: what the gradients belong to.
            zero_step: whether a last row is wanted, for the step that the optimizer takes for a gradient of zero.
        """
        with torch.no_grad():
            if self._linear is not None:
                return linear_slopes(trained, tested, self._linear, leaves, zero_step=zero_step)
            rows = [trained.row(number) for number in range(trained.count)]
            if zero_step:
                rows.append(zero_gradients(trained))
            slopes = [tested.products(self._difference(gradients, replica, leaves)).sum(1) for gradients in rows]
            return torch.stack(slopes)

    def _difference(self, gradients: Gradients, replica: Replica, leaves: Leaves) -> Gradients:
        """Δ, of a step that is taken on the replica and taken back."""
        self.take(replica, leaves, gradients)
        difference = torch._foreach_sub(leaves.replicas, leaves.live)
        torch._foreach_copy_(leaves.replicas, leaves.live)
        return difference


def zero_gradients(rows: GradientRows) -> Gradients:
    """Zeros for every parameter that any row has a gradient for; an optimizer does not step one without gradient."""
    zeros: list[Tensor | None] = []
    for column in rows.columns:
        present = [gradient for gradient in column if gradient is not None]
        zeros.append(torch.zeros_like(present[0]) if present else None)
    return zeros


def innermost(optimizer: Optimizer) -> Optimizer:
    """The optimizer itself, out of the wrappers of Lightning, Fabric and Accelerate, which add no rule of their own."""
    while any(kind.__module__.startswith(_TRANSPARENT) for kind in type(optimizer).__mro__):
        optimizer = optimizer.optimizer  # type: ignore[attr-defined]
    return optimizer


def take_sgd_step(optimizer: Optimizer, replicas: Mapping[Tensor, Tensor]) -> None:
    """θ ← θ − η∇L on the replicas, with the learning rate η of each parameter's group."""
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                replica = replicas.get(parameter)
                if replica is not None and replica.grad is not None:
                    replica -= group["lr"] * replica.grad


def take_own_step(optimizer: Optimizer, replicas: Mapping[Tensor, Tensor]) -> None:
    """One step by the optimizer's own rule, from its own state, on the replicas and their gradients.

    Neither the optimizer nor its state changes. No step hook fires, and no scheduler that counts steps sees one.
    """
    check_can_be_followed(optimizer)
    step = _bare_step(optimizer)
    with torch.no_grad():
        step(optimizer_replica(optimizer, replicas))


def check_can_be_followed(optimizer: Optimizer) -> None:
    """Refuse optimizers whose own step cannot be taken on replicas.

    Raises:
        TypeError: It steps another optimizer, or evaluates the loss again inside its step.
    """
    for name, value in vars(optimizer).items():
        if isinstance(value, Optimizer):
            raise TypeError(
                f"{type(optimizer).__name__} steps another optimizer ({name}), so a hypothetical step would move the "
                "live model: use InnerLoop(step='sgd')."
            )
    closure = inspect.signature(_bare_step(optimizer)).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"{type(optimizer).__name__} evaluates the loss again inside its step, so a hypothetical step cannot "
            "follow it: use a gradient-based optimizer, or InnerLoop(step='sgd')."
        )


def optimizer_replica(optimizer: Optimizer, replicas: Mapping[Tensor, Tensor]) -> Optimizer:
    """An optimizer of the same class, settings and state, which steps the replicas and fires no hook."""
    copied: Any = object.__new__(type(optimizer))
    for name, value in vars(optimizer).items():
        if isinstance(value, list | dict | set | deque):
            value = copy.copy(value)
        copied.__dict__[name] = value
    copied._optimizer_step_pre_hooks = OrderedDict()  # torch 2.13; without them, the live optimizer's would fire
    copied._optimizer_step_post_hooks = OrderedDict()
    copied.param_groups = [_group_replica(group, replicas) for group in optimizer.param_groups]
    copied.state = defaultdict(dict)
    for parameter, state in optimizer.state.items():
        if parameter in replicas:
            copied.state[replicas[parameter]] = {name: _copy(value) for name, value in state.items()}
    return copied  # type: ignore[no-any-return]


def _group_replica(group: Mapping[str, Any], replicas: Mapping[Tensor, Tensor]) -> dict[str, Any]:
    copied = {name: _copy(value) for name, value in group.items() if name != "params"}
    copied["params"] = [replicas[parameter] for parameter in group["params"] if parameter in replicas]
    return copied


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def _bare_step(optimizer: Optimizer) -> Callable[[Optimizer], Any]:
    """The class's `step` without the wrapper that fires hooks. A scheduler's counter is on the instance, not here."""
    step: Any = type(optimizer).step
    while getattr(step, "hooked", False):
        step = step.__wrapped__
    return step  # type: ignore[no-any-return]


class LinearStep(NamedTuple):
    """One parameter's step Δ = factor · g + decay · θ + inertia · buffer."""

    factor: float
    decay: float = 0.0
    inertia: float = 0.0
    buffer: Tensor | None = None


_NO_STEP = LinearStep(0.0)  # of a parameter that the optimizer does not hold


def linear_steps(optimizer: Optimizer, rule: Rule) -> dict[Tensor, LinearStep] | None:
    """Each parameter's step if it is linear in the gradient: plain gradient descent or torch's own SGD; else `None`."""
    if rule == "optimizer" and type(optimizer) is not torch.optim.SGD:
        return None
    steps: dict[Tensor, LinearStep] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if rule == "sgd":
                steps[parameter] = LinearStep(-float(group["lr"]))
            else:
                steps[parameter] = _sgd_step(group, optimizer.state.get(parameter, {}))
    return steps


def _sgd_step(group: Mapping[str, Any], state: Mapping[str, Any]) -> LinearStep:
    """A step of torch's SGD.

    Without momentum it is −η d with d = ±g + w θ; with momentum −η b, where b = μ b + (1 − τ) d starts as d. Nesterov's
    is −η (d + μ b).
    """
    rate, momentum = float(group["lr"]), group["momentum"]
    buffer = state.get("momentum_buffer") if momentum else None
    fresh = 1.0 if buffer is None else 1 - group["dampening"]  # the factor of d in b
    along, inertia = 1.0, 0.0  # the factors of d and of the old b in the step
    if momentum and group["nesterov"]:
        along, inertia = 1 + momentum * fresh, momentum**2
    elif momentum:
        along, inertia = fresh, momentum
    sign = -1.0 if group["maximize"] else 1.0
    return LinearStep(-rate * along * sign, -rate * along * group["weight_decay"], -rate * inertia, buffer)


def linear_slopes(
    trained: GradientRows,
    tested: GradientRows,
    steps: Mapping[Tensor, LinearStep],
    leaves: Leaves,
    *,
    zero_step: bool,
) -> Tensor:
    """⟨Δ_i, h_j⟩; a parameter that a domain has no gradient for is not stepped at all."""
    columns = [steps.get(live, _NO_STEP) for live in leaves.live]
    slopes = trained.inner_products(tested, [step.factor for step in columns])
    # Weight decay and momentum move a parameter the same way whatever its gradient.
    drift = tested.products([_drift(step, live) for step, live in zip(columns, leaves.live, strict=True)])
    present = trained.present().double()
    slopes += present @ drift.T
    if zero_step:
        slopes = torch.cat([slopes, (present.amax(0) @ drift.T)[None]])
    return slopes


def _drift(step: LinearStep, live: Tensor) -> Tensor | None:
    """The part of a parameter's step that does not depend on the gradient."""
    drift = live * step.decay if step.decay else None
    if not step.inertia or step.buffer is None:
        return drift
    if drift is None:
        return step.buffer * step.inertia
    return drift.add_(step.buffer, alpha=step.inertia)


def check_model_is_used(gradients: GradientRows, leaves: Leaves) -> None:
    """Refuse an objective that runs another model than it is given."""
    if not bool(gradients.present()[:, leaves.stepped].any()):
        raise ValueError(
            "no domain's loss depends on the parameters that the optimizer steps. An objective must run the model "
            "that it is given as its first argument."
        )
