"""The training steps that are compared, with all their settings."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from steelyard.benchmark.peers import arguments_text, joint_losses, make_peer_step, peer_call, peer_methods
from steelyard.benchmark.tasks import NETWORKS, Batch, Step, Task, make_task
from steelyard.benchmark.vote_passes import BARE, bare_methods, make_bare_step
from steelyard.errors import UserError
from steelyard.files.checks import did_you_mean
from steelyard.measurement import Statistic
from steelyard.probing import FirstOrder, Gramian, InnerLoop, Probe
from steelyard.training import Balancer, DomainLosses
from steelyard.training.auto_probe import choose_probe
from steelyard.weighting import DirichletVote, Fixed, FromGramian, Weighting


@dataclass(frozen=True, kw_only=True)
class Case:
    """What one row of the benchmark measures."""

    network: str = "unet-batchnorm"
    domains: int = 2
    method: str
    every: int = 1
    with_memory: bool = True
    """Whether memory is measured, which takes longer than time."""

    @property
    def group(self) -> tuple[str, int]:
        """Cases with the same network and number of domains are compared with one plain step."""
        return self.network, self.domains

    @property
    def row(self) -> tuple[str, int, str, int]:
        """What distinguishes the case from others."""
        return self.network, self.domains, self.method, self.every

    @property
    def call(self) -> str:
        """The constructor call of the method as Python code; empty where the step is written by hand.

        >>> Case(method="inner-loop", every=4).call
        'sy.InnerLoop(reuse="detect", every=4)'
        """
        if self.method == "fixed":
            return "sy.Fixed()"
        if self.method == "Gramian MGDA":
            return "sy.Gramian(), sy.FromGramian(torchjd.aggregation.MGDAWeighting())"
        if self.method in RECOMMENDED:
            return RECOMMENDED[self.method]
        if self.method in VOTING_PROBES:
            probe, _ = VOTING_PROBES[self.method]
            return f"sy.{probe.__name__}({arguments_text(_probe_arguments(self))})"
        return peer_call(self.method, self.domains)


# Probes that vote, and their arguments besides `every`. They share gradients where they detect that this is allowed.
VOTING_PROBES: dict[str, tuple[type[Probe], dict[str, Any]]] = {
    "first-order": (FirstOrder, {}),
    "inner-loop": (InnerLoop, {"reuse": "detect"}),
}
# The defaults of the library, after the warm-up.
RECOMMENDED = {
    "recommended": "sy.Balancer(domains, loss=loss)",
    "own judge": "sy.Balancer(domains, loss=loss, judge=judge)",
    "held out": "sy.Balancer(domains, loss=loss)(model, batch, optimizer, held_out=held_out)",
}
# A vote on every step, on every second step, …
INTERVALS = {
    "unet-batchnorm": (1, 2, 4, 8),
    "unet-instancenorm": (1, 4),
    "transformer": (1, 4),
    "mlp": (1, 4),
    "bert": (1, 4),
    "gpt2": (1, 4),
}
MANY_DOMAINS = 16


def cases() -> list[Case]:
    """Return every case, each group's plain step first; others' methods only where they are installed."""
    rows: list[Case] = []
    for network, domains in (
        ("unet-batchnorm", 2),
        ("unet-instancenorm", 2),
        ("transformer", 2),
        ("mlp", MANY_DOMAINS),
    ):
        rows += _voting_cases(network, domains, INTERVALS[network])
        rows += _recommended_cases(network, domains)
        for method in _other_methods(network):
            rows.append(Case(network=network, domains=domains, method=method))
        if domains == 2:
            for method in bare_methods():
                rows.append(Case(network=network, domains=domains, method=method, with_memory=False))
    rows += _scaling_cases()
    if "gpt2" in NETWORKS:  # only where transformers is installed
        for network in ("bert", "gpt2"):
            rows += _voting_cases(network, 3, INTERVALS[network])
            rows += _recommended_cases(network, 3)
    return rows


def select_cases(networks: Sequence[str] = (), domains: Sequence[int] = (), methods: Sequence[str] = ()) -> list[Case]:
    """Return the cases of these networks, numbers of domains and methods; where none is named, all.

    The plain step of each group is always among them, because every ratio is to it.

    Raises:
        UserError: A name is not among the cases.
    """
    selected = cases()
    if networks:
        selected = _select_by("network", networks, selected)
    if domains:
        selected = _select_by("domains", domains, selected)
    if methods:
        selected = _select_by("method", ("plain", *methods), selected)
    return selected


def _select_by(attribute: str, chosen: Sequence[object], cases: Sequence[Case]) -> list[Case]:
    available = {getattr(case, attribute) for case in cases}
    unknown = set(chosen) - available
    if unknown:
        names = list(map(str, sorted(available)))
        choice = str(unknown.pop())
        raise UserError(f"{attribute} must be one of {', '.join(names)}; got {choice}.{did_you_mean(choice, names)}")
    return [case for case in cases if getattr(case, attribute) in chosen]


def _voting_cases(network: str, domains: int, intervals: Sequence[int]) -> list[Case]:
    rows = [
        Case(network=network, domains=domains, method="plain"),
        Case(network=network, domains=domains, method="fixed"),
    ]
    for method in VOTING_PROBES:
        for interval in intervals:
            rows.append(Case(network=network, domains=domains, method=method, every=interval))
    return rows


def _recommended_cases(network: str, domains: int) -> list[Case]:
    """The library's defaults, each at the interval that it chooses."""
    cases = []
    for method in RECOMMENDED:
        every = 4 if domains > 4 or method == "held out" else 1
        if network == "unet-batchnorm":
            every = max(10, 2 * domains)
        elif method == "own judge":
            every = max(6, 2 * domains)
        cases.append(Case(network=network, domains=domains, method=method, every=every))
    return cases


def _scaling_cases() -> Iterator[Case]:
    """Cases that show how the cost grows with the number of domains."""
    for network in ("mlp", "unet-small"):
        for domains in (2, 4, 8, 16, 32):
            if network == "mlp" and domains == MANY_DOMAINS:  # among the others already
                continue
            intervals = (1, 4) if domains == MANY_DOMAINS else (1,)
            for case in _voting_cases(network, domains, intervals) + _recommended_cases(network, domains):
                yield replace(case, with_memory=False)


def _other_methods(network: str) -> list[str]:
    methods = peer_methods(network)
    if network == "unet-batchnorm" and find_spec("higher"):
        methods.insert(0, "higher")
    if find_spec("torchjd"):
        methods.append("Gramian MGDA")
    return methods


def make_step(case: Case) -> Step:
    """Return a function that takes one training step each time it is called."""
    task = make_task(case.network, case.domains)
    if case.method == "plain":
        return make_plain_step(task)
    if case.method == "higher":
        return _make_higher_step(task)
    if case.method.startswith("torchjd "):
        return make_peer_step(case.method, task)
    if case.method.startswith(BARE):
        return make_bare_step(case.method, task, make_plain_step(task))
    if case.method in RECOMMENDED:
        return make_recommended_step(case, task)
    return make_balanced_step(case, task)


def make_plain_step(task: Task) -> Step:
    """The fastest plain loop: inputs joined beforehand, one forward pass, one backward pass."""
    losses = joint_losses(task)

    def step() -> None:
        loss = losses().mean()
        task.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        task.optimizer.step()

    return step


def make_recommended_step(case: Case, task: Task) -> Step:
    """A step with the library's defaults, after the warm-up.

    Raises:
        ValueError: The probe that is chosen votes at another interval than the row says.
    """
    judge: Any = _judge(task) if case.method == "own judge" else None
    held_out: Batch | None = None
    if case.method == "held out":  # as many samples as judge without it: half of each domain's
        held_out = {name: (x[: len(x) // 2], y[: len(y) // 2]) for name, (x, y) in task.batch.items()}
    losses = DomainLosses(tuple(task.batch), loss=task.loss, forward=task.forward, judge=judge)
    choice = choose_probe(Statistic.WORTH, task.model, losses, task.optimizer, held_out=held_out is not None)
    probe = choice.make()
    if probe.every != case.every:
        raise ValueError(f"{case.row}: the probe that is chosen votes every {probe.every} steps.")
    probe.steps.fill_(probe.warm_up)
    balancer = Balancer(tuple(task.batch), loss=task.loss, forward=task.forward, judge=judge, probe=probe)

    def step() -> None:
        loss = balancer(task.model, task.batch, task.optimizer, held_out=held_out)
        task.optimizer.zero_grad()
        loss.backward()
        task.optimizer.step()

    return step


def _judge(task: Task) -> Callable[[Tensor, Tensor], Tensor]:
    """A bounded score of outputs and targets that is not the loss itself."""
    return lambda outputs, targets: torch.sigmoid(task.loss(outputs, targets))


def make_balanced_step(case: Case, task: Task) -> Step:
    """A step with a balancer of this library."""
    weighting, probe = _weighting_and_probe(case)
    balancer = Balancer(tuple(task.batch), loss=task.loss, forward=task.forward, weighting=weighting, probe=probe)

    def step() -> None:
        loss = balancer(task.model, task.batch, task.optimizer)
        task.optimizer.zero_grad()
        loss.backward()
        task.optimizer.step()

    return step


def _weighting_and_probe(case: Case) -> tuple[Weighting, Probe | None]:
    if case.method == "fixed":
        return Fixed(), None
    if case.method == "Gramian MGDA":
        from torchjd.aggregation import MGDAWeighting

        return FromGramian(MGDAWeighting()), Gramian()
    probe, _ = VOTING_PROBES[case.method]
    return DirichletVote(), probe(**_probe_arguments(case))


def _probe_arguments(case: Case) -> dict[str, Any]:
    _, arguments = VOTING_PROBES[case.method]
    if case.every == 1:  # the default
        return arguments
    return {**arguments, "every": case.every}


def _make_higher_step(task: Task) -> Step:
    """The authors' implementation: replicas of model and optimizer by `higher`, then the plain step."""
    import higher

    plain_step = make_plain_step(task)
    meta_test_inputs = torch.cat([x[2:] for x, _ in task.batch.values()])  # of four samples per domain the last two
    meta_test_targets = [y[2:] for _, y in task.batch.values()]

    def hypothetical_loss(inputs: Tensor, targets: Tensor) -> Any:
        with higher.innerloop_ctx(task.model, task.optimizer, track_higher_grads=False) as (replica, optimizer):
            optimizer.step(task.loss(replica(inputs), targets))
            replica.eval()
            with torch.no_grad():
                outputs = replica(meta_test_inputs).split(2)
            return sum(task.loss(*pair).item() for pair in zip(outputs, meta_test_targets, strict=True))

    def step() -> None:
        for inputs, targets in task.batch.values():
            hypothetical_loss(inputs[:2], targets[:2])
        plain_step()

    return step
