"""Lightning on two ranks with different data: one vote, averaged gradients, equal parameters after every step."""

from datetime import timedelta

import pytest
import torch
from torch import distributed, multiprocessing
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import steelyard as sy
from toys import DOMAINS, balancer, batch, first_halves, reference_hypothetical_losses, smooth

lightning = pytest.importorskip("lightning")
STEPS = 6
RATE = 0.05
PATIENCE = timedelta(seconds=60)


def summed(outputs, targets):
    return mse_loss(outputs, targets, reduction="sum") / 100


class Recorded(lightning.LightningModule):
    def __init__(self, own_balancer, lacking):
        super().__init__()
        torch.manual_seed(0)
        self.network, self.balancer, self.lacking = smooth(), own_balancer, lacking
        self.record = []

    def training_step(self, samples, batch_idx):
        assert isinstance(self.trainer.strategy.model, DistributedDataParallel)
        if self.global_rank == 1 and batch_idx in self.lacking:
            samples = {"a": samples["a"]}
        reference = {}
        if not self.lacking:
            halves = first_halves(samples, 3)
            reference = reference_hypothetical_losses(self.network, self.optimizers().optimizer, halves)
        first = batch_idx % self.trainer.accumulate_grad_batches == 0
        loss = self.balancer(self.network, samples, self.optimizers(), measure=first)
        self.record.append((reference, self.balancer.last))
        self.log_dict(self.balancer.scalars())
        return loss

    def on_train_batch_end(self, *_):
        parameters = [parameter.detach().clone() for parameter in self.network.parameters()]
        self.record[-1] = (*self.record[-1], parameters)

    def configure_optimizers(self):
        return torch.optim.SGD(self.network.parameters(), lr=RATE)


RUNS = {
    "exact": lambda: (balancer(probe=sy.InnerLoop()), {}),
    "shared gradients": lambda: (balancer(probe=sy.FirstOrder(), weighting=sy.Evidence()), {}),
    "chosen probe": lambda: (sy.Balancer(DOMAINS, loss=mse_loss), {"lacking": (1,)}),
    "one rank cannot share": lambda: (sy.Balancer(DOMAINS, loss=summed), {"lacking": range(STEPS)}),
    "accumulated": lambda: (sy.Balancer(DOMAINS, loss=mse_loss), {"accumulate_grad_batches": 2}),
}


def batches(rank):
    return [batch(seed=100 * rank + step) for step in range(STEPS)]


def train_all(rank, folder):
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=PATIENCE
    )
    torch.save({name: train(rank, *make()) for name, make in RUNS.items()}, f"{folder}/{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()


def train(rank, own_balancer, settings):
    module = Recorded(own_balancer, settings.pop("lacking", ()))
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        plugins=[Environment(rank)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        **settings,
    )
    trainer.fit(module, torch.utils.data.DataLoader(batches(rank), batch_size=None))
    return module.record


class Environment(lightning.fabric.plugins.environments.LightningEnvironment):
    """Processes that are there already."""

    def __init__(self, rank):
        super().__init__()
        self.rank = rank

    creates_processes_externally = property(lambda self: True)

    def local_rank(self):
        return self.rank


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(train_all, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("name", RUNS)
def test_ranks_stay_equal(records, name):
    for (_, report, parameters), (_, other, expected) in zip(records[0][name], records[1][name], strict=True):
        assert (report.weights, report.vote, report.outcome) == (other.weights, other.vote, other.outcome)
        assert report.measured == other.measured
        assert report.losses["a"] != other.losses["a"]  # the ranks' data differ
        assert all(map(torch.equal, parameters, expected))
    assert report.outcome is (sy.Outcome.NOT_DUE if name == "accumulated" else sy.Outcome.UPDATED)


def test_hypothetical_losses_are_averaged(records):
    for (reference, report, _), (other, _, _) in zip(records[0]["exact"], records[1]["exact"], strict=True):
        mean = {name: (reference[name] + other[name]) / 2 for name in DOMAINS}
        assert report.measured == pytest.approx(mean, rel=1e-5)


@pytest.mark.parametrize("name", RUNS)
def test_the_step_is_that_of_the_mean_over_ranks(records, name):
    """Against a plain loop on both ranks' data, with the weights of the run."""
    torch.manual_seed(0)
    network = smooth()
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    accumulated = 2 if name == "accumulated" else 1
    loss = summed if name == "one rank cannot share" else mse_loss
    for step, (_, report, parameters) in enumerate(records[0][name]):
        for rank in range(2):
            present = records[rank][name][step][1].losses
            samples = batches(rank)[step]
            losses = [
                report.weights[domain] * loss(network(samples[domain][0]), samples[domain][1]) for domain in present
            ]
            (sum(losses) / 2 / accumulated).backward()
        if (step + 1) % accumulated == 0:
            optimizer.step()
            optimizer.zero_grad()
        for parameter, expected in zip(parameters, network.parameters(), strict=True):
            torch.testing.assert_close(parameter, expected.detach())
