"""torchjd's methods as training steps, the way its documentation has them."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from steelyard.experiments.benchmark_tasks import Task

Step = Callable[[], None]
SCALARIZERS = ("FAMO", "DWA", "UW")
AGGREGATORS = ("UPGrad", "MGDA", "PCGrad", "CAGrad", "IMTLG", "AlignedMTL")
_SOLVERS = {"UPGrad": ("quadprog", "qpsolvers"), "CAGrad": ("cvxpy", "clarabel")}


def peers() -> list[str]:
    """Those whose parts are installed; UPGrad's default solver is GPL, and nothing here asks for it."""
    if not find_spec("torchjd"):
        return []
    return [
        f"torchjd {name}"
        for name in (*SCALARIZERS, *AGGREGATORS)
        if all(find_spec(part) for part in _SOLVERS.get(name, ()))
    ]


def peer_step(method: str, task: Task) -> Step:
    """One step by the method of this name."""
    name = method.removeprefix("torchjd ")
    return _scalarized(name, task) if name in SCALARIZERS else _aggregated(name, task)


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
    scalarizer: Any = scalarization.DWA() if name == "DWA" else getattr(scalarization, name)(domains)
    own = list(scalarizer.parameters()) if name == "UW" else []
    optimizer = torch.optim.SGD([*task.model.parameters(), *own], lr=0.01, momentum=0.9) if own else task.optimizer
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


def _aggregated(name: str, task: Task) -> Step:
    """The Jacobian of the losses, aggregated, one loss at a time.

    Of the ways that torchjd offers (one graph for all domains or one each, one loss at a time or batched, its Gramian
    engine) these were the fastest here: a graph for each domain on the U-Net whose samples do not meet, one for all on
    the other networks.
    """
    from torchjd import aggregation, autojac

    aggregator = getattr(aggregation, name)()
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
