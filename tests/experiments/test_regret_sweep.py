"""Sweeps: which weights are tried, and that many networks at once end as one by one."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from steelyard.experiments.problems.catalogue import problem_named
from steelyard.experiments.problems.digits import Digits
from steelyard.experiments.problems.problem import DomainData, Labelled
from steelyard.experiments.problems.wine import Wine
from steelyard.experiments.regret import stacked_training, sweep
from steelyard.experiments.regret.results import format_result, parse_result
from steelyard.experiments.regret.run_trial import run_trial
from steelyard.experiments.regret.stacked_training import is_stackable, train_stacked
from steelyard.experiments.regret.sweep import run_sweep, sweep_weights
from steelyard.experiments.regret.trial import RATES, Trial

SHORT = Trial(problem="digits", variant="noisy", optimizer="sgd", steps=20, method="sweep", seed=7)


def toy(*levels: float) -> dict[str, DomainData]:
    domains = {}
    for number, level in enumerate(levels):
        part = Labelled(torch.zeros(10 * (number + 1), 1), torch.zeros(10 * (number + 1)))
        domains[f"domain-{number}"] = DomainData(train=part, validation=part, test=part, level=level)
    return domains


@pytest.mark.parametrize(("domains", "ratios"), [(2, 7), (3, 37), (4, 175)])
def test_all_ratios_are_tried_once(domains, ratios):
    weights = sweep_weights(toy(*[0.0] * domains))
    assert len(weights) == ratios
    directions = {tuple(round(value, 6) for value in member.values()) for member in weights.values()}
    assert len(directions) == ratios
    assert all(sum(member.values()) == pytest.approx(1) for member in weights.values())


def test_the_most_spoiled_domain_is_listed_first():
    weights = sweep_weights(toy(0.0, 0.8, 0.4))["1-3-10"]
    assert weights == pytest.approx({"domain-1": 1 / 14, "domain-2": 3 / 14, "domain-0": 10 / 14})


def test_many_domains_have_families():
    spoiled = sweep_weights(toy(0.0, 0.0, 0.8, 0.0, 0.8, 0.0))
    assert spoiled["spoiled*0.1"]["domain-2"] == spoiled["spoiled*0.1"]["domain-4"] == pytest.approx(0.1 / 4.2)
    assert spoiled["domain1*10"]["domain-2"] == pytest.approx(10 / 15)  # the first in the order of the levels
    assert spoiled["n^1"]["domain-5"] == pytest.approx(6 / 21)
    assert len(spoiled) == 1 + 6 + 2 * 6 + 4
    assert not [name for name in sweep_weights(toy(*[0.0] * 6)) if name.startswith("spoiled")]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize(("problem", "variant"), [(Digits(), "scaled"), (Wine(), "small")])
def test_a_stack_ends_as_the_balancer_does_one_by_one(problem, variant, optimizer):
    trial = replace(SHORT, problem=problem.name, variant=variant, optimizer=optimizer)
    domains = problem.make(trial.seed, variant)
    members = sweep_weights(domains)
    weights = [members[name] for name in ("1-1-1", "30-1-10")]
    stacked = train_stacked(trial, problem, domains, weights=weights, rate=3.0)
    alone = sweep._train_one_by_one(trial, problem, domains, weights, 3.0)
    for one_stacked, one_alone in zip(stacked, alone, strict=True):
        assert one_stacked == pytest.approx(one_alone, abs=0.006)  # rounding may turn one of 200 test images
    assert stacked[0] != stacked[1]


def test_the_parameters_of_a_stack_are_those_of_its_members(monkeypatch):
    """Scores are coarse; here the networks themselves are compared, after steps of AdamW."""
    problem, trial = Wine(), replace(SHORT, problem="wine", variant="plain", optimizer="adamw")
    domains = problem.make(trial.seed)
    networks = []
    monkeypatch.setattr(stacked_training, "_mean_scores", lambda stack, *_: networks.append(stack) or [0.0, 0.0])
    monkeypatch.setattr(sweep, "mean_score", lambda _, model, parts: networks.append(model) or 0.0)
    weights = [sweep_weights(domains)[name] for name in ("1-1-1", "3-1-30")]
    train_stacked(trial, problem, domains, weights=weights, rate=1.0)
    sweep._train_one_by_one(trial, problem, domains, weights, 1.0)
    stack, members = networks[0], networks[2::2]
    for number, member in enumerate(members):
        for copies, parameter in zip(stack.parameters, member.parameters(), strict=True):
            torch.testing.assert_close(copies[number].detach(), parameter.detach(), rtol=1e-3, atol=1e-5)


def test_a_sweep_contains_equal_weights_at_each_rate():
    result = run_trial(SHORT)
    assert len(result.sweep) == 37 * len(RATES)
    for rate in RATES:
        equal = run_trial(replace(SHORT, method="equal", rate=rate))
        name = "1-1-1" if rate == 1 else f"1-1-1@{rate:g}"
        assert result.sweep[name].score == pytest.approx(equal.score, abs=0.006)
        assert result.sweep[name].clean_validation == pytest.approx(equal.clean_validation, abs=0.006)
    assert result.clean_validation == max(member.clean_validation for member in result.sweep.values())


def test_a_sweep_is_the_same_again_and_from_its_row():
    first, again = run_trial(SHORT), run_trial(SHORT)
    assert replace(first, seconds=0) == replace(again, seconds=0)
    parsed = parse_result(format_result(first))
    assert list(parsed.sweep) == list(first.sweep)
    for name, member in first.sweep.items():
        assert parsed.sweep[name] == pytest.approx(member, abs=1e-5)


def test_networks_that_cannot_be_stacked_are_trained_one_by_one(monkeypatch):
    norm = problem_named("digits-norm")
    assert not is_stackable(norm, norm.build_model())
    assert is_stackable(Digits(), Digits().build_model())
    assert not is_stackable(Digits(), nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
    assert not is_stackable(Digits(), nn.Sequential(nn.Dropout(), nn.Linear(2, 2)))
    assert not is_stackable(Digits(), nn.Sequential(nn.Linear(2, 2, bias=False)))
    assert not is_stackable(Digits(), nn.Sequential(nn.Conv1d(1, 1, 1), nn.Linear(2, 2)))
    monkeypatch.setattr(sweep, "sweep_weights", lambda domains: {"equal": dict.fromkeys(domains, 1 / 3)})
    trial = replace(SHORT, problem="digits-norm", steps=2)
    members = run_sweep(trial, norm, norm.make(7, "noisy"))
    assert list(members) == ["equal@0.333", "equal", "equal@3"]
