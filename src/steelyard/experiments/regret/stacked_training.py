"""Many networks trained at once, with fixed weights that differ: a sweep in a fraction of the time.

The parameters of the networks are stacked along a first dimension. Both optimizers treat each number by itself, so a
stack is trained as its members would be, up to rounding.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional

from steelyard.experiments.problems.problem import DomainData, Labelled, Problem
from steelyard.experiments.regret.methods import BASELINE, batch_sizes
from steelyard.experiments.regret.training import Batch, build_network, build_optimizer, draw_batches
from steelyard.experiments.regret.trial import SweepScore, Trial


class NetworkStack:
    """Copies of a network of linear layers, with the same inputs.

    Args:
        network: See `is_stackable`.
        count: The number of copies.
    """

    def __init__(self, network: nn.Sequential, count: int) -> None:
        self._modules = list(network)
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        for position, module in enumerate(network):
            if isinstance(module, nn.Linear):
                self._layers[position] = (_copies(module.weight, count), _copies(module.bias, count))

    @property
    def parameters(self) -> list[Tensor]:
        """Weights and biases of all copies; the first dimension counts copies."""
        return [tensor for layer in self._layers.values() for tensor in layer]

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the outputs of all copies: (copies, samples, features)."""
        features = inputs
        is_first_layer = True
        for position, module in enumerate(self._modules):
            if position not in self._layers:
                features = module(features)
            elif is_first_layer:
                features = _apply_to_shared(features, *self._layers[position])
                is_first_layer = False
            else:
                weight, bias = self._layers[position]
                features = torch.baddbmm(bias[:, None], features, weight.transpose(1, 2))
        return features


def is_stackable(problem: Problem, network: nn.Module) -> bool:
    """Whether copies of a network can be trained at once.

    The problem must say so, and the network must be a sequence: modules without parameters, then linear layers with
    ReLU between them.
    """
    if not problem.stackable or not isinstance(network, nn.Sequential):
        return False
    modules = list(network)
    while modules and not isinstance(modules[0], nn.Linear):
        first = modules.pop(0)
        if list(first.parameters()) or isinstance(first, nn.Dropout):
            return False
    return bool(modules) and all(_is_plain_layer(module) for module in modules)


def _is_plain_layer(module: nn.Module) -> bool:
    if isinstance(module, nn.Linear):
        return module.bias is not None
    return isinstance(module, nn.ReLU)


def train_stacked(
    trial: Trial,
    problem: Problem,
    domains: Mapping[str, DomainData],
    *,
    weights: Sequence[Mapping[str, float]],
    rate: float,
) -> list[SweepScore]:
    """Train one network for each choice of weights, and score all of them.

    Args:
        trial: Has seed, steps and optimizer.
        problem: What is learned.
        domains: Their samples.
        weights: Of each network, by domain.
        rate: The learning rate is multiplied by it.
    """
    network = build_network(problem, trial.seed)
    assert isinstance(network, nn.Sequential)  # noqa: S101, see is_stackable
    stack = NetworkStack(network, len(weights))
    optimizer = build_optimizer(stack.parameters, problem, trial.optimizer, rate=rate)
    factors = _loss_factors(domains, weights)
    for batch in draw_batches(batch_sizes(BASELINE, problem, domains), domains, trial):
        optimizer.zero_grad()
        _total_loss(stack, batch, problem, factors).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        validation = _mean_scores(stack, problem, [domain.clean_validation for domain in domains.values()])
        test = _mean_scores(stack, problem, [domain.test for domain in domains.values()])
    return list(map(SweepScore, validation, test))


def _copies(parameter: Tensor, count: int) -> Tensor:
    copies = parameter.detach().expand(count, *parameter.shape).clone()
    return copies.requires_grad_()


def _apply_to_shared(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply the first layer of all copies to the inputs that they share, as one wide layer."""
    wide = functional.linear(inputs, weight.flatten(0, 1), bias.flatten())  # (samples, copies · features)
    return wide.view(len(inputs), *bias.shape).transpose(0, 1)


def _loss_factors(domains: Mapping[str, DomainData], weights: Sequence[Mapping[str, float]]) -> dict[str, Tensor]:
    """Return, for each domain, the factor of its loss in each network."""
    factors = {}
    for name, domain in domains.items():
        factors[name] = domain.loss_factor * torch.tensor([member[name] for member in weights])
    return factors


def _total_loss(stack: NetworkStack, batch: Batch, problem: Problem, factors: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of all networks' losses: each network's gradient is that of its own loss."""
    outputs = stack(torch.cat([inputs for inputs, _ in batch.values()]))
    total = torch.zeros(())
    first = 0
    for name, (_, targets) in batch.items():
        of_domain = outputs[:, first : first + len(targets)]
        first += len(targets)
        losses = vmap(problem.loss, in_dims=(0, None))(of_domain, targets)
        total = total + (factors[name] * losses).sum()
    return total


def _mean_scores(stack: NetworkStack, problem: Problem, parts: Sequence[Labelled]) -> list[float]:
    """Return, for each network, the mean of the metric over domains."""
    by_domain = []
    for samples in parts:
        outputs = stack(samples.inputs)
        by_domain.append([problem.score(network_outputs, samples.targets) for network_outputs in outputs])
    return [fmean(scores) for scores in zip(*by_domain, strict=True)]
