"""The loop of docs/accelerate.md: accumulation, clipping, checkpoints and two processes."""

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import nn
from torch.nn.functional import mse_loss

import ranks
import steelyard as sy
from toys import first_halves, reference_hypothetical_losses

DOMAINS = ("a", "b", "c")
BATCH, BATCHES, RATE, MOST = 12, 8, 0.05, 0.5


@pytest.fixture(autouse=True)
def _anew():
    """An accelerator's settings are shared by all accelerators of a process."""
    forget_settings()
    yield
    forget_settings()


def forget_settings():
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def samples(count=BATCH * BATCHES):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 6, generator=generator)
    domain = torch.arange(count) % 3
    return [(x[n], (1 + domain[n]) * x[n].sum(0, keepdim=True) + domain[n], domain[n]) for n in range(count)]


class Run:
    """A model, an optimizer and a loader, prepared; and a balancer that is in the checkpoints."""

    def __init__(self, accumulation, weighting=None, batch_size=BATCH):
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
        loader = torch.utils.data.DataLoader(samples(), batch_size=batch_size)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        self.balancer = sy.Balancer(DOMAINS, loss=mse_loss, weighting=weighting)
        self.accelerator.register_for_checkpointing(self.balancer)
        self.records = []

    def train(self, start=0, end=BATCHES):
        is_first = True
        for number, (x, y, domain) in enumerate(self.loader):
            if not start <= number < end:
                continue
            with self.accelerator.accumulate(self.model):
                batch = sy.split_by_domain((x, y), domain, DOMAINS)
                loss = self.balancer(self.model, batch, self.optimizer, measure=is_first)
                is_first = self.accelerator.sync_gradients  # with the step, the next batch is the first again
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), MOST)
                self.optimizer.step()
                self.optimizer.zero_grad()
            self.records.append((self.balancer.weights, self.parameters()))
        return self

    def parameters(self):
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def plain_loop(accumulation):
    model, (x, y, domain) = network(), torch.utils.data.default_collate(samples())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    for number in range(BATCHES):
        rows = torch.arange(len(x)) // BATCH == number
        losses = [mse_loss(model(x[rows & (domain == d)]), y[rows & (domain == d)]) for d in range(3)]
        (sum(losses) / 3 / accumulation).backward()
        if (number + 1) % accumulation == 0:
            nn.utils.clip_grad_norm_(model.parameters(), MOST)
            optimizer.step()
            optimizer.zero_grad()
    return list(model.parameters())


@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_equal_weights_give_the_parameters_of_a_plain_loop(accumulation):
    run = Run(accumulation, weighting=sy.Fixed()).train()
    assert type(run.optimizer).__name__ == "AcceleratedOptimizer"
    for learned, expected in zip(run.parameters(), plain_loop(accumulation), strict=True):
        torch.testing.assert_close(learned, expected)


@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_one_vote_per_step_and_constant_weights_in_it(accumulation):
    run = Run(accumulation).train()
    assert run.balancer.tally == {"updated": BATCHES // accumulation}
    weights = [weights for weights, _ in run.records]
    for start in range(0, BATCHES, accumulation):
        assert all(later == weights[start] for later in weights[start : start + accumulation])
    assert weights[0] != weights[-1]


def test_hypothetical_losses_equal_a_reference():
    """The probe follows the optimizer inside Accelerate's wrapper, momentum included."""
    run = Run(1, weighting=sy.DirichletVote()).train(end=3)
    x, y, domain = torch.utils.data.default_collate(samples(BATCH))
    batch = sy.split_by_domain((x, y), domain, DOMAINS)
    expected = reference_hypothetical_losses(run.model, run.optimizer.optimizer, first_halves(batch, 2))
    probe = sy.InnerLoop(step="optimizer")
    exact = sy.Balancer(DOMAINS, loss=mse_loss, weighting=sy.DirichletVote(), probe=probe)
    exact(run.model, batch, run.optimizer)
    assert exact.last.measured == pytest.approx(expected, rel=1e-5)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    whole = Run(2).train(end=4)
    whole.accelerator.save_state(tmp_path)
    whole.train(start=4)
    resumed = Run(2)
    assert resumed.balancer.probe is None  # chosen at the first call; the checkpoint brings it
    resumed.accelerator.load_state(tmp_path)
    assert type(resumed.balancer.probe) is type(whole.balancer.probe)
    resumed.train(start=4)
    assert resumed.balancer.weights == whole.balancer.weights
    assert resumed.balancer.tally == whole.balancer.tally == {"updated": BATCHES // 2}
    assert all(map(torch.equal, resumed.parameters(), whole.parameters()))


def work(rank, folder):
    run = Run(2, batch_size=BATCH // 2).train()
    run.accelerator.save_state(folder)
    resumed = Run(2, batch_size=BATCH // 2)
    resumed.accelerator.load_state(folder)
    return type(run.model).__name__, run.records, run.balancer.tally, resumed.balancer.weights


def test_two_processes_agree_after_every_step(tmp_path):
    first, second = ranks.run(tmp_path, work)
    wrapper, records, tally, resumed_weights = first
    assert wrapper == "DistributedDataParallel"
    assert tally == second[2] == {"updated": BATCHES // 2}
    for (weights, parameters), (other_weights, other_parameters) in zip(records, second[1], strict=True):
        assert weights == other_weights
        assert all(map(torch.equal, parameters, other_parameters))
    assert records[0][0] != records[-1][0]
    assert resumed_weights == second[3] == records[-1][0]
