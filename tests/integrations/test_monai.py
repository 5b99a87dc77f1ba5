"""MONAI's networks, losses and batches: votes as an independent reference has them, gradients of a plain loop."""

import copy
import warnings

import pytest
import torch

import steelyard as sy
from toys import DOMAINS, first_halves, reference_hypothetical_losses, take_step

pytest.importorskip("monai")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from monai.data import DataLoader, Dataset, MetaTensor
    from monai.losses import DiceCELoss
    from monai.networks.nets import DynUNet, UNet

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # torch's vmap of scatter_


def unet(norm="INSTANCE"):
    return UNet(spatial_dims=2, in_channels=1, out_channels=2, channels=(4, 8), strides=(2,), norm=norm, act="GELU")


def dice(**settings):
    return DiceCELoss(to_onehot_y=True, softmax=True, **settings)


def make_batch(seed=0, samples=4):
    generator = torch.Generator().manual_seed(seed)
    pairs = {}
    for number, name in enumerate(DOMAINS):
        labels = (torch.rand(samples, 1, 16, 16, generator=generator) > 0.7).float()
        pairs[name] = ((1 + number) * labels + torch.randn(labels.shape, generator=generator), labels)
    return pairs


def train(network, balancer, batches):
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for samples in batches:
        take_step(balancer(network, samples, optimizer), optimizer)
    return balancer


@pytest.mark.parametrize("batch_dice", [False, True])
@pytest.mark.parametrize("norm", ["INSTANCE", "BATCH"])
def test_exact_votes(norm, batch_dice):
    network, criterion, samples = unet(norm), dice(batch=batch_dice), make_batch()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    balancer = sy.Balancer(DOMAINS, loss=criterion, weighting=sy.DirichletVote(), probe=sy.InnerLoop())
    expected = reference_hypothetical_losses(network, optimizer, first_halves(samples, 2), loss=criterion)
    balancer(network, samples, optimizer)
    assert balancer.last.measured == pytest.approx(expected, rel=1e-5)


def test_a_resumed_run_equals_an_uninterrupted_one():
    torch.manual_seed(0)
    whole = unet()
    stopped = copy.deepcopy(whole)
    criterion = dice()
    batches = [make_batch(seed) for seed in range(6)]
    expected = train(whole, sy.Balancer(DOMAINS, loss=criterion), batches)
    saved = train(stopped, sy.Balancer(DOMAINS, loss=criterion), batches[:3]).state_dict()
    resumed = sy.Balancer(DOMAINS, loss=criterion)
    resumed.load_state_dict(copy.deepcopy(saved))
    train(stopped, resumed, batches[3:])
    assert resumed.weights == expected.weights
    assert torch.equal(resumed.transfer.mean, expected.transfer.mean)
    for parameter, other in zip(stopped.parameters(), whole.parameters(), strict=True):
        assert torch.equal(parameter, other)


REASONS = {
    ("INSTANCE", False): None,
    ("INSTANCE", True): "the gradients of the loss of domain 'a' are not those of a mean over samples",
    ("BATCH", False): "the samples of a batch meet in BatchNorm2d",
    ("BATCH", True): "the samples of a batch meet in BatchNorm2d",
}


@pytest.mark.parametrize(("norm", "batch_dice"), REASONS)
def test_gradients_are_those_of_a_plain_loop(norm, batch_dice):
    """Shared with the vote where the loss is a mean over samples, else not; the gradients are the same either way."""
    network, criterion, batches = unet(norm), dice(batch=batch_dice), [make_batch(seed) for seed in range(3)]
    plain = copy.deepcopy(network)
    balancer = sy.Balancer(DOMAINS, loss=criterion, weighting=sy.Fixed(), probe=sy.FirstOrder())
    train(network, balancer, batches)
    assert balancer.probe.reuse.reason == REASONS[norm, batch_dice]
    assert int(balancer.transfer.count.max()) == 3
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for samples in batches:
        outputs = plain(torch.cat([images for images, _ in samples.values()]))
        losses = [criterion(*pair) for pair in zip(outputs.chunk(2), [y for _, y in samples.values()], strict=True)]
        take_step(sum(losses) / 2, optimizer)
    for parameter, expected in zip(network.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-3, atol=1e-5)


def dynunet():
    return DynUNet(2, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2], filters=[4, 8, 8], deep_supervision=True, deep_supr_num=1)


def stacked_loss(outputs, labels):
    """Of the outputs in training mode: one entry of dimension 1 for each resolution."""
    losses = [0.5**number * dice()(output, labels) for number, output in enumerate(outputs.unbind(1))]
    return sum(losses) / 1.5


def test_deep_supervision():
    """Judged in training mode, by the loss of all outputs: shared, and as the reference."""
    network, samples = dynunet(), make_batch()
    with torch.no_grad():
        assert network(samples["a"][0]).dim() == 5
        assert network.eval()(samples["a"][0]).dim() == 4
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    expected = reference_hypothetical_losses(
        network, optimizer, first_halves(samples, 2), loss=stacked_loss, evaluate=False
    )
    probe = sy.InnerLoop(meta_test="batch")
    balancer = sy.Balancer(DOMAINS, loss=stacked_loss, weighting=sy.DirichletVote(), probe=probe)
    balancer(network, samples, optimizer)
    assert balancer.last.measured == pytest.approx(expected, rel=1e-5)
    cheap = sy.Balancer(DOMAINS, loss=stacked_loss, probe=sy.FirstOrder(meta_test="batch"))
    train(network, cheap, [samples, make_batch(1), make_batch(2)])
    assert cheap.probe.reuse.reason is None
    assert int(cheap.transfer.count.max()) == 3


def test_deep_supervision_in_evaluation_mode_is_explained():
    with pytest.raises(ValueError, match='pass meta_test="batch" to the probe'):
        train(dynunet(), sy.Balancer(DOMAINS, loss=stacked_loss), [make_batch()])


def test_batches_of_dictionaries():
    """As MONAI's transforms make them: tensors with metadata, from one loader for each domain."""
    network, pairs = unet(), make_batch(samples=8)
    loaders = {}
    for name, (images, labels) in pairs.items():
        items = []
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            meta = {"filename_or_obj": f"{name}{number}.nii.gz"}
            items.append({"image": MetaTensor(image, meta=meta), "label": MetaTensor(label, meta=meta)})
        loaders[name] = DataLoader(Dataset(items), batch_size=4)
    dictionaries = [dict(zip(loaders, parts, strict=True)) for parts in zip(*loaders.values(), strict=True)]
    assert isinstance(dictionaries[0]["a"]["image"], MetaTensor)
    criterion = dice()
    results = []
    for read in (lambda tensor: tensor, MetaTensor.as_tensor):
        batches = []
        for parts in dictionaries:
            batches.append({name: (read(part["image"]), read(part["label"])) for name, part in parts.items()})
        trained = copy.deepcopy(network)
        results.append((trained, train(trained, sy.Balancer(DOMAINS, loss=criterion), batches)))
    trained = copy.deepcopy(network)
    objective = lambda model, part: criterion(model(part["image"]), part["label"])  # noqa: E731
    results.append((trained, train(trained, sy.Balancer(DOMAINS, objective=objective), dictionaries)))
    expected_network, expected = results[1]
    assert expected.tally == {"updated": 2}
    for trained, balancer in results:
        assert balancer.weights == pytest.approx(expected.weights, rel=1e-3)
        for parameter, other in zip(trained.parameters(), expected_network.parameters(), strict=True):
            torch.testing.assert_close(parameter, other, rtol=1e-3, atol=1e-5)
