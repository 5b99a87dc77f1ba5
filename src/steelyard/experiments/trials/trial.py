"""One trial: train a network on a problem with a method, and score it. Its settings alone decide the result."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

import steelyard as sy
from steelyard.experiments.problems.catalogue import problem_named
from steelyard.experiments.problems.problem import (
    DomainData,
    Labelled,
    Problem,
    Stream,
    generator_for,
    stream_seed,
)
from steelyard.experiments.trials.methods import build_balancer, check_method
from steelyard.files.checks import check_choice, check_whole

OPTIMIZERS = ("sgd", "adamw")
_MOST = 10**8  # steps, and the largest seed

Batch = dict[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True, order=True)
class Trial:
    """The settings of a trial. Trials that differ in the method alone have the same samples, network and batches.

    Args:
        problem: Its name.
        variant: How the problem is spoiled, or `plain`.
        optimizer: `sgd` or `adamw`.
        steps: How long the network is trained.
        method: The name of a method.
        seed: Decides everything random.
    """

    problem: str
    variant: str
    optimizer: str
    steps: int
    method: str
    seed: int

    def __post_init__(self) -> None:
        """Refuse settings that cannot be.

        Raises:
            UserError: A method, an optimizer or a number is not possible.
        """
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_method(self.method)
        check_whole("steps", self.steps, 1, _MOST)
        check_whole("seed", self.seed, 0, _MOST)

    def __str__(self) -> str:
        return " ".join(map(str, asdict(self).values()))


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """How a trial ended; mappings have the names of domains as keys.

    Args:
        trial: Its settings.
        score: The mean of `scores`.
        validation: The same on samples for validation, whose labels may be spoiled.
        scores: On samples for the test.
        weights: At the end.
        shares: Of the update, at the end; the weights, where a method does not have shares.
        faults: How domains were spoiled; others are left out.
        flags: What the audit said: the name of a domain and a kind of flag; `None` if there was no audit.
        seconds: How long the training took.
    """

    trial: Trial
    score: float
    validation: float
    scores: Mapping[str, float]
    weights: Mapping[str, float]
    shares: Mapping[str, float]
    faults: Mapping[str, str]
    flags: tuple[tuple[str, str], ...] | None
    seconds: float


def run_trial(trial: Trial, data: Path | None = None) -> TrialResult:
    """Train and score a network.

    Args:
        trial: The settings.
        data: The folder of data, for problems that need one.

    Raises:
        UserError: There is no such problem or variant, or its data are missing.
    """
    problem = problem_named(trial.problem, data)
    domains = problem.make(trial.seed, trial.variant)
    balancer = build_balancer(trial.method, problem, domains)
    model = build_network(problem, trial.seed)
    started = perf_counter()
    train(model, balancer, build_optimizer(model, problem, trial.optimizer), draw_batches(problem, domains, trial))
    seconds = perf_counter() - started
    scores = {name: score(problem, model, domain.test) for name, domain in domains.items()}
    validation = fmean(score(problem, model, domain.validation) for domain in domains.values())
    return TrialResult(
        trial=trial,
        score=fmean(scores.values()),
        validation=validation,
        scores=scores,
        weights=balancer.weights,
        shares=balancer.shares,
        faults={name: domain.fault for name, domain in domains.items() if domain.fault},
        flags=_flags(balancer),
        seconds=seconds,
    )


def train(model: nn.Module, balancer: sy.Balancer, optimizer: Optimizer, batches: Iterator[Batch]) -> None:
    """Take one step for each batch."""
    for batch in batches:
        optimizer.zero_grad()
        balancer(model, batch, optimizer).backward()
        optimizer.step()


def build_network(problem: Problem, seed: int) -> nn.Module:
    """Return the network that every method starts from."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(stream_seed(seed, Stream.NETWORK))
        return problem.build_model()


def build_optimizer(model: nn.Module, problem: Problem, optimizer: str) -> Optimizer:
    """Return an optimizer with the problem's learning rate."""
    rate = problem.learning_rates[optimizer]
    if optimizer == "adamw":
        return AdamW(model.parameters(), lr=rate)
    return SGD(model.parameters(), lr=rate)


def draw_batches(problem: Problem, domains: Mapping[str, DomainData], trial: Trial) -> Iterator[Batch]:
    """Yield a batch for each step; within a batch no sample is drawn twice."""
    generator = generator_for(trial.seed, Stream.BATCHES)
    for _ in itertools.repeat(None, trial.steps):
        batch = {}
        for name, domain in domains.items():
            rows = torch.randperm(len(domain.train.targets), generator=generator)[: problem.batch_size]
            batch[name] = (domain.train.inputs[rows], domain.train.targets[rows])
        yield batch


def score(problem: Problem, model: nn.Module, samples: Labelled) -> float:
    """Return the metric of samples of one domain."""
    model.eval()
    with torch.no_grad():
        return problem.score(model(samples.inputs), samples.targets)


def _flags(balancer: sy.Balancer) -> tuple[tuple[str, str], ...] | None:
    """Return the flags of the audit; `None` without a probe, which an audit needs."""
    if balancer.probe is None:
        return None
    return tuple((flag.domain, flag.kind) for flag in balancer.audit().flags)
