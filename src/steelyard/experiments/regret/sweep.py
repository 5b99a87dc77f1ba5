"""A sweep: fixed weights of many ratios at three learning rates, to see what the best of them would have reached.

A sweep knows which domains were spoiled: weights are listed by how strongly a domain is spoiled, the most spoiled
first. So a member means the same on every seed, although the seed chooses which domain is spoiled.

- Up to four domains: all ratios of 1, 3, 10 and 30. Ratios that differ by a common factor count once, so the smallest
  weight is 1: 7 ratios of two domains, 37 of three, 175 of four. The name is like `1-30-30`.
- More domains: the spoiled ones together × 1/30 to 30, one domain alone × 0.1 and × 10, and sizes to a power, n^α.
"""

import itertools
from collections.abc import Mapping, Sequence

import torch

import steelyard as sy
from steelyard.experiments.problems.problem import DomainData, Problem
from steelyard.experiments.regret.methods import BASELINE, batch_sizes, scaled_losses
from steelyard.experiments.regret.stacked_training import is_stackable, train_stacked
from steelyard.experiments.regret.training import build_network, build_optimizer, draw_batches, mean_score, train
from steelyard.experiments.regret.trial import RATES, SweepScore, Trial, parse_method

LEVELS = (1, 3, 10, 30)
"""The weights of a grid."""
MOST_IN_GRID = 4
"""Domains of which all ratios are tried."""

_GROUP_FACTORS = (1 / 30, 1 / 10, 1 / 3, 3, 10, 30)
_SINGLE_FACTORS = (0.1, 10)
_POWERS = (-1.0, -0.5, 0.5, 1.0)

Weights = dict[str, float]


def sweep_weights(domains: Mapping[str, DomainData]) -> dict[str, Weights]:
    """Return the weights of all members by name, at one learning rate; weights sum to 1."""
    ordered = sorted(domains, key=lambda name: -domains[name].level)  # a stable sort: equal levels keep their order
    if len(ordered) <= MOST_IN_GRID:
        return _grid(ordered)
    return _families(ordered, domains)


def member_named(name: str, domains: Mapping[str, DomainData]) -> tuple[Weights, float]:
    """Return the weights and the factor of the learning rate of a member, such as `1-3-10@0.333`."""
    weights_name, rate = parse_method(name)
    return sweep_weights(domains)[weights_name], rate


def run_sweep(trial: Trial, problem: Problem, domains: Mapping[str, DomainData]) -> dict[str, SweepScore]:
    """Train all members, each from the same network and on the same batches; return their scores by name.

    Members are named as methods at a rate: `1-3-10`, `1-3-10@3`.
    """
    weights = sweep_weights(domains)
    stacked = is_stackable(problem, build_network(problem, trial.seed))
    members: dict[str, SweepScore] = {}
    for rate in RATES:
        if stacked:
            scores = train_stacked(trial, problem, domains, weights=list(weights.values()), rate=rate)
        else:
            scores = _train_one_by_one(trial, problem, domains, list(weights.values()), rate)
        for name, sweep_score in zip(weights, scores, strict=True):
            members[_at_rate(name, rate)] = sweep_score
    return members


def _at_rate(name: str, rate: float) -> str:
    if rate == 1:
        return name
    return f"{name}@{rate:g}"


def _train_one_by_one(
    trial: Trial, problem: Problem, domains: Mapping[str, DomainData], weights: Sequence[Weights], rate: float
) -> list[SweepScore]:
    scores = []
    for member in weights:
        model = build_network(problem, trial.seed)
        optimizer = build_optimizer(model.parameters(), problem, trial.optimizer, rate=rate)
        losses = scaled_losses(problem, domains)
        balancer = sy.Balancer(tuple(domains), loss=losses, weighting=sy.Fixed(member), probe=None)
        train(model, balancer, optimizer, draw_batches(batch_sizes(BASELINE, problem, domains), domains, trial))
        validation = mean_score(problem, model, [domain.clean_validation for domain in domains.values()])
        test = mean_score(problem, model, [domain.test for domain in domains.values()])
        scores.append(SweepScore(validation, test))
    return scores


def _grid(ordered: Sequence[str]) -> dict[str, Weights]:
    grid = {}
    for levels in itertools.product(LEVELS, repeat=len(ordered)):
        if min(levels) == 1:
            grid["-".join(map(str, levels))] = _normalised(ordered, levels)
    return grid


def _families(ordered: Sequence[str], domains: Mapping[str, DomainData]) -> dict[str, Weights]:
    members = {BASELINE: _normalised(ordered, [1.0] * len(ordered))}
    spoiled = [domains[name].level != 0 for name in ordered]
    if any(spoiled):
        for factor in _GROUP_FACTORS:
            group = [factor if is_spoiled else 1.0 for is_spoiled in spoiled]
            members[f"spoiled*{factor:.3g}"] = _normalised(ordered, group)
    for number, factor in itertools.product(range(len(ordered)), _SINGLE_FACTORS):
        single = [1.0] * len(ordered)
        single[number] = factor
        members[f"domain{number + 1}*{factor:g}"] = _normalised(ordered, single)
    sizes = torch.tensor([len(domains[name].train.targets) for name in ordered], dtype=torch.float64)
    for power in _POWERS:
        members[f"n^{power:g}"] = _normalised(ordered, sizes.pow(power).tolist())
    return members


def _normalised(names: Sequence[str], levels: Sequence[float]) -> Weights:
    total = sum(levels)
    return {name: level / total for name, level in zip(names, levels, strict=True)}
