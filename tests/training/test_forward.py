"""`forward=`: models that take keywords, batches of pairs and of mappings."""

import copy
from collections import UserDict

import pytest
import torch
from torch import distributed, nn
from torch.nn.functional import l1_loss, mse_loss
from torch.nn.parallel import DistributedDataParallel

import steelyard as sy
from steelyard.training import DomainLosses
from toys import balancer, batch, smooth

WEIGHTS = [0.3, 0.7]


class Keywords(nn.Module):
    """As the models of Hugging Face: keywords in, a mapping out."""

    def __init__(self):
        super().__init__()
        self.layers = smooth()
        self.sizes = []

    def forward(self, *, features, mask=None):
        self.sizes.append(len(features))
        return {"logits": self.layers(features if mask is None else features * mask)}


def run_mapping(model, samples):
    return model(features=samples["features"], mask=samples["mask"])["logits"]


def run_inputs(model, inputs):
    return model(**inputs)["logits"]


def loss_of_mapping(outputs, samples):
    return mse_loss(outputs, samples["labels"])


def mappings(kind=dict, **kwargs):
    samples = {}
    for name, (x, y) in batch(**kwargs).items():
        mask = torch.ones_like(x)
        mask[0, 3:] = 0
        samples[name] = kind({"features": x, "mask": mask, "labels": y})
    return samples


def pairs(**kwargs):
    samples = {}
    for name, values in mappings(**kwargs).items():
        samples[name] = ({"features": values["features"], "mask": values["mask"]}, values["labels"])
    return samples


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05)


def weighed(probe=None, **kwargs):
    return balancer(weighting=sy.Fixed(WEIGHTS), probe=probe, **kwargs)


CONTRACTS = {
    "a mapping": ({"forward": run_mapping, "loss": loss_of_mapping}, mappings),
    "another kind of mapping": ({"forward": run_mapping, "loss": loss_of_mapping}, lambda **k: mappings(UserDict, **k)),
    "a pair": ({"forward": run_inputs, "loss": mse_loss}, pairs),
    "a list": ({"forward": run_inputs, "loss": mse_loss}, lambda **k: {n: list(p) for n, p in pairs(**k).items()}),
}
contracts = pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS)


def plain_loss(model, samples):
    losses = [loss_of_mapping(run_mapping(model, values), values) for values in samples.values()]
    return sum(weight * loss for weight, loss in zip(WEIGHTS, losses, strict=True))


@contracts
@pytest.mark.parametrize("join", [True, False])
def test_the_loss_is_that_of_a_plain_loop(contract, join):
    settings, make = contract
    model = Keywords()
    loss = weighed(**settings, join=join)(model, make())
    assert model.sizes == ([12] if join else [6, 6])
    torch.testing.assert_close(loss, plain_loss(model, mappings()))


@contracts
@pytest.mark.parametrize("sizes", [(6, 6), (6, 5)], ids=["at once", "one by one"])
def test_votes_share_their_gradients(contract, sizes):
    settings, make = contract
    model = Keywords().double()
    other = copy.deepcopy(model)
    judge = weighed(sy.FirstOrder(), **settings)
    judge(model, make(sizes=sizes, dtype=torch.float64), sgd(model)).backward()
    plain_loss(other, mappings(sizes=sizes, dtype=torch.float64)).backward()
    assert judge.probe.reuse.reason is None
    assert set(judge.last.measured) == {"a", "b"}
    for parameter, expected in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad)


@contracts
@pytest.mark.parametrize("probe", [sy.InnerLoop, sy.FirstOrder])
def test_the_vote_is_that_of_an_objective(contract, probe):
    settings, make = contract
    model = Keywords()
    judge, expected = (
        balancer(probe=probe(), **settings),
        balancer(probe=probe(), objective=lambda model, samples: loss_of_mapping(run_mapping(model, samples), samples)),
    )
    judge(model, make(), sgd(model), held_out=make(seed=1))
    expected(model, mappings(), sgd(model), held_out=mappings(seed=1))
    assert judge.last.measured == pytest.approx(expected.last.measured, rel=1e-5)


@contracts
def test_a_judge_gets_the_same_targets_as_the_loss(contract):
    settings, make = contract
    model = Keywords()
    seen = []

    def judge(outputs, targets):
        seen.append(targets)
        return l1_loss(outputs, targets if isinstance(targets, torch.Tensor) else targets["labels"])

    balancer(probe=sy.InnerLoop(), judge=judge, **settings)(model, make(), sgd(model))
    targets = make()["a"] if not isinstance(make()["a"], tuple | list) else make()["a"][1]
    assert type(seen[0]) is type(targets)


def test_the_default_balancer_votes_on_every_step():
    model = Keywords()
    judge = sy.Balancer(("a", "b"), forward=run_mapping, loss=loss_of_mapping)
    judge(model, mappings(), sgd(model)).backward()
    assert (type(judge.probe), judge.probe.every) == (sy.FirstOrder, 1)


def test_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="give either forward or objective"):
        sy.Balancer(("a", "b"), forward=run_inputs, objective=lambda model, samples: 0)
    with pytest.raises(ValueError, match="give either loss or objective; got neither"):
        sy.Balancer(("a", "b"), forward=run_inputs)
    with pytest.raises(TypeError, match="a forward must be a function"):
        DomainLosses(("a", "b"), forward=Keywords, loss=mse_loss)
    with pytest.raises(ValueError, match=r"'a' must be \(inputs, targets\) or a mapping; got Tensor"):
        weighed(forward=run_inputs, loss=mse_loss)(Keywords(), {"a": torch.ones(4, 6)})
    live = Keywords()
    judge = balancer(forward=lambda _, samples: run_mapping(live, samples), loss=loss_of_mapping, probe=sy.FirstOrder())
    with pytest.raises(ValueError, match="must run the model that it is given"):
        judge(live, mappings(), sgd(live))


@pytest.fixture
def single_rank():
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("probe", [sy.FirstOrder, sy.InnerLoop, None])
def test_a_model_in_distributed_data_parallelism(probe):
    model = Keywords()
    wrapped = DistributedDataParallel(copy.deepcopy(model))
    judge = weighed(probe and probe(), forward=run_mapping, loss=loss_of_mapping)
    judge(wrapped, mappings(), sgd(wrapped)).backward()
    plain_loss(model, mappings()).backward()
    for parameter, expected in zip(wrapped.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad)
