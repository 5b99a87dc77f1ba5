"""Trials: paired, deterministic, resumed from their table."""

from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch

import steelyard as sy
from steelyard.errors import UserError
from steelyard.experiments.problems.digits import Digits
from steelyard.experiments.regret import campaign, run_trial, training
from steelyard.experiments.regret.campaign import run_trials
from steelyard.experiments.regret.groups import GROUPS, Block
from steelyard.experiments.regret.methods import BASELINE, BY_SIZE, batch_sizes, build_balancer
from steelyard.experiments.regret.results import RESULTS, format_result, parse_result, read_results
from steelyard.experiments.regret.training import build_network, draw_batches
from steelyard.experiments.regret.trial import Trial, parse_method

SHORT = Trial(problem="digits", variant="noisy", optimizer="sgd", steps=4, method="equal", seed=7)
METHODS = ("equal", "greedy-25", "conservative-25")


def rows(results) -> list[dict[str, str]]:
    """The cells of results, without the time."""
    return [format_result(results[key]) | {"seconds": ""} for key in sorted(results)]


def short_trials() -> list[Trial]:
    block = Block(problem="digits", seeds=(0, 2), variants=("plain", "noisy"), optimizers=("sgd",), steps=3)
    return list(block.trials(("equal", "greedy-25")))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_same_trial_gives_the_same_result(method, optimizer):
    settings = replace(SHORT, method=method, optimizer=optimizer)
    torch.rand(3)  # the global generator must not matter
    first = run_trial.run_trial(settings)
    torch.rand(5)
    again = run_trial.run_trial(settings)
    assert replace(first, seconds=0) == replace(again, seconds=0)
    assert first.trial == settings
    assert first.score == pytest.approx(sum(first.scores.values()) / 3)


def test_methods_are_paired(monkeypatch):
    seen = {}

    def record(model, balancer, optimizer, batches):
        weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        seen.setdefault("weights", []).append(weights)
        seen.setdefault("batches", []).append(torch.stack([batch["left"][0].sum() for batch in batches]))

    monkeypatch.setattr(run_trial, "train", record)
    results = [run_trial.run_trial(replace(SHORT, method=method)) for method in METHODS]
    for values in seen.values():
        assert all(torch.equal(values[0], others) for others in values[1:])
    assert results[0].scores == results[1].scores == results[2].scores


def test_equal_weights_are_a_plain_loop():
    problem, domains = Digits(), Digits().make(SHORT.seed, SHORT.variant)
    model = build_network(problem, SHORT.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in draw_batches(batch_sizes(BASELINE, problem, domains), domains, SHORT):
        loss = sum(problem.loss(model(inputs), targets) for inputs, targets in batch.values()) / 3
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scores = {name: training.score(problem, model, domain.test) for name, domain in domains.items()}
    assert run_trial.run_trial(SHORT).scores == pytest.approx(scores, abs=0.01)


def test_the_factor_of_a_loss_reaches_the_balancer(monkeypatch):
    losses = {}

    def record(model, balancer, optimizer, batches):
        losses.update(balancer(model, next(batches), optimizer) and balancer.last.losses)

    monkeypatch.setattr(run_trial, "train", record)
    run_trial.run_trial(replace(SHORT, variant="plain"))
    plain = dict(losses)
    run_trial.run_trial(replace(SHORT, variant="scaled"))
    factors = sorted(float(losses[name] / plain[name]) for name in plain)
    assert factors == pytest.approx([0.1, 1, 10], rel=1e-5)


def test_flags_of_the_audit_are_recorded():
    flag = SimpleNamespace(domain="left", kind="noisy labels")
    audited = SimpleNamespace(probe=object(), audit=lambda: SimpleNamespace(flags=[flag]))
    assert run_trial._flags(audited) == (("left", "noisy labels"),)
    assert run_trial.run_trial(SHORT).flags is None


def test_a_row_holds_the_whole_result():
    result = replace(run_trial.run_trial(SHORT), flags=(("left", "noisy labels"), ("left", "harms others")))
    again = parse_result(format_result(result))
    assert again.trial == result.trial
    assert again.flags == result.flags
    assert again.faults == result.faults
    assert again.scores == pytest.approx(result.scores, abs=1e-6)
    assert parse_result(format_result(replace(result, flags=()))).flags == ()
    assert parse_result(format_result(replace(result, flags=None))).flags is None


def test_interrupted_and_resumed_equals_uninterrupted(tmp_path):
    trials = short_trials()
    assert len(list(run_trials(trials, tmp_path / "whole"))) == len(trials)
    first = run_trials(trials, tmp_path / "parts")
    for _ in range(3):
        next(first)
    first.close()
    assert len(read_results(tmp_path / "parts" / RESULTS)) == 3
    assert len(list(run_trials(reversed(trials), tmp_path / "parts"))) == len(trials) - 3
    parts, whole = (read_results(tmp_path / name / RESULTS) for name in ("parts", "whole"))
    assert rows(parts) == rows(whole)
    assert list(parts) == sorted(trials)
    assert list(run_trials(trials, tmp_path / "parts")) == []


def test_two_workers_give_the_same_results(tmp_path):
    trials = short_trials()[:4]
    assert not [report for report in run_trials(trials, tmp_path / "one") if report.message]
    assert not [report for report in run_trials(trials, tmp_path / "two", workers=2) if report.message]
    one, two = (read_results(tmp_path / name / RESULTS) for name in ("one", "two"))
    assert rows(one) == rows(two)


def test_a_failed_trial_does_not_stop_the_others(tmp_path, monkeypatch):
    original = run_trial.run_trial

    def run(settings, folders):
        if settings.method == "equal":
            raise RuntimeError("no luck")
        return original(settings, folders)

    monkeypatch.setattr(campaign, "run_trial", run)
    messages = [report.message for report in run_trials(short_trials(), tmp_path)]
    assert sorted(set(messages)) == ["", "unexpected RuntimeError: no luck"]
    assert {key.method for key in read_results(tmp_path / RESULTS)} == {"greedy-25"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "lion"}, "optimizer must be one of sgd, adamw; got 'lion'"),
        ({"method": "luck"}, "method must be one of equal, .*; got 'luck'"),
        ({"method": "evidence:caution"}, "method must be like evidence:caution=1,judge=task; got"),
        ({"method": "evidence:luck=1"}, "setting of evidence must be one of rate, .*; got 'luck'"),
        ({"method": "evidence:judge=me"}, "judge must be one of loss, bounded, task; got 'me'"),
        ({"method": "evidence:rate=fast"}, "rate must be a number; got 'fast'"),
        ({"steps": 0}, "steps must be a whole number within 1 to"),
        ({"rate": 0.0}, "rate must be a number within 0.001 to 1000"),
        ({"method": "sweep", "rate": 3.0}, "a sweep has learning rates of its own; got sweep@3"),
        ({"seed": -1}, "seed must be a whole number within 0 to"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        replace(SHORT, **changes)


def test_a_method_may_name_the_settings_of_evidence(monkeypatch):
    monkeypatch.setattr(sy, "Evidence", dict, raising=False)
    monkeypatch.setattr(sy, "Balancer", lambda domains, **settings: settings)
    problem = Digits()
    settings = build_balancer("evidence:rate=0.1,caution=1,judge=task,probe=exact", problem, problem.make(0))
    assert settings["weighting"] == {"rate": 0.1, "caution": 1.0}
    assert settings["judge"] == problem.judge
    assert isinstance(settings["probe"], sy.InnerLoop)
    assert build_balancer("evidence:judge=loss", problem, problem.make(0))["judge"] == "loss"


def test_a_damaged_table_is_named(tmp_path):
    result = format_result(run_trial.run_trial(SHORT))
    (tmp_path / RESULTS).write_text(",".join(result) + "\n" + ",".join({**result, "scores": "left"}.values()))
    with pytest.raises(UserError, match=r"results.csv, line 2: scores must have the form name=value;name=value"):
        read_results(tmp_path / RESULTS)


def test_no_seed_is_in_two_groups():
    seeds = {}
    for group in ("choosing", "confirming"):
        for block in GROUPS[group]:
            seeds.setdefault(group, set()).update(range(*block.seeds))
    assert not seeds["choosing"] & seeds["confirming"]
    assert all(max(group) < 1000 for group in seeds.values())


def test_a_block_names_a_variant_that_is_none():
    with pytest.raises(UserError, match="variant of digits must be one of plain"):
        list(Block(problem="digits", seeds=(0, 1), variants=("burnt",)).trials(METHODS))


def test_a_trial_is_named_by_its_settings():
    assert str(SHORT) == "digits noisy sgd 4 equal 7"
    assert str(replace(SHORT, rate=3.0)) == "digits noisy sgd 4 equal@3 7"
    assert list(asdict(SHORT)) == ["problem", "variant", "optimizer", "steps", "method", "seed", "rate"]


def test_a_rate_multiplies_the_learning_rate(monkeypatch):
    rates = []
    monkeypatch.setattr(run_trial, "train", lambda model, balancer, optimizer, batches: rates.append(optimizer))
    for text in ("equal", "equal@3", "equal@0.333"):
        method, rate = parse_method(text)
        run_trial.run_trial(replace(SHORT, method=method, rate=rate))
    assert [optimizer.param_groups[0]["lr"] for optimizer in rates] == pytest.approx([0.1, 0.3, 0.0333])


def test_parts_of_a_batch_follow_the_root_of_the_size():
    problem = Digits()
    domains = problem.make(0, "small")
    sizes = {name: len(domain.train.targets) for name, domain in domains.items()}
    parts = batch_sizes(BY_SIZE, problem, domains)
    weights = build_balancer(BY_SIZE, problem, domains).weights
    small = min(sizes, key=sizes.get)
    large = max(sizes, key=sizes.get)
    assert parts[large] / parts[small] == pytest.approx((sizes[large] / sizes[small]) ** 0.5, rel=0.1)
    assert sum(parts.values()) == pytest.approx(2 * 16 + sizes[small], abs=1)
    assert weights == pytest.approx({name: part / sum(parts.values()) for name, part in parts.items()})
    assert set(batch_sizes(BASELINE, problem, problem.make(0)).values()) == {16}


def test_validation_of_noisy_domains_is_also_scored_with_right_labels():
    domains = Digits().make(7, "noisy")
    noisy = next(domain for domain in domains.values() if domain.fault == "noise")
    assert not torch.equal(noisy.validation.targets, noisy.clean_validation.targets)
    assert torch.equal(noisy.clean_validation.targets, Digits().make(7)[_name(domains, noisy)].validation.targets)


def _name(domains, wanted):
    return next(name for name, domain in domains.items() if domain is wanted)
