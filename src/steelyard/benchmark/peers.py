"""torchjd's methods as training steps."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from steelyard.benchmark.tasks import Step, Task, make_optimizer

SCALARIZERS = ("FAMO", "DWA", "UW")
BY_DOMAIN = " by domain"
AGGREGATORS = ("UPGrad", "MGDA", "PCGrad", "CAGrad", "IMTLG", "AlignedMTL")
_SOLVERS = {"UPGrad": ("quadprog", "qpsolvers"), "CAGrad": ("cvxpy", "clarabel")}


def peers(network: str) -> list[str]:
    """Those whose parts are installed; UPGrad's default solver is GPL, and nothing here asks for it.

    Aggregators come in two ways: as torchjd's documentation has them, and, where samples do not meet, domain by domain.
    """
    if not find_spec("torchjd"):
        return []
    there = [name for name in AGGREGATORS if all(find_spec(part) for part in _SOLVERS.get(name, ()))]
    by_domain = [] if network == "unet-batchnorm" else [f"{name}{BY_DOMAIN}" for name in there]
    return [f"torchjd {name}" for name in (*SCALARIZERS, *there, *by_domain)]


def peer_step(method: str, task: Task) -> Step:
    """One step by the method of this name."""
    name = method.removeprefix("torchjd ")
    if name in SCALARIZERS:
        return _scalarized(name, task)
    make = _aggregated_by_domain if name.endswith(BY_DOMAIN) else _aggregated
    return make(_aggregator(name.removesuffix(BY_DOMAIN)), task)


def _aggregator(name: str) -> Any:
    from torchjd import aggregation

    return aggregation.CAGrad(c=0.5) if name == "CAGrad" else getattr(aggregation, name)()


def joint_losses(task: Task) -> Callable[[], Tensor]:
    """All domains' losses from one forward pass over samples joined beforehand."""
    inputs = torch.cat([x for x, _ in task.batch.values()])
    targets = [y for _, y in task.batch.values()]
    sizes = [len(y) for y in targets]

    def losses() -> Tensor:
        outputs = task.model(inputs).split(sizes)
        return torch.stack([task.loss(o, y) for o, y in zip(outputs, targets, strict=True)])

    return losses


def _scalarized(name: str, task: Task) -> Step:
    """Joint losses into one scalar; FAMO runs the model once more after the step, as it asks for."""
    from torchjd import scalarization

    domains = len(task.batch)
    make: dict[str, Callable[[], Any]] = {
        "DWA": scalarization.DWA,
        "UW": lambda: scalarization.UW(domains),
        # Cross-entropy minus Dice is above −1, and the others above 0.
        "FAMO": lambda: scalarization.FAMO(domains, min_losses=torch.full((domains,), -1.0)),
    }
    scalarizer = make[name]()
    own = list(scalarizer.parameters()) if name == "UW" else []
    optimizer = make_optimizer([*task.model.parameters(), *own]) if own else task.optimizer
    losses = joint_losses(task)

    def step() -> None:
        loss = scalarizer(losses())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if name == "FAMO":
            with torch.no_grad():
                scalarizer.update(losses())

    return step


def _aggregated(aggregator: Any, task: Task) -> Step:
    """The Jacobian of the losses, aggregated, as the documentation has it: `backward` of all losses, one at a time.

    Of the graphs that may be given to it (one for all domains, or one each; also batched, and the Gramian engine) these
    were the fastest here: a graph for each domain on the U-Net whose samples do not meet, one for all on the others.
    """
    from torchjd import autojac

    apart = any(isinstance(module, torch.nn.InstanceNorm2d) for module in task.model.modules())
    together = joint_losses(task)

    def losses() -> list[Tensor]:
        if apart:
            return [task.loss(task.model(x), y) for x, y in task.batch.values()]
        return list(together())

    def step() -> None:
        autojac.backward(losses(), parallel_chunk_size=1)
        task.optimizer.zero_grad()
        autojac.jac_to_grad(task.model.parameters(), aggregator)
        task.optimizer.step()

    return step


def _aggregated_by_domain(aggregator: Any, task: Task) -> Step:
    """The same Jacobian row by row: in no documentation, but faster, for no row looks at another domain's graph."""
    from torchjd import autojac

    parameters = list(task.model.parameters())

    def step() -> None:
        rows = [
            autojac.jac(task.loss(task.model(x), y), parameters, parallel_chunk_size=1) for x, y in task.batch.values()
        ]
        for parameter, *each in zip(parameters, *rows, strict=True):
            parameter.jac = torch.cat(each)
        task.optimizer.zero_grad()
        autojac.jac_to_grad(parameters, aggregator)
        task.optimizer.step()

    return step
