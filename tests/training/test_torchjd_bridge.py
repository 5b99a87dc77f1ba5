"""torchjd's scalarizers and weightings in a balancer do what torchjd does."""

import copy

import pytest
import torch
from torch.nn.functional import mse_loss

import steelyard as sy
from toys import balancer, batch, everything, smooth, take_step

NAMES = ("a", "b", "c")


def samples(seed=0):
    return batch(sizes=(6, 4, 5), names=NAMES, seed=seed)


def jacobian(model, pairs):
    rows = [torch.autograd.grad(mse_loss(model(x), y), list(model.parameters())) for x, y in pairs.values()]
    return torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])


@pytest.mark.parametrize("reuse", ["detect", False])
def test_the_gramian_is_that_of_the_domains_gradients(reuse):
    model = smooth().double()
    pairs = batch(sizes=(6, 4, 5), names=NAMES, dtype=torch.float64)
    probe = sy.Gramian(reuse=reuse)
    judge = balancer(domains=NAMES, weighting=sy.Fixed([0.2, 0.3, 0.5]), probe=probe)
    loss = judge(model, pairs, torch.optim.SGD(model.parameters(), lr=0.1))
    rows = jacobian(model, pairs)
    for mine, row in zip(judge.last.measured.values(), (rows @ rows.T).tolist(), strict=True):
        assert mine == pytest.approx(row, rel=1e-9)
    loss.backward()
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(flat, torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64) @ rows)
    assert probe.reuse.reason is None


def test_the_gramian_leaves_models_whose_samples_meet_alone():
    model = everything()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    probe = sy.Gramian()
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    judge = balancer(probe=probe, weighting=sy.Fixed())
    found = probe.find(model, batch(), losses=judge.domain_losses, optimizer=optimizer)
    assert found.shared is None
    assert found.measurement.taking_part == [0, 1]
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), before.values(), strict=True))


def test_a_function_of_the_gramian_must_weigh_every_domain():
    weighting = sy.FromGramian(lambda gramian: gramian.diagonal()[:1])
    weighting.start(2)
    with pytest.raises(ValueError, match=r"one weight per domain \(2\); got 1"):
        weighting.observe(sy.Measurement.of(torch.eye(2)))


@pytest.mark.parametrize("name", ["MGDA", "PCGrad", "IMTLG", "AlignedMTL"])
def test_weightings_of_the_gramian_give_torchjds_aggregation(name):
    aggregation = pytest.importorskip("torchjd.aggregation")
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    judge = balancer(
        domains=NAMES, weighting=sy.FromGramian(getattr(aggregation, f"{name}Weighting")()), probe=sy.Gramian()
    )
    torch.manual_seed(1)
    expected = getattr(aggregation, name)()(jacobian(model, samples()))
    torch.manual_seed(1)
    judge(model, samples(), optimizer).backward()
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(flat, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
    take_step(judge(model, {n: samples()[n] for n in ("a", "c")}, optimizer), optimizer)
    assert judge.last.outcome is sy.Outcome.UPDATED


@pytest.mark.parametrize("name", ["UW", "IMTLL", "DWA", "GeometricMean", "FAMO"])
def test_scalarizers_give_torchjds_gradients(name):
    scalarization = pytest.importorskip("torchjd.scalarization")
    make = getattr(scalarization, name)
    own = (lambda: make(3)) if name in ("UW", "IMTLL", "FAMO") else make
    ours, theirs, model = own(), own(), smooth()
    twin = copy.deepcopy(model)
    judge = balancer(domains=NAMES, weighting=sy.FromScalarizer(ours, rate=0.1))
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (model, twin)]
    rest = torch.optim.SGD(theirs.parameters(), lr=0.1) if name in ("UW", "IMTLL") else None
    for seed in range(4):
        take_step(judge(model, samples(seed)), optimizers[0])
        losses = torch.stack([mse_loss(twin(x), y) for x, y in samples(seed).values()])
        if name == "FAMO" and seed:
            theirs.update(losses.detach())
        if rest is not None:
            rest.zero_grad()
        take_step(theirs(losses), optimizers[1])
        if rest is not None:
            rest.step()
        if name == "DWA":
            ours.step()
            theirs.step()
    for mine, reference in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-5)


def test_famo_of_our_own_weighs_as_torchjds():
    scalarization = pytest.importorskip("torchjd.scalarization")
    mine, theirs = sy.FAMO(), sy.FromScalarizer(scalarization.FAMO(3))
    generator = torch.Generator().manual_seed(0)
    for weighting in (mine, theirs):
        weighting.start(3)
    for _ in range(30):
        losses = sy.Measurement.of(0.1 + torch.rand(3, generator=generator))
        for weighting in (mine, theirs):
            weighting.observe(losses)
        assert mine.weights() == pytest.approx(theirs.weights(), rel=1e-3)


def test_log_loss_weighs_as_torchjds_imtl_once_its_scales_are_learned():
    scalarization = pytest.importorskip("torchjd.scalarization")
    closed, learned = sy.LogLoss(), sy.FromScalarizer(scalarization.IMTLL(3), rate=0.1)
    for weighting in (closed, learned):
        weighting.start(3)
        for _ in range(300):
            weighting.observe(sy.Measurement.of(torch.tensor([0.5, 2.0, 4.0])))
    assert learned.weights() == pytest.approx([2.0, 0.5, 0.25], rel=1e-3)
    total = sum(learned.weights())
    assert closed.weights() == pytest.approx([weight / total for weight in learned.weights()], rel=1e-3)


def test_a_scalarizer_waits_until_every_domain_was_seen():
    weighting = sy.FromScalarizer(lambda losses: losses.square().sum())
    weighting.start(2)
    only = sy.Measurement(torch.tensor([3.0, 0.0]).double(), torch.tensor([True, False]))
    assert weighting.observe(only).outcome is sy.Outcome.UNSEEN
    assert weighting.weights() == (0.5, 0.5)
    weighting.observe(sy.Measurement.of(torch.tensor([1.0, 2.0])))
    weighting.observe(only)
    assert weighting.weights() == (6.0, 4.0)
