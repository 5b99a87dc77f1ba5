"""The parts of a training run that every method shares: network, optimizer, batches, score."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

import steelyard as sy
from steelyard.experiments.problems.problem import (
    DomainData,
    Labelled,
    Problem,
    Stream,
    generator_for,
    stream_seed,
)
from steelyard.experiments.regret.trial import Trial

Batch = dict[str, tuple[Tensor, Tensor]]


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


def build_optimizer(parameters: Iterable[Tensor], problem: Problem, optimizer: str, *, rate: float = 1.0) -> Optimizer:
    """Return an optimizer with the problem's learning rate.

    Args:
        parameters: What it changes.
        problem: Has a learning rate for each optimizer.
        optimizer: `sgd` or `adamw`.
        rate: The problem's learning rate is multiplied by it.
    """
    learning_rate = rate * problem.learning_rates[optimizer]
    if optimizer == "adamw":
        return AdamW(parameters, lr=learning_rate)
    return SGD(parameters, lr=learning_rate)


def draw_batches(sizes: Mapping[str, int], domains: Mapping[str, DomainData], trial: Trial) -> Iterator[Batch]:
    """Yield a batch for each step; within a batch no sample is drawn twice.

    Args:
        sizes: Samples of each domain in a batch.
        domains: Their samples.
        trial: Has the seed and the number of steps.
    """
    generator = generator_for(trial.seed, Stream.BATCHES)
    for _ in itertools.repeat(None, trial.steps):
        batch = {}
        for name, domain in domains.items():
            rows = torch.randperm(len(domain.train.targets), generator=generator)[: sizes[name]]
            batch[name] = (domain.train.inputs[rows], domain.train.targets[rows])
        yield batch


def score(problem: Problem, model: nn.Module, samples: Labelled) -> float:
    """Return the metric of samples of one domain."""
    model.eval()
    with torch.no_grad():
        return problem.score(model(samples.inputs), samples.targets)


def mean_score(problem: Problem, model: nn.Module, parts: Iterable[Labelled]) -> float:
    """Return the mean of the metric over domains.

    Args:
        problem: Has the metric.
        model: The trained network.
        parts: Samples of each domain.
    """
    return fmean(score(problem, model, samples) for samples in parts)
