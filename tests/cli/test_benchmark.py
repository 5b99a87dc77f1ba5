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
from steelyard.benchmark import peers, step_costs, training_steps
from steelyard.benchmark.tasks import make_task
from steelyard.benchmark.training_steps import Case, select_cases
from steelyard.benchmark.vote_passes import make_bare_step
from steelyard.cli import main

KEYS = ["network", "domains", "method", "every", "call"]
KEYS += ["time_ratio", "time_ratio_spread", "memory_ratio", "milliseconds"]


def test_writes_a_record_for_each_case(tmp_path, monkeypatch, capsys):
    chosen = [Case(network="unet-small", method=method) for method in ("plain", "inner-loop")]
    monkeypatch.setattr(training_steps, "cases", lambda: list(chosen))
    monkeypatch.setattr(step_costs, "SECONDS", 0.05)
    out, page = tmp_path / "costs.json", tmp_path / "page.md"
    page.write_text("before\n<!-- measured -->\nold\n<!-- /measured -->\nafter\n")
    assert main(["benchmark", str(out), "--rounds", "3", "--page", str(page)]) == 0
    plain, learned = json.loads(out.read_text())
    assert list(plain) == list(learned) == KEYS
    assert (plain["method"], plain["memory_ratio"]) == ("plain", 1.0)
    assert (plain["call"], learned["call"]) == ("", 'sy.InnerLoop(reuse="detect")')
    assert 0.5 < plain["time_ratio"] < 2  # to plain steps between, so that it tells the noise
    assert learned["time_ratio"] > 1.2
    assert "inner-loop" in capsys.readouterr().out
    written = page.read_text()
    assert written.startswith("before\n<!-- measured -->\n\n### `unet-small`, 2 domains")
    assert written.endswith("\n<!-- /measured -->\nafter\n")
    (line,) = [line for line in written.splitlines() if line.startswith("| inner-loop ")]
    assert line.startswith(f"| inner-loop | 1 | {learned['time_ratio']:.2f}× |")
    assert line.endswith('| `sy.InnerLoop(reuse="detect")` |')
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


@pytest.mark.parametrize(
    ("case", "call"),
    [
        (Case(method="plain"), ""),
        (Case(method="bare inner-loop"), ""),
        (Case(method="fixed"), "sy.Fixed()"),
        (Case(method="first-order"), "sy.FirstOrder()"),
        (Case(method="first-order", every=4), "sy.FirstOrder(every=4)"),
        (Case(method="torchjd MGDA"), "torchjd.aggregation.MGDA()"),
        (Case(method="torchjd UW", domains=16), "torchjd.scalarization.UW(16)"),
    ],
)
def test_a_row_names_the_call_that_it_measures(case, call):
    assert case.call == call


def test_the_call_of_a_row_makes_the_probe_that_is_measured():
    for case in training_steps.cases():
        if case.method in training_steps.VOTING_PROBES:
            called = eval(case.call, {"sy": sy})
            _, probe = training_steps._weighting_and_probe(case)
            assert str(called) == str(probe)
            assert called.every == case.every


def test_selects_rows_by_network_domains_and_method():
    cases = select_cases(networks=["mlp", "unet-small"], domains=[16], methods=["first-order"])
    assert [(case.network, case.domains, case.method, case.every) for case in cases] == [
        (network, 16, method, every)
        for network in ("mlp", "unet-small")
        for method, every in (("plain", 1), ("first-order", 1), ("first-order", 4))
    ]
    assert select_cases() == training_steps.cases()


def test_the_rows_with_targets_exist():
    rows = {case.row for case in training_steps.cases()}
    for network, domains in (("unet-instancenorm", 2), ("transformer", 2), ("mlp", 16), ("unet-small", 16)):
        assert (network, domains, "first-order", 1) in rows


def cost(method, time_ratio, network="unet-small"):
    numbers = {"time_ratio": time_ratio, "time_ratio_spread": 0.1, "memory_ratio": None, "milliseconds": 1.0}
    return step_costs.StepCost(network=network, domains=2, method=method, every=1, call="", **numbers)


def test_merged_rows_are_replaced_and_in_the_order_of_the_benchmark():
    earlier = [cost("inner-loop", 3.0), cost("not installed", 5.0), cost("plain", 1.0)]
    merged = step_costs.merge_costs(earlier, [cost("plain", 1.1), cost("first-order", 2.0), cost("plain", 1.0, "mlp")])
    assert [(row.network, row.method, row.time_ratio) for row in merged] == [
        ("mlp", "plain", 1.0),
        ("unet-small", "plain", 1.1),
        ("unet-small", "first-order", 2.0),
        ("unet-small", "inner-loop", 3.0),
        ("unet-small", "not installed", 5.0),
    ]


def test_a_second_run_is_merged_into_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(step_costs, "SECONDS", 0.01)
    out = tmp_path / "costs.json"
    step_costs.write_costs(out, [cost("inner-loop", 7.0), cost("fixed", 7.0)])
    command = ["benchmark", str(out), "--rounds", "3", "--networks", "unet-small", "--domains", "2"]
    assert main([*command, "--methods", "fixed"]) == 2  # without --merge nothing is overwritten
    assert main([*command, "--methods", "fixed", "--merge"]) == 0
    rows = step_costs.read_costs(out)
    assert [row.method for row in rows] == ["plain", "fixed", "inner-loop"]
    assert rows[1].time_ratio != 7.0
    assert rows[2].time_ratio == 7.0


@pytest.mark.parametrize("method", ["bare first-order", "bare inner-loop"])
def test_bare_passes_give_the_outer_gradients(method):
    """Shared, they are those of the halves' losses, all in all: no pass is left out."""
    task = make_task("mlp", 2)
    parameters = list(task.model.parameters())
    halves = [(x[rows], y[rows]) for rows in (slice(32), slice(32, 64)) for x, y in task.batch.values()]
    expected = torch.autograd.grad(sum(task.loss(task.model(x), y) for x, y in halves), parameters)
    make_bare_step(method, task, lambda: pytest.fail("where gradients are shared there is no plain step"))()
    for parameter, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.parametrize("method", ["bare first-order", "bare inner-loop"])
def test_bare_passes_where_samples_meet(method):
    """Samples seen in evaluation mode, with and without gradients, and in training mode; the plain step comes after."""
    task, seen = make_task("unet-batchnorm", 2), []
    small = {name: (x[:, :, :16, :16], y[:, :, :16, :16]) for name, (x, y) in task.batch.items()}
    task = dataclasses.replace(task, batch=small)
    task.model.register_forward_hook(
        lambda model, inputs, output: seen.append((model.training, output.requires_grad, len(output)))
    )
    make_bare_step(method, task, lambda: seen.append("plain"))()
    assert seen.pop() == "plain"
    counted = {
        key: sum(n for *flags, n in seen if tuple(flags) == key) for key in itertools.product((False, True), repeat=2)
    }
    expected = {
        "bare first-order": {(True, True): 4, (False, True): 4},  # meta-train gradients; meta-test gradient
        "bare inner-loop": {(True, True): 4, (False, False): 8},  # steps; judged once for each
    }[method]
    assert {key: n for key, n in counted.items() if n} == expected


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc's allocator")
def test_freed_memory_is_kept_for_the_next_step():
    code = """
import resource, sys, torch
from steelyard.benchmark.step_costs import keep_freed_memory
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
    for mode in ("kept", "given back"):
        run = subprocess.run([sys.executable, "-c", code, mode], capture_output=True, text=True, check=True, env=env)
        faults[mode] = int(run.stdout)
    assert faults["given back"] > 20_000 > 5_000 > faults["kept"]


@pytest.mark.parametrize("method", ["FAMO", "DWA", "UW"])
def test_scalarizers_step(method):
    pytest.importorskip("torchjd")
    assert f"torchjd {method}" in peers.peer_methods("mlp")
    for network in ("unet-small", "mlp"):
        task = make_task(network, 2)
        before = [parameter.detach().clone() for parameter in task.model.parameters()]
        peers.make_peer_step(f"torchjd {method}", task)()
        assert any(not torch.equal(a, b) for a, b in zip(before, task.model.parameters(), strict=True))


@pytest.mark.parametrize("variant", ["", peers.BY_DOMAIN])
@pytest.mark.parametrize("method", ["MGDA", "CAGrad", "IMTLG", "AlignedMTL"])
def test_aggregators_step_by_what_they_make_of_the_gradients(method, variant):
    """PCGrad goes through domains in a random order, and is left out."""
    pytest.importorskip("torchjd")
    assert f"torchjd {method}{variant}" in peers.peer_methods("mlp")
    task = make_task("mlp", 3)
    parameters = list(task.model.parameters())
    rows = [torch.autograd.grad(task.loss(task.model(x), y), parameters) for x, y in task.batch.values()]
    expected = peers.make_aggregator(method)(torch.stack([torch.cat([g.flatten() for g in row]) for row in rows]))
    peers.make_peer_step(f"torchjd {method}{variant}", task)()
    gradient = torch.cat([parameter.grad.flatten() for parameter in parameters])
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-5)


def test_peers_are_left_out_where_torchjd_is_missing(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: None if name in ("torchjd", "quadprog") else object())
    assert peers.peer_methods("mlp") == []
    monkeypatch.setattr(peers, "find_spec", lambda name: None if name == "quadprog" else object())
    assert "torchjd UPGrad" not in peers.peer_methods("mlp")
    assert {"torchjd CAGrad", "torchjd CAGrad by domain"} <= set(peers.peer_methods("mlp"))
    assert "torchjd CAGrad by domain" not in peers.peer_methods(
        "unet-batchnorm"
    )  # where samples meet, it is another training


@pytest.mark.parametrize("probe", [sy.FirstOrder(), sy.InnerLoop(reuse="detect")])
@pytest.mark.parametrize(("network", "domains"), [("unet-instancenorm", 2), ("transformer", 2), ("mlp", 16)])
def test_votes_share_where_they_may(network, domains, probe):
    """Other kernels for other numbers of samples do not pass for samples that meet."""
    task, probe = make_task(network, domains), copy.deepcopy(probe)
    judge = sy.Balancer(tuple(task.batch), loss=task.loss, weighting=sy.DirichletVote(), probe=probe)
    judge(task.model, task.batch, task.optimizer)
    assert probe.reuse.reason is None


@pytest.mark.parametrize(("network", "domains"), [("unet-small", 2), ("mlp", 3)])
def test_fixed_weights_give_the_plain_losses_bit_for_bit(network, domains):
    curves = []
    for method in ("plain", "fixed"):
        task = make_task(network, domains)
        losses = peers.joint_losses(task)
        if method == "plain":
            step = training_steps.make_plain_step(task)
        else:
            step = training_steps.make_balanced_step(Case(method=method), task)
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
        (
            "new.json",
            ["--networks", "resnet"],
            "mlp, transformer, unet-batchnorm, unet-instancenorm, unet-small; got resnet",
        ),
        ("new.json", ["--domains", "5"], "4, 8, 16, 32; got 5"),
        ("new.json", ["--methods", "second-order"], "got second-order"),
        ("there.json", ["--merge"], "there.json: not a file that steelyard benchmark wrote"),
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
        next(step_costs.measure_costs([Case(method="fixed")], rounds=1, report=print))


def test_another_clock_than_that_on_the_wall():
    ticks = itertools.count()
    case = Case(network="unet-small", method="plain", with_memory=False)
    (row,) = next(step_costs.measure_costs([case], rounds=2, report=print, clock=lambda: float(next(ticks))))
    assert (row.milliseconds, row.time_ratio) == (1000.0, 1.0)  # every call lasts from one tick to the next
