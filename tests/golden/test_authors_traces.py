"""The authors' own code, step by step: `lightweight.npz` holds what it computed in float32."""

import ast
import zipfile
from pathlib import Path

import pytest
import torch

import steelyard as sy
from steelyard.imaging.networks.paper import Lightweight, cross_entropy_minus_dice

DTYPES = {"<f4": torch.float32, "<f8": torch.float64, "<i8": torch.int64, "|b1": torch.bool, "|u1": torch.uint8}
DOMAINS = ("flair", "t1")
VARIANTS = {
    "conservative-25": lambda: sy.DirichletVote("conservative", window=25, prior=5.0),
    "greedy-25": lambda: sy.DirichletVote("greedy", window=25, prior=5.0),
    "conservative-10": lambda: sy.DirichletVote("conservative", window=10, prior=5.0),
    "simple-conservative": lambda: sy.RelativeShift(gamma=0.1),
    "simple-greedy": lambda: sy.RelativeShift(gamma=-0.1),
    "fixed-0.5": lambda: sy.Fixed([0.5, 0.5]),
    "fixed-0.1": lambda: sy.Fixed([0.1, 0.9]),
}


@pytest.fixture(scope="module")
def traces():
    with zipfile.ZipFile(Path(__file__).parent / "lightweight.npz") as archive:
        return {name.removesuffix(".npy"): read_array(archive.read(name)) for name in archive.namelist()}


def read_array(content):
    """An array of numpy's format, version 1, without numpy: `make quick` has torch alone."""
    size = int.from_bytes(content[8:10], "little")  # of the header, after the mark and the version
    header = ast.literal_eval(content[10 : 10 + size].decode())
    assert not header["fortran_order"]
    values = torch.frombuffer(bytearray(content[10 + size :]), dtype=DTYPES[header["descr"]])
    return values.reshape(header["shape"])


def network(traces, prefix):
    model = Lightweight(width=4)
    state = {name: traces[f"{prefix}/{name}"] for name in model.state_dict()}
    model.load_state_dict(state)
    return model


@pytest.mark.parametrize("variant", VARIANTS)
def test_reproduces_the_authors_code(traces, variant):
    model = network(traces, "init").train()
    lr, momentum = float(traces["lr"]), float(traces["momentum"])
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    probe = None if variant.startswith("fixed") else sy.InnerLoop()
    balancer = sy.Balancer(DOMAINS, loss=cross_entropy_minus_dice, weighting=VARIANTS[variant](), probe=probe)
    weights, losses, hypothetical = [], [], []
    for x, y, is_flair in zip(traces["x"], traces["y"], traces["is_flair"], strict=True):
        batch = sy.split_by_domain((x, y.float()), 1 - is_flair, DOMAINS)
        loss = balancer(model, batch, optimizer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        weights.append(balancer.weights["flair"])
        losses.append(loss.item())
        # The authors average over the domains, we sum.
        hypothetical.append([balancer.last.measured.get(name, float("nan")) / 2 for name in DOMAINS])
    for name, values, tolerance in (
        ("lambda", weights, 1e-6),
        ("loss", losses, 1e-5),
        ("hypothetical", hypothetical, 1e-5),
    ):
        expected = traces[f"{variant}/{name}"].double()
        computed = torch.tensor(values, dtype=torch.float64)
        torch.testing.assert_close(computed, expected, rtol=0, atol=tolerance, equal_nan=True)
    final = network(traces, f"{variant}/final").state_dict()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, final[name], rtol=0, atol=1e-4, msg=name)
