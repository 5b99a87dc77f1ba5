"""The authors' own code, step by step: `lightweight.npz` holds what it computed in float32."""

from pathlib import Path

import pytest
import torch

import steelyard as sy
from steelyard.imaging.networks.paper import Lightweight, cross_entropy_minus_dice

np = pytest.importorskip("numpy", reason="the traces are numpy's arrays")
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
    with np.load(Path(__file__).parent / "lightweight.npz") as arrays:
        return dict(arrays)


def network(traces, prefix):
    model = Lightweight(width=4)
    state = {name: torch.from_numpy(traces[f"{prefix}/{name}"]) for name in model.state_dict()}
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
        labels = torch.from_numpy(1 - is_flair)
        batch = sy.split_by_domain((torch.from_numpy(x), torch.from_numpy(y).float()), labels, DOMAINS)
        loss = balancer(model, batch, optimizer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        weights.append(balancer.weights["flair"])
        losses.append(loss.item())
        # The authors average over the domains, we sum.
        hypothetical.append([balancer.last.measured.get(name, float("nan")) / 2 for name in DOMAINS])
    np.testing.assert_allclose(weights, traces[f"{variant}/lambda"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(losses, traces[f"{variant}/loss"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(hypothetical, traces[f"{variant}/hypothetical"], rtol=0, atol=1e-5)
    final = network(traces, f"{variant}/final").state_dict()
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(value, final[name], rtol=0, atol=1e-4, err_msg=name)
