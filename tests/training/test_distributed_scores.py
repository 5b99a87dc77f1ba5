"""Two ranks with different data: one table of scores, and the same state after every step."""

import copy
import math

import pytest
import torch
from test_distributed_votes import run, samples
from torch.nn.functional import l1_loss, mse_loss
from torch.nn.parallel import DistributedDataParallel

import steelyard as sy
from steelyard.measurement import Scores
from steelyard.training.distributed import average_scores
from toys import batch, smooth, take_step

NAMES = ("a", "b", "c")
NAN = math.nan


def scores_of(after, *, before=(NAN,) * 3, losses=(1.0,) * 3, norms=(1.0,) * 3):
    parts = {"after": after, "before": before, "losses": losses, "gradient_norms": norms}
    return Scores(**{name: torch.tensor(values, dtype=torch.float64) for name, values in parts.items()})


FIRST = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0], [1.0, 1.0, 1.0]]
SECOND = [[3.0, 4.0, 5.0], [0.0, 1.0, 2.0], [7.0, 8.0, 9.0], [3.0, 3.0, 3.0]]
# A rank without the second domain: a level of 10 more in the first column, and of 20 more in the third.
LACKING = [[11.0, NAN, 23.0], [NAN, NAN, NAN], [17.0, NAN, 29.0], [11.0, NAN, 21.0]]
OTHER = [[NAN, NAN, NAN], [NAN, 5.0, 6.0], [NAN, 8.0, 9.0], [NAN, 1.0, 1.0]]  # a rank without the first


def cases():
    first = scores_of(FIRST, before=(0.0, 1.0, 2.0), losses=(1.0, 2.0, 3.0), norms=(3.0, 0.0, 1.0))
    second = scores_of(SECOND, before=(2.0, 1.0, 0.0), losses=(3.0, 2.0, 1.0), norms=(4.0, 2.0, 1.0))
    lacking = scores_of(LACKING, before=(4.0, NAN, 4.0), losses=(1.0, NAN, 1.0), norms=(5.0, NAN, 5.0))
    return {
        "both": (first, second),
        "one measured nothing": (first, None),
        "nobody measured": (None, None),
        "one lacks a domain": (first, lacking),
        "each lacks another": (lacking, scores_of(OTHER)),
    }


def agree(rank):
    cpu = torch.device("cpu")
    return {name: average_scores(pair[rank], 3, group=None, device=cpu) for name, pair in cases().items()}


def held_out_of(rank, step):
    if step % 3 != 1:
        return None
    return batch((3, 3, 3), names=NAMES, seed=77 + 1000 * rank + step)


def state_of(balancer):
    return copy.deepcopy(dict(balancer.state_dict())), balancer.weights


def train_in_each_way(rank):
    """Weights learned from evidence, by each probe, where the second rank lacks domains now and then."""
    settings = {
        "auto": {},
        "exact, judged": {"probe": sy.InnerLoop(), "judge": l1_loss},
        "not shared": {"probe": sy.FirstOrder(reuse=False, every=2), "importance": {"a": 1, "b": 2, "c": 0}},
        "votes": {"probe": sy.InnerLoop(), "weighting": sy.DirichletVote(window=5), "judge": "bounded"},
    }
    results = {}
    for name, given in settings.items():
        torch.manual_seed(0)
        model = DistributedDataParallel(smooth())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        weighting = sy.Evidence(rate=0.5, caution=0.1)
        balancer = sy.Balancer(NAMES, loss=mse_loss, **{"weighting": weighting, **given})
        states = []
        for step in range(8):
            here = samples(rank, step, lacking=True)
            take_step(balancer(model, here, optimizer, held_out=held_out_of(rank, step)), optimizer)
            states.append(state_of(balancer))
        parameters = [parameter.detach().clone() for parameter in model.parameters()]
        results[name] = (states, parameters)
    return results


def work(rank):
    return agree(rank), train_in_each_way(rank)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What both ranks return; they are started once, because that takes seconds."""
    return run(tmp_path_factory.mktemp("ranks"), work)


@pytest.fixture(scope="module")
def agreed(results):
    return [scores for scores, _ in results]


def assert_equal(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


def test_ranks_agree_to_the_bit(agreed):
    for name, scores in agreed[0].items():
        for attribute, tensor in vars(scores).items():
            other = getattr(agreed[1][name], attribute)
            assert torch.equal(tensor.nan_to_num(-1e9), other.nan_to_num(-1e9)), (name, attribute)


def test_where_both_hold_all_domains_it_is_the_mean(agreed):
    scores = agreed[0]["both"]
    assert_equal(scores.after, (torch.tensor(FIRST) + torch.tensor(SECOND)).double() / 2)
    assert scores.before.tolist() == [1.0, 1.0, 1.0]
    assert scores.losses.tolist() == [2.0, 2.0, 2.0]
    assert scores.gradient_norms.tolist() == pytest.approx([math.sqrt(12.5), math.sqrt(2), 1.0])


def test_a_rank_that_measured_nothing_changes_nothing(agreed):
    first, _ = cases()["one measured nothing"]
    for attribute, tensor in vars(first).items():
        assert_equal(getattr(agreed[0]["one measured nothing"], attribute), tensor)
    for tensor in vars(agreed[0]["nobody measured"]).values():
        assert tensor.isnan().all()


def test_a_missing_step_is_made_up_for_by_what_ranks_have_in_common(agreed):
    after = agreed[0]["one lacks a domain"].after
    first = torch.tensor(FIRST).double()
    assert_equal(after[:, 1], first[:, 1])
    transfer = after[:-1] - after[-1]
    assert_equal(transfer, first[:-1] - first[-1])  # levels of ranks cancel
    assert_equal(after[:, 0], first[:, 0] + 5)  # the mean level of both ranks


def test_ranks_with_different_domains_are_connected_by_the_zero_step(agreed):
    after = agreed[0]["each lacks another"].after
    transfer = after[:-1] - after[-1]
    assert transfer[0, 1].isnan()
    assert_equal(transfer[:, 2], torch.tensor([2.0, 5.0, 8.0]).double())


def test_evidence_ends_in_the_same_state_on_both_ranks(results):
    first, second = (trained for _, trained in results)
    for name, (states, parameters) in first.items():
        other_states, other_parameters = second[name]
        for here, there in zip(states, other_states, strict=True):
            for key, tensor in here[0].items():
                # Which domains a rank's own batches held is its own.
                assert key == "counters.presence" or torch.equal(tensor, there[0][key]), (name, key)
            assert here[1] == there[1], name
        assert states[-1][1] != dict.fromkeys(NAMES, 1 / 3), name
        for parameter, other in zip(parameters, other_parameters, strict=True):
            assert torch.equal(parameter, other), name
