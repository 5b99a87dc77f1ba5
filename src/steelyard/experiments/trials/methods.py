"""The methods that trials compare, by name."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

import steelyard as sy
from steelyard.experiments.problems.problem import DomainData, Problem
from steelyard.files.checks import check_choice

Loss = Callable[[Tensor, Tensor], Tensor]
Settings = dict[str, Any]
"""Arguments of `Balancer` beside the domains and the loss."""

BASELINE = "equal"
"""The method that the others are compared with."""

METHODS: dict[str, Callable[[Problem], Settings]] = {
    BASELINE: lambda _: {"weighting": sy.Fixed(), "probe": None},
    # The same weights, with a probe for the audit.
    "equal-audited": lambda _: {"weighting": sy.Fixed(), "probe": sy.FirstOrder()},
    "greedy-25": lambda _: {"weighting": sy.DirichletVote("greedy", window=25), "probe": sy.InnerLoop()},
    "conservative-25": lambda _: {"weighting": sy.DirichletVote("conservative", window=25), "probe": sy.InnerLoop()},
    "evidence": lambda _: {},
    "evidence-loss": lambda _: {"judge": "loss"},
    "evidence-task": lambda problem: {"judge": problem.judge},
    "evidence-exact": lambda _: {"weighting": sy.Evidence(), "probe": sy.InnerLoop()},
    "evidence-no-caution": lambda _: {"weighting": sy.Evidence(caution=0.0)},
    "inverse-loss": lambda _: {"weighting": sy.LogLoss()},
}


def check_method(name: str) -> None:
    """Refuse a name that no method has.

    Raises:
        UserError: There is no such method.
    """
    check_choice("method", name, tuple(METHODS))


def build_balancer(method: str, problem: Problem, domains: Mapping[str, DomainData]) -> sy.Balancer:
    """Return a balancer that weighs the domains' losses by a method."""
    return sy.Balancer(tuple(domains), loss=_losses(problem, domains), **METHODS[method](problem))


def _losses(problem: Problem, domains: Mapping[str, DomainData]) -> Loss | dict[str, Loss]:
    """Return one loss for all domains, or one for each where their factors differ."""
    if all(data.loss_factor == 1 for data in domains.values()):
        return problem.loss
    return {name: _scaled(problem.loss, data.loss_factor) for name, data in domains.items()}


def _scaled(loss: Loss, factor: float) -> Loss:
    return lambda outputs, targets: factor * loss(outputs, targets)
