"""Lightning: the weights and steps of a plain loop, also with accumulation, clipping, resumption and Fabric."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import steelyard as sy
from toys import DOMAINS, balancer, batch, first_halves, reference_hypothetical_losses, smooth, take_step

lightning = pytest.importorskip("lightning")
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers:UserWarning",
    "ignore:.*GPU available but not used:UserWarning",
    "ignore:.*LeafSpec.*is deprecated:FutureWarning",
    "ignore:The number of training batches:UserWarning",
    "ignore:Checkpoint directory .* exists and is not empty:UserWarning",
)
STEPS = 6
QUIET = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def trainer(**settings):
    return lightning.Trainer(**{**QUIET, "max_epochs": 1, **settings})


def loader(batches):
    return torch.utils.data.DataLoader(batches, batch_size=None)


def seeded_batches(count=STEPS, sizes=(6, 6)):
    return [batch(sizes, seed=seed) for seed in range(count)]


class Module(lightning.LightningModule):
    """What docs/lightning.md shows; it records the model after every batch."""

    def __init__(self, network, own_balancer, optimizer=torch.optim.Adam):
        super().__init__()
        self.network, self.balancer, self.optimizer_class = network, own_balancer, optimizer
        self.reports = []

    def training_step(self, samples, batch_idx):
        first = batch_idx % self.trainer.accumulate_grad_batches == 0
        loss = self.balancer(self.network, samples, self.optimizers(), measure=first)
        self.reports.append(self.balancer.last)
        self.log_dict(self.balancer.scalars("train/"))
        return loss

    def configure_optimizers(self):
        return self.optimizer_class(self.network.parameters(), lr=0.05)


def votes(**settings):
    return balancer(probe=sy.InnerLoop(), **settings)


def learned(**settings):
    """A balancer as users make it: the probe is chosen at the first call."""
    return sy.Balancer(DOMAINS, loss=mse_loss, **settings)


def plain(network, judge, batches=None):
    """The same in a plain loop."""
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    for samples in batches or seeded_batches():
        take_step(judge(network, samples, optimizer), optimizer)
    return judge


def assert_same(network, judge, other, other_judge):
    """The same parameters, and the same state of the balancer: weights, votes, transfer, counters."""
    state, expected = judge.state_dict(), other_judge.state_dict()
    assert state.keys() == expected.keys()
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(value, expected[name], rtol=0, atol=0, equal_nan=True)
    assert_same_parameters(network, other)


def assert_same_parameters(network, other):
    for parameter, expected in zip(network.parameters(), other.parameters(), strict=True):
        assert torch.equal(parameter, expected)


@pytest.mark.parametrize("make_balancer", [votes, learned])
def test_automatic_optimisation(make_balancer):
    network = smooth()
    module = Module(copy.deepcopy(network), make_balancer())
    trainer().fit(module, loader(seeded_batches()))
    expected = plain(network, make_balancer())
    assert expected.tally == {"updated": STEPS}
    assert_same(module.network, module.balancer, network, expected)


def test_hypothetical_losses_are_those_of_steps_that_an_optimizer_takes():
    class Checked(Module):
        def training_step(self, samples, batch_idx):
            stepper = self.optimizers().optimizer  # inside Lightning's wrapper
            expected = reference_hypothetical_losses(self.network, stepper, first_halves(samples, 3))
            loss = super().training_step(samples, batch_idx)
            assert self.balancer.last.measured == pytest.approx(expected, rel=1e-5)
            return loss

    module = Checked(smooth(), votes())
    trainer().fit(module, loader(seeded_batches()))
    assert len(module.reports) == STEPS


def test_loaders_by_domain():
    """A mapping of loaders gives a mapping of batches; a shorter loader starts anew."""
    batches = seeded_batches()
    module = Module(smooth(), learned())
    network = copy.deepcopy(module.network)
    few = {"a": loader([samples["a"] for samples in batches]), "b": loader([samples["b"] for samples in batches[:4]])}
    trainer().fit(module, few)
    repeated = [{"a": samples["a"], "b": batches[step % 4]["b"]} for step, samples in enumerate(batches)]
    assert_same(module.network, module.balancer, network, plain(network, learned(), repeated))


def test_loaders_that_end_before_others():
    """With max_size, a loader that has ended gives None: that domain is absent."""
    combined = lightning.pytorch.utilities.CombinedLoader(
        {"a": loader([samples["a"] for samples in seeded_batches()]), "b": loader([batch(seed=0)["b"]])}, "max_size"
    )

    class Absent(Module):
        def training_step(self, samples, batch_idx):
            present = {name: pair for name, pair in samples.items() if pair is not None}
            return super().training_step(present, batch_idx)

    module = Absent(smooth(), learned())
    trainer().fit(module, combined)
    assert [len(report.losses) for report in module.reports] == [2, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("clip", [None, 0.5])
def test_accumulation_and_clipping(clip):
    """Two batches a step: one vote, on the first; their mean is stepped on, clipped as in a plain loop."""
    module = Module(smooth(), learned(), torch.optim.SGD)
    network = copy.deepcopy(module.network)
    trainer(accumulate_grad_batches=2, gradient_clip_val=clip).fit(module, loader(seeded_batches()))
    first, later = module.reports[::2], module.reports[1::2]
    assert {report.outcome for report in first} == {sy.Outcome.UPDATED}
    assert {report.outcome for report in later} == {sy.Outcome.NOT_DUE}
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    batches = seeded_batches()
    for step, (report, after) in enumerate(zip(first, later, strict=True)):
        assert report.weights == after.weights
        losses = []
        for samples in batches[2 * step : 2 * step + 2]:
            losses += [report.weights[name] * mse_loss(network(x), y) / 2 for name, (x, y) in samples.items()]
        optimizer.zero_grad()
        sum(losses).backward()
        if clip:
            assert nn.utils.clip_grad_norm_(network.parameters(), clip) > clip
        optimizer.step()
    for parameter, expected in zip(module.network.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected)


def test_an_incomplete_accumulation_at_the_end_of_an_epoch():
    """Lightning steps on what it has; the next epoch starts with a vote."""
    module = Module(smooth(), learned())
    trainer(accumulate_grad_batches=2, max_epochs=2).fit(module, loader(seeded_batches(5)))
    outcomes = [report.outcome is sy.Outcome.UPDATED for report in module.reports]
    assert outcomes == 2 * [True, False, True, False, True]


@pytest.mark.parametrize("settings", [{}, {"probe": sy.FirstOrder(every=2, gather=True)}], ids=["auto", "gathering"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, settings):
    network = smooth()
    make = lambda: Module(copy.deepcopy(network), learned(**copy.deepcopy(settings)))  # noqa: E731
    whole, stopped, resumed = make(), make(), make()
    batches = seeded_batches(5, sizes=(2, 3))
    trainer(max_epochs=4).fit(whole, loader(batches))
    first = trainer(max_epochs=2)
    first.fit(stopped, loader(batches))
    first.save_checkpoint(tmp_path / "last.ckpt")
    trainer(max_epochs=4).fit(resumed, loader(batches), ckpt_path=tmp_path / "last.ckpt")
    assert len(resumed.reports) == 10
    assert whole.balancer.tally["updated"] > stopped.balancer.tally["updated"] > 0
    assert_same(resumed.network, resumed.balancer, whole.network, whole.balancer)


def test_a_checkpoint_holds_the_balancer_before_and_after_the_first_call(tmp_path):
    module = Module(smooth(), learned())
    fitted = trainer()
    fitted.fit(module, loader(seeded_batches()))
    fitted.save_checkpoint(tmp_path / "last.ckpt")
    # weights_only: nothing but tensors and plain values is in the checkpoint
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    fresh = Module(smooth(), learned())
    assert fresh.balancer.probe is None
    fresh.load_state_dict(saved)
    assert str(fresh.balancer) == str(module.balancer)
    assert_same(fresh.network, fresh.balancer, module.network, module.balancer)
    untrained = Module(smooth(), learned())
    Module(smooth(), learned()).load_state_dict(untrained.state_dict())


def test_what_is_logged():
    module = Module(smooth(), learned())
    fitted = trainer()
    fitted.fit(module, loader(seeded_batches()))
    logged = {name: float(value) for name, value in fitted.callback_metrics.items()}
    assert logged == pytest.approx(module.balancer.scalars("train/"))
    assert logged["train/weight/a"] == pytest.approx(module.balancer.weights["a"])


def test_bfloat16():
    """Votes run in Lightning's precision, as the outer step does."""
    module = Module(smooth(), learned(), torch.optim.SGD)
    network = copy.deepcopy(module.network)
    trainer(precision="bf16-mixed").fit(module, loader(seeded_batches()))
    judge, optimizer = learned(), torch.optim.SGD(network.parameters(), lr=0.05)
    for samples in seeded_batches():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = judge(network, samples, optimizer)
        take_step(loss, optimizer)
    assert_same(module.network, module.balancer, network, judge)


def test_fabric():
    network = smooth()
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    other = copy.deepcopy(network)
    model, optimizer = fabric.setup(other, torch.optim.Adam(other.parameters(), lr=0.05))
    judge = votes()
    for samples in seeded_batches():
        loss = judge(model, samples, optimizer)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
    assert_same(other, judge, network, plain(network, votes()))
