import os
from types import SimpleNamespace

import pytest
import torch

from steelyard.errors import UserError
from steelyard.experiments import local_executor, ray_executor
from steelyard.experiments.local_executor import LocalExecutor, choose_gpu, gpu_environment
from steelyard.experiments.ray_executor import RayExecutor, gpus_per_unit, units_at_a_time


@pytest.mark.parametrize(
    ("count", "visible", "chosen"),
    [
        (0, None, [None, None, None]),
        (1, None, ["0", "0", "0"]),
        (2, None, ["0", "1", "0"]),
        (2, "3, 1", ["3", "1", "3"]),
        (2, "GPU-a,MIG-b", ["GPU-a", "MIG-b", "GPU-a"]),
        (1, "2,-1,3", ["2", "2", "2"]),  # CUDA sees what stands before an impossible number
        (0, "", [None, None, None]),
    ],
)
def test_workers_take_turns_with_the_gpus_that_are_visible(count, visible, chosen):
    assert [choose_gpu(slot, count=count, visible=visible) for slot in range(3)] == chosen


def test_only_runs_on_gpus_are_given_any(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu_environment(1, "cpu") == gpu_environment(1, "mps") == {}
    assert gpu_environment(1, "auto") == gpu_environment(3, "cuda") == {"CUDA_VISIBLE_DEVICES": "1"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert gpu_environment(0, "gpu") == {"CUDA_VISIBLE_DEVICES": "4"}


def test_every_worker_starts_with_its_own_gpu_and_a_substitute_with_the_same(monkeypatch):
    seen = []
    idle = SimpleNamespace(start=lambda: seen.append(os.environ.get("CUDA_VISIBLE_DEVICES")))
    pipe = SimpleNamespace(send=lambda _: None, close=lambda: None)
    context = SimpleNamespace(Pipe=lambda: (pipe, pipe), Process=lambda **_: idle)
    monkeypatch.setattr(local_executor, "multiprocessing", SimpleNamespace(get_context=lambda _: context))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    executor = LocalExecutor(3, accelerator="cuda")
    for unit in ("first", "second", "third"):
        executor.submit(unit)
    executor._workers.pop(1)  # as polling does when one died
    executor.submit("second again")
    assert seen == ["0", "1", "0", "1"]
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


@pytest.mark.parametrize("address", ["192.0.2.2", "127.0.0.1", "::1"])
def test_a_cluster_of_ones_own_is_refused_if_it_is_open_to_the_network(monkeypatch, address):
    calls = []
    ray = SimpleNamespace(
        init=lambda **settings: calls.append(settings),
        shutdown=lambda: calls.append("shutdown"),
        util=SimpleNamespace(get_node_ip_address=lambda: address),
        cluster_resources=dict,
        remote=lambda **_: lambda function: function,
    )
    monkeypatch.setattr(ray_executor, "import_module", lambda _: ray)
    monkeypatch.setenv(ray_executor._LOOPBACK, "1")
    if address == "192.0.2.2":
        with pytest.raises(UserError, match="would listen on the network"):
            RayExecutor("local", workers=2)
        assert calls[-1] == "shutdown"
    else:
        RayExecutor("local", workers=2)
        assert calls[-1]["include_dashboard"] is False
    assert os.environ[ray_executor._LOOPBACK] == "0"
    with pytest.raises(UserError, match="workers must be at most"):
        RayExecutor("local", workers=5000)


@pytest.mark.parametrize(
    ("accelerator", "resources", "gpus", "runs"),
    [
        ("cpu", {"CPU": 8.0, "GPU": 2.0}, 0, 4),
        ("auto", {"CPU": 8.0, "GPU": 2.0}, 1, 2),
        ("cuda", {"CPU": 8.0, "GPU": 16.0}, 1, 4),
        ("gpu", {"CPU": 8.0}, 0, 4),
        ("auto", {"CPU": 1.0}, 0, 1),
    ],
)
def test_a_cluster_is_asked_for_what_it_has(monkeypatch, accelerator, resources, gpus, runs):
    assert gpus_per_unit(accelerator, resources) == gpus
    assert units_at_a_time(resources, threads=2, gpus=gpus) == runs
    asked = {}
    ray = SimpleNamespace(
        init=lambda **_: None,
        cluster_resources=lambda: resources,
        remote=lambda **options: lambda function: asked.update(options) or function,
    )
    monkeypatch.setattr(ray_executor, "import_module", lambda _: ray)
    executor = RayExecutor("auto", threads=2, accelerator=accelerator)
    assert (asked["num_cpus"], asked["num_gpus"], executor.size) == (2, gpus, runs)
    assert RayExecutor("auto", workers=1, threads=2, accelerator=accelerator).size == 1
