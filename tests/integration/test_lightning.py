"""Lightning's automatic optimisation and Fabric go on working, with the weights of a plain loop."""

import copy

import pytest
import torch

import steelyard as sy
from toys import balancer, batch, smooth, take_step

lightning = pytest.importorskip("lightning")
pytestmark = pytest.mark.filterwarnings("ignore")
STEPS = 6


class Module(lightning.LightningModule):
    def __init__(self, network):
        super().__init__()
        self.network = network
        self.balancer = balancer(probe=sy.InnerLoop())

    def training_step(self, samples):
        return self.balancer(self.network, samples, self.optimizers())

    def configure_optimizers(self):
        return torch.optim.Adam(self.network.parameters(), lr=0.05)


def plain(network):
    judge, optimizer = balancer(probe=sy.InnerLoop()), torch.optim.Adam(network.parameters(), lr=0.05)
    for seed in range(STEPS):
        take_step(judge(network, batch(seed=seed), optimizer), optimizer)
    return judge


def assert_same(network, judge, other, other_judge):
    assert judge.weights == other_judge.weights
    assert judge.tally == other_judge.tally == {"updated": STEPS}
    for mine, theirs in zip(network.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_automatic_optimisation(tmp_path):
    network = smooth()
    module = Module(copy.deepcopy(network))
    loader = torch.utils.data.DataLoader([batch(seed=seed) for seed in range(STEPS)], batch_size=None)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(module, loader)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    assert saved["balancer.weighting.votes_cast"] == STEPS
    assert_same(network, plain(network), module.network, module.balancer)


def test_fabric():
    network = smooth()
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    other = copy.deepcopy(network)
    model, optimizer = fabric.setup(other, torch.optim.Adam(other.parameters(), lr=0.05))
    judge = balancer(probe=sy.InnerLoop())
    for seed in range(STEPS):
        loss = judge(model, batch(seed=seed), optimizer)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
    assert_same(network, plain(network), other, judge)
