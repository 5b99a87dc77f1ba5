"""A batch keeps its factors wherever it goes."""

import copy
import pickle
from typing import NamedTuple

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data._utils.pin_memory import pin_memory

import steelyard as sy


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Graph:
    def __init__(self, device="cpu"):
        self.device = device

    def to(self, device):
        return Graph(device)


def test_a_batch_moves_with_its_factors():
    samples = {
        "a": Pair(torch.ones(2), torch.ones(2)),
        "b": [{"x": torch.ones(1)}, ["name"], sy.Samples([torch.ones(3)]), Graph(), None],
    }
    moved = sy.DomainBatch(samples, {"a": 0.5}).to("meta")
    assert moved.factors == {"a": 0.5}
    assert isinstance(moved["a"], Pair)
    assert moved["a"].y.device.type == "meta"
    tree, names, several, graph, nothing = moved["b"]
    assert [tree["x"].device.type, several[0].device.type, graph.device] == ["meta"] * 3
    assert isinstance(several, sy.Samples)
    assert (names, nothing) == (["name"], None)


@pytest.mark.parametrize(
    "keep", [copy.copy, copy.deepcopy, lambda batch: pickle.loads(pickle.dumps(batch)), pin_memory]
)
def test_a_copy_keeps_the_factors(keep):
    batch = sy.DomainBatch({"a": ["name"]}, {"a": 0.5})
    kept = keep(batch)
    assert isinstance(kept, sy.DomainBatch)
    assert (kept, kept.factors) == (batch, batch.factors)


def test_factors_of_another_kind_are_refused():
    balancer = sy.Balancer(("a",), loss=mse_loss, weighting=sy.Fixed())
    batch = sy.DomainBatch({"a": (torch.ones(2, 1), torch.ones(2, 1))}, {"a": -1.0})
    with pytest.raises(ValueError, match=r"the factors of a batch must be finite and not negative; got \{'a': -1.0\}"):
        balancer(torch.nn.Linear(1, 1), batch)


@pytest.mark.parametrize(
    ("module", "function"),
    [("lightning.fabric.utilities.apply_func", "move_data_to_device"), ("accelerate.utils", "send_to_device")],
)
def test_frameworks_move_a_batch_with_its_factors(module, function):
    move = getattr(pytest.importorskip(module), function)
    moved = move(sy.DomainBatch({"a": (torch.ones(2), torch.ones(2))}, {"a": 0.5}), "meta")
    assert (moved["a"][0].device.type, moved.factors) == ("meta", {"a": 0.5})
