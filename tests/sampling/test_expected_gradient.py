"""In every mode the mean gradient over many batches is Σ λ_d ∇L_d, with L_d the mean loss over the domain's data.

The bound: no coordinate of the mean over the batches may be more than 3 standard errors from the exact gradient of a
linear model. The weights are constant here, so that there is one exact gradient. Samples are drawn in passes, without
replacement, so that the mean is in fact much closer.
"""

from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

import steelyard as sy

SIZES = {"a": 41, "b": 23, "c": 9}
WEIGHTS = {2: (0.02, 1.98), 3: (0.02, 0.4, 1.58)}  # which sum to 2
SIZE = 4  # of a batch: by its weight, domain a gets far less than one sample
BATCHES = 800
BOUND = 3.0


class Constant(sy.Weighting):
    """Weights that stay, and need not sum to 1."""

    statistic: ClassVar = sy.Statistic.NOTHING
    on_simplex: ClassVar = False

    def __init__(self, *numbers):
        super().__init__()
        self.numbers = numbers

    def weights(self):
        return self.numbers

    def _start(self, domains):
        pass

    def _update(self, measurement):
        return sy.Update(sy.Outcome.FIXED)


def make_datasets(domains):
    generator = torch.Generator().manual_seed(3)
    datasets = {}
    for number, name in enumerate("abc"[:domains]):
        x = torch.randn(SIZES[name], 3, generator=generator, dtype=torch.float64) + number
        datasets[name] = TensorDataset(x, (30.0 if name == "a" else 1.0) * x.sum(1, keepdim=True) + number)
    return datasets


def gradient(model, loss):
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])


def exact_gradient(model, datasets, weights):
    losses = [mse_loss(model(x), y) for x, y in (dataset.tensors for dataset in datasets.values())]
    return gradient(model, sum(weight * loss for weight, loss in zip(weights, losses, strict=True)))


def standard_errors_apart(model, losses, expected):
    """How far the mean gradient is from the expected one, in standard errors; the largest over the coordinates."""
    gradients = torch.stack([gradient(model, loss) for loss in losses])
    errors = gradients.std(0) / len(gradients) ** 0.5
    return float(((gradients.mean(0) - expected) / errors).abs().max())


def make(weights, probe=None):
    torch.manual_seed(0)
    domains = len(weights)
    balancer = sy.Balancer(list("abc")[:domains], loss=mse_loss, weighting=Constant(*weights), probe=probe)
    return nn.Linear(3, 1).double(), make_datasets(domains), balancer


@pytest.mark.parametrize("domains", [2, 3])
@pytest.mark.parametrize("follow", ["loss", "sampling", "both"])
def test_the_mean_gradient_is_that_of_the_weighted_losses(domains, follow):
    model, datasets, balancer = make(WEIGHTS[domains])
    minimum = 2 if follow == "loss" else 0
    loader = sy.DomainLoader(datasets, SIZE, sampling=balancer, follow=follow, minimum=minimum, steps=BATCHES)
    expected = exact_gradient(model, datasets, WEIGHTS[domains])
    batches = list(loader)
    assert any("a" not in batch for batch in batches) == (follow != "loss")
    assert standard_errors_apart(model, (balancer(model, batch) for batch in batches), expected) < BOUND
    without_factors = standard_errors_apart(model, (balancer(model, dict(batch)) for batch in batches), expected)
    assert (without_factors < BOUND) == (follow == "loss")


@pytest.mark.parametrize("follow", ["sampling", "both"])
def test_a_minimum_of_samples_changes_the_noise_and_not_the_mean(follow):
    model, datasets, balancer = make(WEIGHTS[3])
    loader = sy.DomainLoader(datasets, 9, sampling=balancer, follow=follow, minimum=2, steps=BATCHES)
    batches = list(loader)
    assert min(len(y) for batch in batches for _, y in batch.values()) == 2
    losses = (balancer(model, batch) for batch in batches)
    assert standard_errors_apart(model, losses, exact_gradient(model, datasets, WEIGHTS[3])) < BOUND


@pytest.mark.parametrize("sampling", ["balanced", "proportional", "sqrt", {"a": 1, "b": 2, "c": 5}])
def test_a_composition_changes_the_noise_and_not_the_mean(sampling):
    model, datasets, balancer = make(WEIGHTS[3])
    loader = sy.DomainLoader(datasets, SIZE, sampling=sampling, steps=BATCHES)
    losses = (balancer(model, batch) for batch in loader)
    assert standard_errors_apart(model, losses, exact_gradient(model, datasets, WEIGHTS[3])) < BOUND


def test_batches_that_were_drawn_with_other_weights_follow_the_present_ones():
    model, datasets, balancer = make(WEIGHTS[3])
    older = {"a": 0.3, "b": 0.65, "c": 0.05}
    batches = list(sy.DomainLoader(datasets, SIZE, sampling=lambda: older, minimum=0, steps=BATCHES))
    present = exact_gradient(model, datasets, WEIGHTS[3])
    assert standard_errors_apart(model, (balancer(model, batch) for batch in batches), present) < BOUND
    past = exact_gradient(model, datasets, list(older.values()))
    assert standard_errors_apart(model, (balancer(model, batch) for batch in batches), past) > BOUND


@pytest.mark.parametrize("minimum", [0, 2])
def test_a_batch_sampled_by_the_weights_has_the_plain_mean_over_its_samples(minimum):
    weights = (1.0, 0.45, 0.55)
    model, datasets, balancer = make(weights)
    for batch in sy.DomainLoader(datasets, 10, sampling=balancer, minimum=minimum, steps=50):
        plain = torch.cat([(model(x) - y).square() for x, y in batch.values()]).mean()
        torch.testing.assert_close(balancer(model, batch), sum(weights) * plain)


def weights_of_losses(model, datasets, batch, balancer):
    """What each domain's mean gradient is multiplied by in the outer loss's gradient."""
    columns = [gradient(model, mse_loss(model(x), y)) for x, y in batch.values()]
    outer = gradient(model, balancer(model, batch, torch.optim.SGD(model.parameters(), lr=1e-3)))
    return torch.linalg.lstsq(torch.stack(columns, 1), outer[:, None]).solution.flatten().tolist()


@pytest.mark.parametrize("probe", [None, sy.InnerLoop(), sy.FirstOrder(reuse=True), sy.FirstOrder(reuse=False)])
def test_factors_reach_the_gradient_where_the_vote_shares_it(probe):
    model, datasets, _ = make(WEIGHTS[3])
    weighting = sy.Fixed([0.2, 0.3, 0.5])
    balancer = sy.Balancer(["a", "b", "c"], loss=mse_loss, weighting=weighting, probe=probe)
    for batch in sy.DomainLoader(datasets, 13, sampling=lambda: {"a": 3.0, "b": 2.0, "c": 1.0}, steps=5):
        products = [balancer.weights[name] * batch.factors[name] for name in "abc"]
        assert weights_of_losses(model, datasets, batch, balancer) == pytest.approx(products, rel=1e-6)
        assert balancer.last.weights == balancer.weights  # the report has λ, not λ f


def test_factors_reach_losses_that_are_not_measured():
    model, datasets, balancer = make((0.5, 0.25, 0.25))
    (batch,) = sy.DomainLoader(datasets, 10, sampling=lambda: {"a": 3.3, "b": 2.2, "c": 4.5}, steps=1)
    parts = [balancer.weights[name] * batch.factors[name] * mse_loss(model(x), y) for name, (x, y) in batch.items()]
    torch.testing.assert_close(balancer(model, batch, measure=False), sum(parts))
    assert len(set(batch.factors.values())) > 1
    with torch.no_grad():
        torch.testing.assert_close(balancer(model, batch), sum(parts))
