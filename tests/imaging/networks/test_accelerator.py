import pytest
import torch

from steelyard.errors import UserError
from steelyard.imaging.networks.accelerator import choose_accelerator


def machine(monkeypatch, *, cuda=0, mps=False):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


def test_auto_is_cuda_where_there_are_enough_devices_and_never_mps(monkeypatch):
    machine(monkeypatch, mps=True)
    assert choose_accelerator("auto") == "cpu"
    machine(monkeypatch, cuda=1)
    assert choose_accelerator("auto") == "cuda"
    assert choose_accelerator("auto", devices=2) == "cpu"
    assert choose_accelerator("cpu") == "cpu"


@pytest.mark.parametrize(
    ("name", "devices", "message"),
    [
        ("cuda", 2, "accelerator cuda: 2 needed, and this machine has 1; with --accelerator cpu"),
        ("mps", 1, "accelerator mps: 1 needed, and this machine has 0"),
        ("gpu", 1, "accelerator must be one of auto, cpu, cuda, mps; got 'gpu'"),
    ],
)
def test_what_a_machine_has_not_is_refused(monkeypatch, name, devices, message):
    machine(monkeypatch, cuda=1)
    with pytest.raises(UserError, match=message):
        choose_accelerator(name, devices=devices)
    machine(monkeypatch, cuda=2, mps=True)
    if name != "gpu":
        assert choose_accelerator(name, devices=devices) == name
