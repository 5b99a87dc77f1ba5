import random
import types
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from functools import partial

import pytest
import torch
from torch import nn

from steelyard.probing.replica import Replica
from toys import everything


def replica_of(model):
    return Replica(model).modules[0]


def test_runs_like_the_live_module():
    model = everything().eval()
    x = torch.randn(4, 6)
    assert torch.equal(replica_of(model)(x), model(x))


def test_borrowed_parameters_are_the_live_ones_memory_and_nothing_else_is():
    model = everything()
    replica = Replica(model, borrow=True)
    before = {name: value.clone() for name, value in model.named_buffers()}
    replica.modules[0](torch.randn(4, 6)).sum().backward()
    for live, copied in replica.parameters.items():
        assert copied is not live
        assert copied.data_ptr() == live.data_ptr()
        assert live.grad is None
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


def test_nothing_done_to_the_replica_reaches_the_live_module():
    model = everything()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    replica = Replica(model)
    copied = replica.modules[0]
    copied(torch.randn(4, 6)).sum().backward()
    assert any(parameter.grad is not None for parameter in copied.parameters())
    replica.end_differentiation()
    with torch.no_grad():
        for tensor in [*copied.parameters(), *copied.buffers()]:
            tensor.fill_(7)
    copied.eval()
    copied.calls, copied.dropout.p, copied.last.extra = 99, 0.9, "new"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training
    assert (model.calls, model.dropout.p, hasattr(model.last, "extra")) == (0, 0.3, False)


def test_tied_weights_stay_tied():
    copied = replica_of(everything())
    assert copied.again.weight is copied.tied.weight


def test_frozen_parameters_stay_frozen():
    copied = replica_of(everything())
    assert not copied.frozen.weight.requires_grad
    assert copied.last.weight.requires_grad


def test_follows_every_way_to_a_module():
    """Lists, dicts and bound methods lead to copies, as do recurrent layers' lists of weights."""

    class Aliases(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.listed = [self.layer]
            self.named = {"layer": (self.layer, self.layer.weight)}
            self.apply_layer = types.MethodType(nn.Linear.forward, self.layer)
            self.parent = [self]

        def forward(self, x):
            return self.listed[0](x) + self.named["layer"][0](x) + self.apply_layer(x) + x @ self.named["layer"][1]

    model = Aliases()
    replica = Replica(model)
    copied = replica.modules[0]
    assert copied.parent[0] is copied
    replica.end_differentiation()
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert not copied(torch.ones(1, 2)).any()
    assert model(torch.ones(1, 2)).any()


def test_a_container_that_modules_share_stays_shared():
    model = nn.ModuleList([nn.Identity(), nn.Identity()])
    notes = ["live"]
    model[0].notes = model[1].notes = notes
    notes.append(notes)
    copied = replica_of(model)
    copied[0].notes.append("hypothetical")
    assert copied[1].notes[-1] == "hypothetical"
    assert copied[1].notes[1] is copied[0].notes
    assert len(notes) == 2


Pair = namedtuple("Pair", "first second")


def ways():
    """Attributes through which a forward pass may reach a layer."""
    return {
        "list": lambda layer: ([layer], lambda held, x: held[0](x)),
        "named tuple": lambda layer: (Pair(layer, None), lambda held, x: held.first(x)),
        "deque": lambda layer: (deque([layer], maxlen=3), lambda held, x: held[0](x)),
        "default dict": lambda layer: (defaultdict(list, key=[layer]), lambda held, x: held["key"][0](x)),
        "ordered dict": lambda layer: (OrderedDict(key=layer), lambda held, x: held["key"](x)),
        "set": lambda layer: ({layer}, lambda held, x: next(iter(held))(x)),
        "bound method": lambda layer: (layer.forward, lambda held, x: held(x)),
        "partial": lambda layer: (partial(nn.Linear.forward, layer), lambda held, x: held(x)),
        "compiled function": lambda layer: (compiled(layer.forward), lambda held, x: held(x)),
    }


def compiled(function):
    def run(x):
        return function(x)

    run._torchdynamo_orig_callable = function
    return run


@pytest.mark.parametrize("way", ways())
@pytest.mark.parametrize("registered", [True, False])
def test_no_way_leads_to_the_live_module(way, registered):
    class Holder(nn.Module):
        def forward(self, x):
            return reach(self.held, x)

    model, layer = Holder(), nn.Linear(2, 2)
    if registered:
        model.layer = layer
    model.held, reach = ways()[way](layer)
    replica = Replica(model)
    replica.end_differentiation()
    with torch.no_grad():
        for parameter in replica.parameters.values():
            parameter.zero_()
    assert len(replica.parameters) == 2
    assert not replica.modules[0](torch.ones(1, 2)).any()
    assert model(torch.ones(1, 2)).any()


def test_a_module_that_is_not_registered_keeps_its_statistics():
    model, teacher = nn.Linear(2, 2), nn.BatchNorm1d(2)
    model.teacher = [teacher]
    replica_of(model).teacher[0](torch.randn(4, 2))
    assert not teacher.running_mean.any()


def test_state_in_plain_attributes_is_copied():
    np = pytest.importorskip("numpy", reason="an array is among the attributes")
    model = nn.Linear(1, 1)
    model.memory, model.array, model.dice = torch.zeros(2), np.zeros(2), random.Random(0)
    model.numpy = np.random.default_rng(0)
    copied = replica_of(model)
    copied.memory.add_(1)
    copied.array += 1
    assert copied.dice.random() == random.Random(0).random()
    copied.numpy.random()
    assert not model.memory.any()
    assert not model.array.any()
    assert model.dice.random() == random.Random(0).random()
    assert model.numpy.random() == np.random.default_rng(0).random()


def test_a_layer_that_writes_to_its_weight_in_forward():
    model = nn.Embedding(4, 3, max_norm=0.1)
    before = model.weight.detach().clone()
    replica_of(model)(torch.arange(4))
    assert torch.equal(model.weight, before)


def test_refuses_a_forward_that_holds_the_live_module():
    model = nn.Sequential(nn.Linear(2, 2))
    layer = model[0]
    old = layer.forward
    layer.forward = lambda x: old(x)
    with pytest.raises(TypeError, match="a Linear whose forward is now a function that holds the live module"):
        replica_of(model)


def test_recurrent_layers():
    model = nn.LSTM(3, 4)
    replica = Replica(model)
    x = torch.randn(5, 2, 3)
    live = model(x)[0]
    assert torch.equal(replica.modules[0](x)[0], live)
    replica.end_differentiation()
    with torch.no_grad():
        for parameter in replica.modules[0].parameters():
            parameter.zero_()
    assert not replica.modules[0](x)[0].any()
    assert torch.equal(model(x)[0], live)


def test_a_generator_of_the_module_is_not_drawn_from():
    model = nn.Linear(1, 1)
    model.generator = model.same = torch.Generator().manual_seed(3)
    before = model.generator.get_state()
    copied = replica_of(model)
    assert copied.same is copied.generator
    torch.rand(5, generator=copied.generator)
    assert torch.equal(model.generator.get_state(), before)


def test_synchronised_batch_norm_stays_on_its_rank():
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm2d(3)))
    assert isinstance(model[0], nn.SyncBatchNorm)
    copied = replica_of(model)
    assert not isinstance(copied[0], nn.SyncBatchNorm)
    x = torch.randn(4, 3, 5, 5)
    assert torch.equal(copied(x), nn.BatchNorm2d(3)(x))


def test_says_what_it_cannot_replica():
    with pytest.raises(ValueError, match="a parameter has no shape yet: run the model once"):
        replica_of(nn.LazyLinear(3))


def test_refuses_a_sharded_module():
    class FullyShardedDataParallel(nn.Module):
        pass

    with pytest.raises(TypeError, match="shard it with fully_shard"):
        replica_of(FullyShardedDataParallel())


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_refuses_a_scripted_module():
    with pytest.raises(TypeError, match="pass the Linear it was scripted from"):
        replica_of(torch.jit.script(nn.Linear(1, 1)))


def test_a_counter_is_copied_with_its_counts():
    model = nn.Linear(1, 1)
    model.seen = Counter(a=2)
    copied = replica_of(model)
    assert copied.seen == Counter(a=2)
    copied.seen["a"] += 1
    assert model.seen == Counter(a=2)


class Slotted(nn.Module):
    __slots__ = ("__gain", "scale", "unset")

    def __init__(self):
        super().__init__()
        self.scale = torch.full((), 2.0)
        self.__gain = [3.0]
        self.layer = nn.Linear(6, 1)

    def forward(self, x):
        self.scale += 1
        return self.scale * self.__gain[0] * self.layer(x)


class SlottedChild(Slotted):
    __slots__ = "shift"

    def __init__(self):
        super().__init__()
        self.shift = 1.0

    def forward(self, x):
        return super().forward(x) + self.shift


def test_attributes_in_slots_are_copied_too():
    model = SlottedChild()
    replica = Replica(model)
    x = torch.randn(4, 6)
    outputs = replica.modules[0](x)
    assert model.scale == 2
    assert replica.changed_attribute() == ("SlottedChild", "scale")
    assert torch.equal(outputs, model(x))
