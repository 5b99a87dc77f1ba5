"""One trial: train a network on a problem with a method, and score it. Its settings alone decide the result."""

from collections.abc import Mapping
from statistics import fmean
from time import perf_counter

import steelyard as sy
from steelyard.experiments.problems.catalogue import problem_named
from steelyard.experiments.problems.problem import NO_FOLDERS, DomainData, Folders, Problem
from steelyard.experiments.regret.methods import SWEEP, batch_sizes, build_balancer
from steelyard.experiments.regret.sweep import member_named, run_sweep
from steelyard.experiments.regret.training import (
    build_network,
    build_optimizer,
    draw_batches,
    mean_score,
    score,
    train,
)
from steelyard.experiments.regret.trial import Trial, TrialResult


def run_trial(trial: Trial, folders: Folders = NO_FOLDERS) -> TrialResult:
    """Train and score a network, or all networks of a sweep.

    Args:
        trial: The settings.
        folders: Where problems read and keep files.

    Raises:
        UserError: There is no such problem or variant, or its data are missing.
    """
    problem = problem_named(trial.problem, folders)
    domains = problem.make(trial.seed, trial.variant)
    if trial.method == SWEEP:
        return _sweep_result(trial, problem, domains)
    balancer = build_balancer(trial.method, problem, domains)
    return _trained_result(trial, problem, domains, balancer)


def _trained_result(
    trial: Trial, problem: Problem, domains: Mapping[str, DomainData], balancer: sy.Balancer
) -> TrialResult:
    model = build_network(problem, trial.seed)
    optimizer = build_optimizer(model.parameters(), problem, trial.optimizer, rate=trial.rate)
    batches = draw_batches(batch_sizes(trial.method, problem, domains), domains, trial)
    started = perf_counter()
    train(model, balancer, optimizer, batches)
    seconds = perf_counter() - started
    scores = {name: score(problem, model, domain.test) for name, domain in domains.items()}
    return TrialResult(
        trial=trial,
        score=fmean(scores.values()),
        validation=mean_score(problem, model, [domain.validation for domain in domains.values()]),
        clean_validation=mean_score(problem, model, [domain.clean_validation for domain in domains.values()]),
        scores=scores,
        weights=balancer.weights,
        shares=balancer.shares,
        faults=_faults(domains),
        flags=_flags(balancer),
        seconds=seconds,
    )


def _sweep_result(trial: Trial, problem: Problem, domains: Mapping[str, DomainData]) -> TrialResult:
    """Train all members, then describe the one that this seed's clean validation samples choose."""
    started = perf_counter()
    members = run_sweep(trial, problem, domains)
    seconds = perf_counter() - started
    best = max(members, key=lambda name: members[name].clean_validation)
    weights, _ = member_named(best, domains)
    return TrialResult(
        trial=trial,
        score=members[best].score,
        validation=members[best].clean_validation,
        clean_validation=members[best].clean_validation,
        scores={},
        weights=weights,
        shares=weights,
        faults=_faults(domains),
        flags=None,
        seconds=seconds,
        sweep=members,
    )


def _faults(domains: Mapping[str, DomainData]) -> dict[str, str]:
    return {name: domain.fault for name, domain in domains.items() if domain.fault}


def _flags(balancer: sy.Balancer) -> tuple[tuple[str, str], ...] | None:
    """Return the flags of the audit; `None` without a probe, which an audit needs."""
    if balancer.probe is None:
        return None
    return tuple((flag.domain, flag.kind) for flag in balancer.audit().flags)
