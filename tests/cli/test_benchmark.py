import copy
import ctypes
import dataclasses
import itertools
import json
import os
import subprocess
import sys

import pytest
import torch

import steelyard as sy
from steelyard.cli import main
from steelyard.experiments import bare_votes, benchmark, benchmark_tasks, peers, training_steps
from steelyard.experiments.training_steps import Case

KEYS = {"network", "domains", "method", "every", "time_ratio", "time_ratio_spread", "memory_ratio", "milliseconds"}


def test_writes_a_record_for_each_case(tmp_path, monkeypatch, capsys):
    chosen = [Case(network="unet-small", method=method) for method in ("plain", "inner-loop")]
    monkeypatch.setattr(training_steps, "cases", lambda: chosen)
    monkeypatch.setattr(benchmark, "SECONDS", 0.05)
    out, page = tmp_path / "costs.json", tmp_path / "page.md"
    page.write_text("before\n<!-- measured -->\nold\n<!-- /measured -->\nafter\n")
    assert main(["benchmark", str(out), "--rounds", "3", "--page", str(page)]) == 0
    plain, learned = json.loads(out.read_text())
    assert set(plain) == set(learned) == KEYS
    assert (plain["method"], plain["memory_ratio"]) == ("plain", 1.0)
    assert 0.5 < plain["time_ratio"] < 2  # to plain steps between, so that it tells the noise
    assert learned["time_ratio"] > 1.2
    assert "inner-loop" in capsys.readouterr().out
    written = page.read_text()
    assert written.startswith("before\n<!-- measured -->\n\n### `unet-small`, 2 domains")
    assert written.endswith("\n<!-- /measured -->\nafter\n")
    assert f"| inner-loop | 1 | {learned['time_ratio']:.2f}× |" in written
    assert "old" not in written
    for picture in ("costs.png", "costs-peers.png"):
        assert (tmp_path / picture).stat().st_size > 1000


def by_method(network, domains):
    return {case.method: case for case in training_steps.cases() if case.group == (network, domains)}


def moves(case, monkeypatch):
    tasks, make = [], training_steps.make_task
    with monkeypatch.context() as patch:
        patch.setattr(training_steps, "make_task", lambda *which: tasks.append(make(*which)) or tasks[-1])
        step = training_steps.make_step(case)
    parameters = [p for group in tasks[0].optimizer.param_groups for p in group["params"]]
    before = [parameter.detach().clone() for parameter in parameters]
    step()
    return any(not old.equal(new) for old, new in zip(before, parameters, strict=True))


def test_every_case_of_the_small_networks_steps(monkeypatch):
    for case in [*by_method("unet-small", 2).values(), *by_method("mlp", 2).values()]:
        assert moves(case, monkeypatch), case


@pytest.mark.slow
def test_every_case_steps(monkeypatch):
    for case in training_steps.cases():
        assert moves(case, monkeypatch), case


def test_every_group_begins_with_the_plain_step_and_has_every_mode():
    groups = [list(group) for _, group in itertools.groupby(training_steps.cases(), key=lambda case: case.group)]
    assert len({group[0].group for group in groups}) == len(groups)
    for group in groups:
        assert [case.method for case in group][:2] == ["plain", "fixed"]
        assert {"first-order", "inner-loop"} <= {case.method for case in group}
    assert {case.domains for case in training_steps.cases() if case.network == "mlp"} == {2, 4, 8, 16, 32}


@pytest.mark.parametrize("method", ["bare first-order", "bare inner-loop"])
def test_bare_passes_give_the_outer_gradients(method):
    """Shared, they are those of the halves' losses, all in all: no pass is left out."""
    task = benchmark_tasks.make_task("mlp", 2)
    parameters = list(task.model.parameters())
    halves = [(x[rows], y[rows]) for rows in (slice(32), slice(32, 64)) for x, y in task.batch.values()]
    expected = torch.autograd.grad(sum(task.loss(task.model(x), y) for x, y in halves), parameters)
    bare_votes.bare_step(method, task, lambda: pytest.fail("where gradients are shared there is no plain step"))()
    for parameter, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_bare_passes_where_samples_meet():
    """Samples seen in evaluation mode, without gradients, and in training mode; the plain step comes after."""
    task, seen = benchmark_tasks.make_task("unet-batchnorm", 2), []
    small = {name: (x[:, :, :16, :16], y[:, :, :16, :16]) for name, (x, y) in task.batch.items()}
    task = dataclasses.replace(task, batch=small)
    task.model.register_forward_hook(
        lambda model, inputs, output: seen.append((model.training, output.requires_grad, len(output)))
    )
    bare_votes.bare_step("bare inner-loop", task, lambda: seen.append("plain"))()
    assert seen.pop() == "plain"
    counted = {
        key: sum(n for *flags, n in seen if tuple(flags) == key) for key in itertools.product((False, True), repeat=2)
    }
    expected = {(True, True): 4, (False, False): 8}  # steps; judged once for each
    assert {key: n for key, n in counted.items() if n} == expected


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc's allocator")
def test_freed_memory_is_kept_for_the_next_step():
    code = """
import resource, sys, torch
from steelyard.experiments.benchmark import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(2_200_000) for _ in range(16)]
    while tensors:
        tensors.pop()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    faults = {}
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072"}  # as it is at first; later it depends
    for way in ("kept", "given back"):
        found = subprocess.run([sys.executable, "-c", code, way], capture_output=True, text=True, check=True, env=env)
        faults[way] = int(found.stdout)
    assert faults["given back"] > 20_000 > 5_000 > faults["kept"]


@pytest.mark.parametrize("method", ["FAMO", "DWA", "UW"])
def test_scalarizers_step(method):
    pytest.importorskip("torchjd")
    assert f"torchjd {method}" in peers.peers("mlp")
    for network in ("unet-small", "mlp"):
        task = benchmark_tasks.make_task(network, 2)
        before = [parameter.detach().clone() for parameter in task.model.parameters()]
        peers.peer_step(f"torchjd {method}", task)()
        assert any(not torch.equal(a, b) for a, b in zip(before, task.model.parameters(), strict=True))


@pytest.mark.parametrize("way", ["", peers.BY_DOMAIN])
@pytest.mark.parametrize("method", ["MGDA", "CAGrad", "IMTLG", "AlignedMTL"])
def test_aggregators_step_by_what_they_make_of_the_gradients(method, way):
    """PCGrad goes through domains in a random order, and is left out."""
    pytest.importorskip("torchjd")
    assert f"torchjd {method}{way}" in peers.peers("mlp")
    task = benchmark_tasks.make_task("mlp", 3)
    parameters = list(task.model.parameters())
    rows = [torch.autograd.grad(task.loss(task.model(x), y), parameters) for x, y in task.batch.values()]
    expected = peers._aggregator(method)(torch.stack([torch.cat([g.flatten() for g in row]) for row in rows]))
    peers.peer_step(f"torchjd {method}{way}", task)()
    found = torch.cat([parameter.grad.flatten() for parameter in parameters])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_peers_are_left_out_where_torchjd_is_missing(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: None if name in ("torchjd", "quadprog") else object())
    assert peers.peers("mlp") == []
    monkeypatch.setattr(peers, "find_spec", lambda name: None if name == "quadprog" else object())
    assert "torchjd UPGrad" not in peers.peers("mlp")
    assert {"torchjd CAGrad", "torchjd CAGrad by domain"} <= set(peers.peers("mlp"))
    assert "torchjd CAGrad by domain" not in peers.peers("unet-batchnorm")  # where samples meet, it is another training


@pytest.mark.parametrize("probe", [sy.FirstOrder(), sy.InnerLoop(reuse="detect")])
@pytest.mark.parametrize(("network", "domains"), [("unet-instancenorm", 2), ("transformer", 2), ("mlp", 16)])
def test_votes_share_where_they_may(network, domains, probe):
    """Other kernels for other numbers of samples do not pass for samples that meet."""
    task, probe = benchmark_tasks.make_task(network, domains), copy.deepcopy(probe)
    judge = sy.Balancer(tuple(task.batch), loss=task.loss, weighting=sy.DirichletVote(), probe=probe)
    judge(task.model, task.batch, task.optimizer)
    assert probe.reuse.reason is None


@pytest.mark.parametrize(("network", "domains"), [("unet-small", 2), ("mlp", 3)])
def test_fixed_weights_give_the_plain_losses_bit_for_bit(network, domains):
    curves = []
    for method in ("plain", "fixed"):
        task = benchmark_tasks.make_task(network, domains)
        losses = peers.joint_losses(task)
        case = Case(network=network, domains=domains, method=method)
        step = (training_steps._plain if method == "plain" else training_steps._balanced)(case, task)
        curve = []
        for _ in range(4):
            with torch.no_grad():
                curve.append(losses().tolist())
            step()
        curves.append(curve)
    assert curves[0] == curves[1]


@pytest.mark.parametrize(
    ("path", "arguments", "message"),
    [
        ("there.json", [], "there.json: exists already"),
        ("no/such.json", [], "no: no such folder"),
        ("new.json", ["--page", "nowhere.md"], "nowhere.md: no page with the line <!-- measured -->"),
        ("new.png", [], "new.png: the numbers go into a JSON file"),
        ("new.json", ["--rounds", "2"], "--rounds must be at least 3, or there is no spread to state; got 2"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, capsys, path, arguments, message):
    (tmp_path / "there.json").write_text("kept")
    assert main(["benchmark", str(tmp_path / path), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert (tmp_path / "there.json").read_text() == "kept"


def test_the_first_case_must_be_plain():
    with pytest.raises(ValueError, match="the first case must be the plain step; got 'fixed'"):
        next(benchmark.measure([Case(method="fixed")], rounds=1))
