"""The training steps that are compared: everything about them is fixed here."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from steelyard.experiments.bare_votes import BARE, bare_names, bare_step
from steelyard.experiments.benchmark_tasks import Step, Task, make_task
from steelyard.experiments.peers import joint_losses, peer_step, peers
from steelyard.probing import FirstOrder, Gramian, InnerLoop, Probe
from steelyard.training import Balancer
from steelyard.weighting import DirichletVote, Fixed, FromGramian, Weighting


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of the benchmark."""

    network: str = "unet-batchnorm"
    domains: int = 2
    method: str
    every: int = 1
    weighed: bool = True
    """Whether its memory is measured, which takes longer than its time."""

    @property
    def group(self) -> tuple[str, int]:
        """What has a plain step in common."""
        return self.network, self.domains


# Probes that vote: with gradients shared where the network allows it, which the probe detects.
PROBES: dict[str, Callable[[int], Probe]] = {
    "first-order": lambda every: FirstOrder(every=every),
    "inner-loop": lambda every: InnerLoop(every=every, reuse="detect"),
}
VOTES = {
    "unet-batchnorm": (1, 2, 4, 8),
    "unet-instancenorm": (1, 4),
    "transformer": (1, 4),
    "mlp": (1, 4),
}


def cases() -> list[Case]:
    """Every row, each group's plain step first; peers and the authors' way only where they are installed."""
    rows = []
    for network, domains in (("unet-batchnorm", 2), ("unet-instancenorm", 2), ("transformer", 2), ("mlp", 16)):
        rows += _rows(network, domains, VOTES[network], extra=_others(network))
        if domains == 2:
            rows += [Case(network=network, domains=2, method=name, weighed=False) for name in bare_names(network)]
    for network in ("mlp", "unet-small"):
        for domains in (2, 4, 8, 16, 32):
            if (network, domains) != ("mlp", 16):
                scaling = _rows(network, domains, (1,) if domains != 16 else (1, 4), extra=[])
                rows += [replace(case, weighed=False) for case in scaling]
    return rows


def _rows(network: str, domains: int, every: tuple[int, ...], *, extra: list[str]) -> list[Case]:
    rows = [Case(network=network, domains=domains, method=method) for method in ("plain", "fixed")]
    rows += [Case(network=network, domains=domains, method=method, every=n) for method in PROBES for n in every]
    return rows + [Case(network=network, domains=domains, method=method) for method in extra]


def _others(network: str) -> list[str]:
    authors = ["higher"] if network == "unet-batchnorm" and find_spec("higher") else []
    bridged = ["Gramian MGDA"] if find_spec("torchjd") else []
    return [*authors, *peers(network), *bridged]


def make_step(case: Case) -> Step:
    """A function that takes one training step each time it is called."""
    task = make_task(case.network, case.domains)
    if case.method.startswith("torchjd "):
        return peer_step(case.method, task)
    if case.method.startswith(BARE):
        return bare_step(case.method, task, _plain(case, task))
    return {"plain": _plain, "higher": _higher}.get(case.method, _balanced)(case, task)


def _plain(_: Case, task: Task) -> Step:
    """The fastest plain loop: inputs joined beforehand, one forward pass, one backward pass."""
    losses = joint_losses(task)

    def step() -> None:
        loss = losses().mean()
        task.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        task.optimizer.step()

    return step


def _balanced(case: Case, task: Task) -> Step:
    weighting, probe = _parts(case)
    balancer = Balancer(tuple(task.batch), loss=task.loss, weighting=weighting, probe=probe)

    def step() -> None:
        loss = balancer(task.model, task.batch, task.optimizer)
        task.optimizer.zero_grad()
        loss.backward()
        task.optimizer.step()

    return step


def _parts(case: Case) -> tuple[Weighting, Probe | None]:
    if case.method == "fixed":
        return Fixed(), None
    if case.method == "Gramian MGDA":
        from torchjd.aggregation import MGDAWeighting

        return FromGramian(MGDAWeighting()), Gramian(every=case.every)
    return DirichletVote(), PROBES[case.method](case.every)


def _higher(_: Case, task: Task) -> Step:
    """The authors' way: differentiable copies of model and optimizer by `higher`, then the plain step."""
    import higher

    plain = _plain(Case(method="plain"), task)
    rest = torch.cat([x[2:] for x, _ in task.batch.values()])
    targets = [y[2:] for _, y in task.batch.values()]

    def favoured(images: Tensor, masks: Tensor) -> Any:
        with higher.innerloop_ctx(task.model, task.optimizer, track_higher_grads=False) as (twin, stepper):
            stepper.step(task.loss(twin(images), masks))
            twin.eval()
            with torch.no_grad():
                outputs = twin(rest).split(2)
            return sum(task.loss(o, y).item() for o, y in zip(outputs, targets, strict=True))

    def step() -> None:
        for images, masks in task.batch.values():
            favoured(images[:2], masks[:2])
        plain()

    return step
