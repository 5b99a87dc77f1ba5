"""Two ranks with different data: one vote, equal weights and equal parameters after every step."""

import gc
import warnings
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial

import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import steelyard as sy
from steelyard.training.distributed import average_over_ranks
from toys import balancer, batch, take_step

STEPS = 10
PATIENCE = timedelta(seconds=60)
NAMES = ("a", "b", "c")


def on_each_rank(rank, folder, work, arguments):
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=PATIENCE
    )
    try:
        torch.save(work(rank, *arguments), f"{folder}/{rank}.pt")
        gc.collect()  # wrappers that a caught exception still refers to must end before their group
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


def run(folder, work, *arguments):
    multiprocessing.spawn(on_each_rank, args=(str(folder), work, arguments), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


def samples(rank, step, *, lacking):
    made = batch(sizes=(4, 4, 4), names=NAMES, seed=1000 * rank + step)
    if lacking and rank == 1 and step % 2:
        del made["b" if step % 4 == 1 else "c"]
    if lacking and rank == 1 and step == 4:
        made = {"a": made["a"]}
    return made


def train(rank, lacking, join, alone):
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    groups = [distributed.new_group([other]) for other in range(2)]
    judge = balancer(
        domains=NAMES,
        weighting=sy.DirichletVote(window=5),
        probe=sy.InnerLoop(),
        join=join,
        process_group=groups[rank] if alone else None,
    )
    record = []
    for step in range(STEPS):
        mine = samples(rank, step, lacking=lacking)
        own = sy.InnerLoop().measure(model, mine, losses=judge.domain_losses, optimizer=optimizer)
        take_step(judge(model, mine, optimizer), optimizer)
        parameters = [parameter.detach().clone() for parameter in model.parameters()]
        record.append((own, judge.last.measured, judge.last.vote, judge.weights, parameters))
    return record


@pytest.mark.parametrize(("lacking", "join"), [(False, True), (True, True), (True, False)])
def test_ranks_cast_one_vote(tmp_path, lacking, join):
    first, second = run(tmp_path, train, lacking, join, False)
    own_votes = []
    for (own, measured, vote, weights, parameters), (other, *rest) in zip(first, second, strict=True):
        assert [measured, vote, weights] == rest[:3]
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(parameters, rest[3], strict=True))
        own_votes.append((own.values.argmax().item(), other.values.argmax().item()))
        if own.present.all() and other.present.all():
            mean = ((own.values + other.values) / 2).tolist()
            assert list(measured.values()) == pytest.approx(mean, rel=1e-12)
            assert vote == max(measured, key=measured.get)
    # The ranks' own votes differ, so what is equal above is not equal by chance.
    assert any(mine != theirs for mine, theirs in own_votes)


def test_a_group_of_one_rank_votes_alone(tmp_path):
    first, second = run(tmp_path, train, False, True, True)
    assert any(mine[3] != theirs[3] for mine, theirs in zip(first, second, strict=True))


def train_sharing(rank, probe, lacking):
    """Two models from the same start: gradients of the vote shared with the outer step, and a plain loop."""
    torch.manual_seed(0)
    networks = [nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 1)) for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    models = [DistributedDataParallel(network) for network in networks]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) for model in models]
    judge = balancer(domains=NAMES, weighting=sy.DirichletVote(window=3, prior=1.5), probe=probe)
    record = []
    for step in range(STEPS):
        mine = samples(rank, step, lacking=lacking)
        take_step(judge(models[0], mine, optimizers[0]), optimizers[0])
        plain = balancer(domains=NAMES, weighting=sy.Fixed(list(judge.weights.values())))
        take_step(plain(models[1], mine), optimizers[1])
        record.append([[p.detach().clone() for p in model.parameters()] for model in models])
    return record, judge.weights, judge.probe.reuse.reason


MODES = {
    "plain": {},
    "unused parameters": {"find_unused_parameters": True},
    "static graph": {"static_graph": True},
    "both": {"find_unused_parameters": True, "static_graph": True},
    "bucket view": {"find_unused_parameters": True, "gradient_as_bucket_view": True},
    "bucket view alone": {"gradient_as_bucket_view": True},
    "buffers not broadcast": {"broadcast_buffers": False},
    "no sync": {},
    "no sync, bucket view": {"gradient_as_bucket_view": True},
}


class Heads(nn.Module):
    """A network with a head that is never used."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh())
        self.head, self.spare = nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.body(x))


def accumulate(losses, model, optimizer):
    """One step from the sum of some losses; only the last backward pass averages gradients over the ranks."""
    optimizer.zero_grad()
    for number, loss in enumerate(losses, 1):
        with nullcontext() if number == len(losses) else model.no_sync():
            loss().backward()
    optimizer.step()


def plain_loss(model, mine, judge):
    """One forward pass over all samples, as the balancer's."""
    outputs = model(torch.cat([x for x, _ in mine.values()])).split([len(x) for x, _ in mine.values()])
    pairs = zip(judge.weights.values(), outputs, mine.values(), strict=True)
    return sum(weight * mse_loss(output, y) for weight, output, (_, y) in pairs)


def train_in_mode(rank, mode):
    """For each probe the largest difference from a plain loop of the same wrapper, and the weights."""
    results = {}
    makes = {"fixed": lambda: None, "inner loop": sy.InnerLoop, "first order": sy.FirstOrder}
    makes["rare votes"] = lambda: sy.FirstOrder(every=3)
    for name, make in makes.items():
        torch.manual_seed(0)
        networks = [Heads() for _ in range(2)]
        networks[1].load_state_dict(networks[0].state_dict())
        if "find_unused_parameters" not in MODES[mode]:
            for network in networks:
                del network.spare
        models = [DistributedDataParallel(network, **MODES[mode]) for network in networks]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) for model in models]
        judge = balancer(domains=NAMES, probe=make(), weighting=sy.Fixed() if name == "fixed" else sy.DirichletVote())
        for step in range(STEPS):
            parts = [samples(rank, step + 100 * part, lacking=False) for part in range(2 if "no sync" in mode else 1)]
            learned, plain = [], []
            for number, mine in enumerate(parts):
                learned.append(partial(judge, models[0], mine, optimizers[0], measure=number == 0))
                plain.append(partial(plain_loss, models[1], mine, judge))
            accumulate(learned, models[0], optimizers[0])
            accumulate(plain, models[1], optimizers[1])
        parameters = zip(networks[0].parameters(), networks[1].parameters(), strict=True)
        apart = max(float((one - other).abs().max()) for one, other in parameters)
        results[name] = (apart, judge.weights, judge.tally.get("updated", 0))
    return results


def train_in_each_mode(rank):
    return {mode: train_in_mode(rank, mode) for mode in MODES}


def test_every_mode_of_data_parallelism_trains_like_a_plain_loop(tmp_path):
    votes = {"fixed": 0, "inner loop": STEPS, "first order": STEPS, "rare votes": STEPS // 3}
    first, second = run(tmp_path, train_in_each_mode)
    for mode in MODES:
        for probe, (apart, weights, updates) in first[mode].items():
            elsewhere, other_weights, _ = second[mode][probe]
            assert weights == other_weights, (mode, probe)
            assert updates == votes[probe], (mode, probe)
            assert max(apart, elsewhere) < (1e-5 if votes[probe] else 1e-9), (mode, probe)


def train_with_other_domains(rank):
    """Rank 0 has samples of one domain only, rank 1 of another."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    judge = balancer(domains=NAMES, weighting=sy.DirichletVote(), probe=sy.InnerLoop())
    messages = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(30):
            own = samples(rank, step, lacking=False)
            take_step(judge(model, {NAMES[rank]: own[NAMES[rank]]}, optimizer), optimizer)
        messages += [str(warning.message) for warning in caught]
    return judge.tally, messages


def train_with_an_error(rank):
    """The outer pass of rank 0 fails once, after the vote; the caller goes on with the next batch."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    fails = {"now": False}

    def loss(outputs, targets):
        if fails["now"] and len(targets) == 4:
            raise RuntimeError("out of luck")
        return mse_loss(outputs, targets)

    judge = balancer(domains=NAMES, weighting=sy.DirichletVote(), probe=sy.InnerLoop(every=2), loss=loss)
    for step in range(STEPS):
        fails["now"] = rank == 0 and step == 3
        own = samples(rank, step, lacking=False)
        with suppress(RuntimeError):
            judge(model, own, optimizer)
    return judge.weights, judge.tally


def train_with_trouble(rank):
    return train_with_other_domains(rank), train_with_an_error(rank)


def test_ranks_that_hold_different_domains_or_fail_stay_together(tmp_path):
    results = run(tmp_path, train_with_trouble)
    assert results[0][1] == results[1][1]
    for (tally, messages), _ in results:
        assert tally == {"no comparison within a rank connects the domains": 30}
        assert len(messages) == 1
        assert "the ranks hold different ones. Shuffle" in messages[0]


PROBES = [sy.FirstOrder(), sy.InnerLoop(reuse=True)]


def train_sharing_each(rank):
    return [train_sharing(rank, probe, True) for probe in PROBES]


def test_ranks_share_gradients_of_the_vote_with_the_outer_step(tmp_path):
    for (first, weights, reason), (second, others, _) in zip(*run(tmp_path, train_sharing_each), strict=True):
        assert reason is None
        assert weights == others
        for (shared, plain), (elsewhere, _) in zip(first, second, strict=True):
            for mine, reference, theirs in zip(shared, plain, elsewhere, strict=True):
                assert torch.equal(mine, theirs)
                torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-5)


TABLE = {
    # values and presence on each rank -> values and presence agreed on
    "the same domains": ([[1.0, 2.0, 3.0], [3.0, 6.0, 5.0]], [[1, 1, 1], [1, 1, 1]], [2.0, 4.0, 4.0], [1, 1, 1]),
    "one rank compares none": (
        [[1.0, 2.0, 3.0], [9.0, 0.0, 0.0]],
        [[1, 1, 1], [1, 0, 0]],
        [1.0, 2.0, 3.0],
        [1, 1, 1],
    ),
    # value = level + part: levels 0 and 100, parts a 0, b 10, c 1; the mean level is 50.
    "different domains": (
        [[0.0, 0.0, 1.0], [0.0, 110.0, 101.0]],
        [[1, 0, 1], [0, 1, 1]],
        [50.0, 60.0, 51.0],
        [1, 1, 1],
    ),
    "one compares": ([[1.0, 2.0, 0.0], [0.0, 0.0, 3.0]], [[1, 1, 0], [0, 0, 1]], [1.0, 2.0, 0.0], [1, 1, 0]),
    "nobody compares": ([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]], [[1, 0, 0], [0, 1, 0]], [0.0, 0.0, 0.0], [0, 0, 0]),
}


def agree(rank, table):
    found = {}
    for case, (values, present, _, _) in table.items():
        own = sy.Measurement(torch.tensor(values[rank]).double(), torch.tensor(present[rank]).bool())
        found[case] = agreed(own)
    own = sy.Measurement.of(torch.tensor([1.0, float("nan") if rank else 1.0]))
    gramian = sy.Measurement(torch.eye(3).double() * (rank + 1), torch.tensor([True, True, rank == 0]))
    found["Gramian"] = agreed(gramian)
    apart = sy.Measurement(torch.ones(4).double(), torch.tensor([rank == 0] * 2 + [rank == 1] * 2))
    found["apart"] = agreed(apart)
    found["not finite"] = agreed(own)
    return found


def agreed(own):
    cpu = torch.device("cpu")
    return average_over_ranks(own, in_batch=own.present, group=None, device=cpu).measurement


def test_what_ranks_agree_on(tmp_path):
    for found in run(tmp_path, agree, TABLE):
        for case, (_, _, values, present) in TABLE.items():
            assert found[case].values.tolist() == pytest.approx(values), case
            assert found[case].present.tolist() == [bool(p) for p in present], case
        assert not found["not finite"].is_finite
        assert found["Gramian"].taking_part == [0, 1]
        assert torch.equal(found["Gramian"].values[:2, :2], 1.5 * torch.eye(2).double())
        assert found["apart"].taking_part == []
