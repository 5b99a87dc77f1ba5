"""torchjd's methods as training steps."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from steelyard.benchmark.tasks import Step, Task, make_optimizer

SCALARIZERS = ("FAMO", "DWA", "UW")
AGGREGATORS = ("UPGrad", "MGDA", "PCGrad", "CAGrad", "IMTLG", "AlignedMTL")
BY_DOMAIN = " by domain"
_TORCHJD = "torchjd "
# Packages that an aggregator needs. UPGrad's solver is GPL, and no extra of this library installs it.
_SOLVERS = {"UPGrad": ("quadprog", "qpsolvers"), "CAGrad": ("cvxpy", "clarabel")}
_AGGREGATOR_ARGUMENTS = {"CAGrad": {"c": 0.5}}


def peer_methods(network: str) -> list[str]:
    """Return the methods that are installed.

    Aggregators come in two variants: as in torchjd's documentation, and `by domain` where samples are processed
    independently.
    """
    if not find_spec("torchjd"):
        return []
    aggregators = [name for name in AGGREGATORS if _has_solver(name)]
    names = [*SCALARIZERS, *aggregators]
    if network != "unet-batchnorm":
        names += [f"{name}{BY_DOMAIN}" for name in aggregators]
    return [f"{_TORCHJD}{name}" for name in names]


def _has_solver(aggregator: str) -> bool:
    return all(find_spec(package) for package in _SOLVERS.get(aggregator, ()))


def peer_call(method: str, domains: int) -> str:
    """Return the constructor call of a method as Python code; empty for what is not a method of torchjd.

    >>> peer_call("torchjd CAGrad by domain", 2)
    'torchjd.aggregation.CAGrad(c=0.5)'
    """
    name = method.removeprefix(_TORCHJD).removesuffix(BY_DOMAIN)
    scalarizer_arguments = {
        "DWA": "",
        "UW": f"{domains}",
        "FAMO": f"{domains}, min_losses=torch.full(({domains},), -1.0)",
    }
    if name in SCALARIZERS:
        return f"torchjd.scalarization.{name}({scalarizer_arguments[name]})"
    if name in AGGREGATORS:
        return f"torchjd.aggregation.{name}({arguments_text(_AGGREGATOR_ARGUMENTS.get(name, {}))})"
    return ""


def arguments_text(arguments: Mapping[str, object]) -> str:
    """Return keyword arguments as Python code.

    >>> arguments_text({"reuse": "detect", "every": 4})
    'reuse="detect", every=4'
    """
    texts = []
    for name, value in arguments.items():
        literal = f'"{value}"' if isinstance(value, str) else repr(value)
        texts.append(f"{name}={literal}")
    return ", ".join(texts)


def make_peer_step(method: str, task: Task) -> Step:
    """Return a step by the method of this name."""
    name = method.removeprefix(_TORCHJD)
    if name in SCALARIZERS:
        return _make_scalarized_step(name, task)
    if name.endswith(BY_DOMAIN):
        return _make_step_by_domain(make_aggregator(name.removesuffix(BY_DOMAIN)), task)
    return _make_aggregated_step(make_aggregator(name), task)


def make_aggregator(name: str) -> Any:
    """Return torchjd's aggregator of this name."""
    from torchjd import aggregation

    return getattr(aggregation, name)(**_AGGREGATOR_ARGUMENTS.get(name, {}))


def joint_losses(task: Task) -> Callable[[], Tensor]:
    """Return a function that computes all domains' losses in one forward pass, over samples joined beforehand."""
    inputs, targets = zip(*task.batch.values(), strict=True)  # one of each per domain
    joined_inputs = torch.cat(inputs)
    sizes = list(map(len, targets))

    def losses() -> Tensor:
        outputs = task.run(joined_inputs).split(sizes)
        return torch.stack(list(map(task.loss, outputs, targets)))

    return losses


def _make_scalarizer(name: str, domains: int) -> Any:
    from torchjd import scalarization

    if name == "DWA":
        return scalarization.DWA()
    if name == "UW":
        return scalarization.UW(domains)
    # Lower bounds of the losses: cross-entropy minus Dice is above −1, and the others are above 0.
    return scalarization.FAMO(domains, min_losses=torch.full((domains,), -1.0))


def _make_scalarized_step(name: str, task: Task) -> Step:
    """All losses of one forward pass, combined into a scalar."""
    scalarizer = _make_scalarizer(name, len(task.batch))
    losses = joint_losses(task)
    optimizer = task.optimizer
    if name == "UW":  # the one whose parameters the outer optimizer trains
        optimizer = make_optimizer([*task.model.parameters(), *scalarizer.parameters()])

    def step() -> None:
        loss = scalarizer(losses())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if name == "FAMO":  # needs the losses after the step, hence one more forward pass
            with torch.no_grad():
                scalarizer.update(losses())

    return step


def _make_aggregated_step(aggregator: Any, task: Task) -> Step:
    """The Jacobian of the losses, aggregated, as in torchjd's documentation: `backward` of all losses, one at a time.

    torchjd accepts one graph for all domains or one per domain, also batched, and has a Gramian engine. The fastest
    here were one graph per domain on the U-Net with instance normalisation, and one graph for all on the others.
    """
    from torchjd import autojac

    one_graph_per_domain = any(isinstance(module, torch.nn.InstanceNorm2d) for module in task.model.modules())
    losses_of_one_pass = joint_losses(task)

    def losses() -> list[Tensor]:
        if one_graph_per_domain:
            return [task.loss(task.model(x), y) for x, y in task.batch.values()]
        return list(losses_of_one_pass())

    def step() -> None:
        autojac.backward(losses(), parallel_chunk_size=1)
        task.optimizer.zero_grad()
        autojac.jac_to_grad(task.model.parameters(), aggregator)
        task.optimizer.step()

    return step


def _make_step_by_domain(aggregator: Any, task: Task) -> Step:
    """The same Jacobian row by row.

    torchjd's documentation does not show this. It is faster, because no row is computed through the graphs of other
    domains.
    """
    from torchjd import autojac

    parameters = list(task.model.parameters())

    def step() -> None:
        rows = []  # of the Jacobian, one per domain: one tensor per parameter
        for x, y in task.batch.values():
            rows.append(autojac.jac(task.loss(task.model(x), y), parameters, parallel_chunk_size=1))
        for parameter, *domain_gradients in zip(parameters, *rows, strict=True):
            parameter.jac = torch.cat(domain_gradients)
        task.optimizer.zero_grad()
        autojac.jac_to_grad(parameters, aggregator)
        task.optimizer.step()

    return step
