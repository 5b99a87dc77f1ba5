"""The audit: flags of transfer made by hand, the table, and the same as plain values."""

import json
import math

import pytest
import torch
from torch.nn.functional import mse_loss

import steelyard as sy
from steelyard.training.audit import audit_domains
from steelyard.training.judging import Progress
from steelyard.training.noise import Suspects
from steelyard.training.transfer import Transfer
from toys import batch, smooth, take_step

NAMES = ("a", "b", "c", "d")
HELP = -0.1


def transfer_of(means, *, votes=200, noise=0.1, norms=(1.0,) * 4, importance=(0.25,) * 4, seed=0):
    """Transfer with these means, and independent noise in each vote."""
    generator = torch.Generator().manual_seed(seed)
    transfer = Transfer(list(importance))
    means = torch.tensor(means, dtype=torch.float64)
    for _ in range(votes):
        judged = means + noise * torch.randn(means.shape, generator=generator, dtype=torch.float64)
        judged = torch.cat([judged, torch.zeros(1, len(means), dtype=torch.float64)])
        transfer.observe(judged, torch.tensor(norms, dtype=torch.float64))
    return transfer


def suspects_after(transfer, *ends, votes):
    """What losses say that are 1 at the first five votes, and have these values from then on; a vote on each step."""
    suspects = Suspects(len(ends))
    first, later = torch.ones(len(ends), dtype=torch.float64), torch.tensor(ends, dtype=torch.float64)
    for step in range(1, votes + 1):
        suspects.observe(first if step <= 5 else later, step, transfer)
    return suspects


ALL_LEARN = (0.3, 0.3, 0.3, 0.3)
ALL_BUT_C = (0.3, 0.3, 0.97, 0.3)


def uniform(own=HELP, others=HELP / 2):
    return [[own if row == column else others for column in range(4)] for row in range(4)]


def audit_of(transfer, *, losses=ALL_LEARN, shares=None, presences=(1.0,) * 4):
    equal = dict.fromkeys(NAMES, 0.25)
    measured = (transfer, suspects_after(transfer, *losses, votes=max(1, int(transfer.count.max()))))
    return audit_domains(NAMES, *measured, weights=equal, shares=shares or equal, presences=presences)


def flags_of(audit):
    return [(flag.domain, flag.kind) for flag in audit.flags]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("own", [HELP, 0.0], ids=["all help themselves", "nobody learns"])
def test_domains_that_are_alike_have_no_flag(seed, own):
    audit = audit_of(transfer_of(uniform(own, own / 2), seed=seed))
    assert flags_of(audit) == []
    assert "No domain is flagged." in str(audit)


def test_a_domain_that_learns_nothing_and_does_not_help_itself_is_flagged_as_noisy_labels():
    means = uniform()
    means[2][2] = 0.0
    audit = audit_of(transfer_of(means), losses=ALL_BUT_C)
    assert flags_of(audit) == [("c", "noisy labels")]
    assert "97% of its first loss remained" in audit.flags[0].evidence
    assert audit.domains[2].remaining == pytest.approx(0.97, abs=0.02)
    assert flags_of(audit_of(transfer_of(means), losses=ALL_LEARN)) == []  # its loss has fallen
    assert flags_of(audit_of(transfer_of(means), losses=(0.9,) * 4)) == []  # nobody has learned much yet


def test_a_domain_that_is_hard_and_helps_itself_is_not_said_to_have_noisy_labels():
    means = uniform()
    means[2][2] = -0.03  # four standard errors
    assert flags_of(audit_of(transfer_of(means), losses=ALL_BUT_C)) == []


def test_a_flag_says_whether_the_loss_has_fallen_since():
    transfer = transfer_of(uniform(own=0.0))
    equal = dict.fromkeys(NAMES, 0.25)
    suspects = suspects_after(transfer, *ALL_BUT_C, votes=100)
    for later, text in ((0.97, "looks the same."), (0.1, "it was only hard, or its labels were memorised.")):
        for step in range(101, 201):
            suspects.observe(torch.tensor([0.3, 0.3, later, 0.3], dtype=torch.float64), step, transfer)
        audit = audit_domains(NAMES, transfer, suspects, weights=equal, shares=equal, presences=[1.0] * 4)
        (flag,) = audit.flags
        assert flag.evidence.endswith(text)


def test_what_is_measured_after_the_early_phase_does_not_hide_harm():
    transfer = transfer_of(uniform(), votes=100)
    transfer.keep_early()
    before = transfer.early.clone()
    for _ in range(100):
        transfer.observe(torch.eye(5, 4, dtype=torch.float64), torch.ones(4, dtype=torch.float64))
    assert torch.equal(transfer.early, before)


def test_losses_that_cannot_be_compared_with_their_first_value_say_nothing():
    progress = Progress(3)
    for step, losses in enumerate(([-1.0, math.nan, 2.0], [-2.0, math.nan, 1.0]), start=1):
        progress.observe(torch.tensor(losses, dtype=torch.float64), step)
    assert progress.remaining.isnan().tolist() == [True, True, False]
    assert progress.time == 0  # two votes are too few


def test_steps_that_make_the_others_worse_are_flagged_as_harm():
    means = uniform()
    means[1] = [0.3, HELP, -0.05, -0.05]  # harms one more than it helps all others
    audit = audit_of(transfer_of(means))
    assert flags_of(audit) == [("b", "harms others")]
    assert audit.domains[1].given == pytest.approx(0.25 * 0.2, abs=0.01)
    means[1][1] = -0.4  # helps itself by more
    assert flags_of(audit_of(transfer_of(means))) == []
    means[1][1] = HELP
    unimportant = audit_of(transfer_of(means, importance=(0.0, 1 / 3, 1 / 3, 1 / 3)))
    assert flags_of(unimportant) == []


def test_where_the_steps_of_most_domains_harm_the_others_no_domain_is_to_blame():
    means = uniform()
    means[1] = [0.1, HELP, 0.1, 0.1]
    means[2] = [0.1, 0.1, HELP, 0.1]
    assert flags_of(audit_of(transfer_of(means))) == [("b", "harms others"), ("c", "harms others")]
    means[3] = [0.1, 0.1, 0.1, HELP]
    assert flags_of(audit_of(transfer_of(means))) == []


def test_what_few_votes_say_about_transfer_is_not_flagged():
    means = uniform()
    means[2][2] = 0.5
    means[1] = [0.5, HELP, 0.5, 0.5]
    assert flags_of(audit_of(transfer_of(means, votes=29), losses=ALL_BUT_C)) == []
    assert flags_of(audit_of(transfer_of(means, votes=30), losses=ALL_BUT_C)) == [("b", "harms others")]
    assert flags_of(audit_of(transfer_of(means, votes=89), losses=ALL_BUT_C)) == [("b", "harms others")]
    flags = flags_of(audit_of(transfer_of(means, votes=90), losses=ALL_BUT_C))  # three times as long as the others
    assert flags == [("c", "noisy labels"), ("b", "harms others")]


@pytest.mark.parametrize(("norm", "flagged"), [(30.0, True), (9.0, False), (0.12, False), (0.05, True)])
def test_gradients_of_another_size_are_flagged(norm, flagged):
    audit = audit_of(transfer_of(uniform(), norms=(1.0, 1.0, 1.0, norm)))
    assert flags_of(audit) == [("d", "out of scale")] * flagged
    assert audit.domains[3].loss_scale == pytest.approx(norm)
    if flagged:
        assert f"{norm:.3g} times as large as the median domain's" in audit.flags[0].evidence


def test_rare_domains_and_small_shares_are_flagged_as_starved():
    audit = audit_of(transfer_of(uniform()), presences=(1.0, 0.19, 1.0, 0.21))
    assert flags_of(audit) == [("b", "starved")]
    assert "It is present in 19% of the batches." in str(audit)
    shares = {"a": 0.04, "b": 0.06, "c": 0.45, "d": 0.45}
    audit = audit_of(transfer_of(uniform()), shares=shares)
    assert flags_of(audit) == [("a", "starved")]
    assert "Its share of the update is 4.0%, and an equal one 25.0%." in str(audit)


def test_a_domain_that_is_hardly_ever_judged_is_not_said_to_have_noisy_labels():
    """It may be absent from the held-out samples, or be held out rarely."""
    means = uniform()
    means[2][2] = 0.0
    for judged_in in (0, 1, 29):
        transfer = transfer_of(means, votes=200)
        transfer.moments[0, 2, 2] = judged_in
        assert flags_of(audit_of(transfer, losses=ALL_BUT_C)) == []


def test_entries_by_hand():
    means = [[-4.0, 1.0, 1.0, 0.0], [1.0, -4.0, 2.0, 0.0], [3.0, 0.0, -4.0, 0.0], [5.0, 0.0, 0.0, -4.0]]
    audit = audit_of(transfer_of(means, noise=0.0, votes=3, importance=(0.5, 0.5, 0.0, 0.0)))
    first, second = audit.domains[:2]
    assert (first.own, first.given, first.received) == pytest.approx((-4.0, 0.5, 3.0))
    assert (second.own, second.given, second.received) == pytest.approx((-4.0, 0.5, 1 / 3))
    assert first.votes == 3
    assert audit.transfer == tuple(map(tuple, means))
    assert audit.standard_error == ((0.0,) * 4,) * 4


def test_the_table_has_a_line_for_each_domain_and_each_flag():
    means = uniform()
    means[2][2] = 0.0
    audit = audit_of(transfer_of(means), losses=ALL_BUT_C)
    lines = str(audit).splitlines()
    assert (
        " ".join(lines[0].split()) == "domain weight share loss scale loss left own to others from others present votes"
    )
    assert [line.split()[0] for line in lines[1:5]] == list(NAMES)
    assert len({len(line) for line in lines[:5]}) == 1
    assert lines[3].split()[-2:] == ["100%", "200"]
    assert lines[-1] == f"c: noisy labels. {audit.flags[0].evidence}"


def test_plain_values_for_json():
    audit = audit_of(transfer_of(uniform(), norms=(1.0, 1.0, 1.0, 30.0)))
    values = json.loads(json.dumps(audit.as_dict(), allow_nan=False))
    assert values["flags"][0] == {
        "domain": "d",
        "kind": "out of scale",
        "evidence": audit.flags[0].evidence,
    }
    assert values["domains"][0]["name"] == "a"
    assert values["transfer"] == [list(row) for row in audit.transfer]


def test_nothing_measured_is_nothing_flagged():
    audit = sy.Balancer(NAMES, loss=mse_loss).audit()
    assert audit.flags == ()
    assert math.isnan(audit.domains[0].own)
    assert "nan" in json.dumps(audit.as_dict()).lower()
    assert "Too few votes to judge all transfer: 0 of 30" in str(audit)


@pytest.mark.parametrize("importance", [{"a": 1.0, "b": 0.0}, {"a": 1.0, "b": 1.0}])
@pytest.mark.parametrize("rate", [0.05, 0.0], ids=["learning", "not learning"])
def test_transfer_that_never_varies_can_be_audited(importance, rate):
    """Of a domain that alone is important nothing is given to others; at a learning rate of 0 nothing changes."""
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    balancer = sy.Balancer(("a", "b"), loss=mse_loss, importance=importance, probe=sy.InnerLoop())
    for _ in range(3):
        balancer(model, batch(), optimizer)
    assert flags_of(balancer.audit()) == []


@pytest.mark.parametrize("probe", [sy.InnerLoop, sy.FirstOrder])
def test_fixed_weights_with_a_probe_are_audited(probe):
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    names = ("a", "b", "c")
    losses = {"a": mse_loss, "b": lambda o, y: 100 * mse_loss(o, y), "c": mse_loss}
    balancer = sy.Balancer(names, loss=losses, weighting=sy.Fixed(), probe=probe())
    for step in range(12):
        samples = batch((6, 6, 6), names=names, seed=step)
        if step:
            del samples["c"]
        take_step(0.01 * balancer(model, samples, optimizer), optimizer)
    audit = balancer.audit()
    assert [(entry.name, entry.votes, entry.presence) for entry in audit.domains] == [
        ("a", 12, 1.0),
        ("b", 12, 1.0),
        ("c", 1, 1 / 12),
    ]
    kinds = flags_of(audit)
    assert ("b", "out of scale") in kinds
    assert ("c", "starved") in kinds
    assert audit.domains[1].share > 0.9
    assert balancer.weights == {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}


def test_batches_in_evaluation_do_not_count_for_presence():
    model = smooth()
    balancer = sy.Balancer(("a", "b"), loss=mse_loss, weighting=sy.Fixed())
    balancer(model, batch())
    balancer.eval()(model, {"a": batch()["a"]})
    with torch.no_grad():
        balancer.train()(model, {"a": batch()["a"]})
    assert [entry.presence for entry in balancer.audit().domains] == [1.0, 1.0]


@pytest.mark.parametrize("noisy_share", [0.1, 1.0])
@pytest.mark.parametrize("probe", [sy.InnerLoop, sy.FirstOrder])
def test_random_labels_are_found_in_training(probe, noisy_share):
    """Two domains share a rule; the third has random targets."""
    torch.manual_seed(0)
    names = ("a", "b", "noise")
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    balancer = sy.Balancer(names, loss=mse_loss, weighting=sy.Evidence(noisy_share=noisy_share), probe=probe())
    for step in range(300):
        generator = torch.Generator().manual_seed(step)
        samples = {}
        for name in names:
            x = torch.randn(16, 6, generator=generator)
            y = x.sum(1, keepdim=True)
            if name == "noise":
                y = 3 * torch.randn(16, 1, generator=generator)
            samples[name] = (x, y)
        take_step(balancer(model, samples, optimizer), optimizer)
    assert {flag.domain for flag in balancer.audit().flags} == {"noise"}
    undiminished = balancer.transfer.weights_for(balancer.weighting.weights())
    assert (balancer.weights["noise"] < 0.8 * undiminished[2]) == (noisy_share < 1)
