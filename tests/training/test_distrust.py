"""A domain whose labels look noisy loses its share step by step, judges nobody, and is trusted again if it learns."""

import math

import pytest
import torch

from steelyard import Measurement
from steelyard.measurement import Scores
from steelyard.probing import Finding
from steelyard.training.valuation import Valuation
from steelyard.weighting import Evidence

NAMES = ("a", "b", "c")
NOTHING_LEARNED = (0.2, 0.2, 1.0)
LEARNED = (0.2, 0.2, 0.3)
FIRST = 5  # votes whose mean is the first loss
EARLY = 30  # the step at which the better half has begun to learn: the fewest votes that say anything


def vote(valuation, losses, *, step, norms=None):
    """A vote with random scores."""
    generator = torch.Generator().manual_seed(step)
    scores = Scores(
        after=torch.rand(4, 3, generator=generator, dtype=torch.float64),
        before=torch.full((3,), math.nan, dtype=torch.float64),
        losses=torch.tensor(losses, dtype=torch.float64),
        gradient_norms=torch.ones(3, dtype=torch.float64) if norms is None else norms,
    )
    finding = Finding(Measurement.of(torch.zeros(3, dtype=torch.float64)), scores=scores)
    return valuation.measurement(finding, step), scores


def new_valuation(importance=None, **settings):
    return Valuation(NAMES, Evidence(**settings), judge="loss", importance=importance)


def valuation_after(losses, *, steps, **settings):
    """What was measured while the losses fell from 1 to these."""
    valuation = new_valuation(**settings)
    for step in range(1, steps + 1):
        vote(valuation, (1.0, 1.0, 1.0) if step <= FIRST else losses, step=step)
    return valuation


def part_of_c(valuation):
    """What domain c keeps of its share, as a part of what a keeps."""
    weights = valuation.weights_for([1 / 3] * 3)
    return weights[2] / weights[0]


@pytest.mark.parametrize(
    ("steps", "part"), [(EARLY, 1), (2 * EARLY, 1), (4 * EARLY, 1 / 2), (8 * EARLY, 1 / 4), (30 * EARLY, 1 / 10)]
)
def test_a_domain_that_learns_nothing_loses_its_share_step_by_step(steps, part):
    valuation = valuation_after(NOTHING_LEARNED, steps=steps)
    assert valuation.suspects.suspected.tolist() == [False, False, True]
    assert valuation.suspects.look_noisy.tolist() == [False, False, steps >= 3 * EARLY]
    assert part_of_c(valuation) == pytest.approx(part)
    assert sum(valuation.weights_for([1 / 3] * 3)) == pytest.approx(1)


def test_time_is_counted_in_steps_where_few_of_them_have_votes():
    valuation = valuation_after(NOTHING_LEARNED, steps=EARLY)
    vote(valuation, NOTHING_LEARNED, step=4 * EARLY)
    assert part_of_c(valuation) == pytest.approx(1 / 2)


@pytest.mark.parametrize("steps", [EARLY, 12 * EARLY])
def test_a_domain_that_learns_late_is_trusted_again(steps):
    """The audit remembers what it looked like when the patience ended."""
    valuation = valuation_after(NOTHING_LEARNED, steps=steps)
    for step in range(steps + 1, steps + 40):
        vote(valuation, LEARNED, step=step)
    for step in range(steps + 40, steps + 100):  # and stays so, whatever its loss does later
        vote(valuation, NOTHING_LEARNED, step=step)
    assert not valuation.suspects.suspected.any()
    assert part_of_c(valuation) == 1
    assert valuation.suspects.look_noisy.tolist() == [False, False, steps >= 3 * EARLY]


def test_with_a_share_of_one_the_audit_says_it_and_the_weights_do_not_follow():
    valuation = valuation_after(NOTHING_LEARNED, steps=12 * EARLY, noisy_share=1.0)
    assert valuation.suspects.look_noisy.tolist() == [False, False, True]
    assert part_of_c(valuation) == 1
    assert not valuation.distrusted.any()


def test_the_only_domain_that_matters_is_not_distrusted():
    valuation = valuation_after(NOTHING_LEARNED, steps=12 * EARLY, importance={"a": 0.0, "b": 0.0, "c": 1.0})
    assert valuation.suspects.suspected.tolist() == [False, False, True]
    assert not valuation.distrusted.any()
    assert part_of_c(valuation) == 1


def test_domains_that_learned_keep_their_shares():
    valuation = valuation_after(LEARNED, steps=12 * EARLY)
    assert not valuation.suspects.suspected.any()
    assert valuation.weights_for([0.5, 0.3, 0.2]) == pytest.approx([0.5, 0.3, 0.2])


def test_nobody_is_suspected_while_nobody_learns():
    valuation = valuation_after((0.8, 0.8, 1.0), steps=12 * EARLY)
    assert not valuation.suspects.suspected.any()


def test_a_low_loss_that_does_not_fall_was_learned_before():
    """As in fine-tuning: the third domain starts where the others end."""
    valuation = new_valuation()
    for step in range(1, 12 * EARLY):
        falling = 1.0 if step <= FIRST else 0.4
        vote(valuation, (falling, falling, 0.1), step=step)
    assert not valuation.suspects.suspected.any()
    assert not valuation.suspects.look_noisy.any()


def test_one_small_loss_at_the_start_does_not_make_a_suspect():
    valuation = new_valuation()
    for step in range(1, 12 * EARLY):
        others = 1.0 if step <= FIRST else 0.2
        vote(valuation, (others, others, 0.01 if step == 1 else 1.0 if step <= FIRST else 0.5), step=step)
    assert not valuation.suspects.suspected.any()


@pytest.mark.parametrize("factor", [30.0, 1 / 30])
def test_units_of_losses_do_not_make_suspects(factor):
    """Noisy labels are found, and a domain that was learned before is not suspected, in any units of their losses."""
    noisy = Valuation(NAMES, Evidence(), judge="loss", importance=None)
    learned = Valuation(NAMES, Evidence(), judge="loss", importance=None)
    norms = torch.tensor([1.0, 1.0, factor], dtype=torch.float64)
    for step in range(1, 4 * EARLY):
        falling = 1.0 if step <= FIRST else 0.4
        vote(noisy, (falling, falling, factor), step=step, norms=norms)
        vote(learned, (falling, falling, 0.1 * factor), step=step, norms=norms)
    assert noisy.suspects.look_noisy.tolist() == [False, False, True]
    assert not learned.suspects.look_noisy.any()


def test_the_many_are_not_suspected_because_one_domain_learns():
    valuation = valuation_after((0.1, 1.0, 1.0), steps=12 * EARLY)
    assert not valuation.suspects.suspected.any()


def test_a_loss_that_became_negative_does_not_count_for_more():
    valuation = valuation_after((-30.0, 1.0, 1.0), steps=12 * EARLY)
    assert not valuation.suspects.suspected.any()


def test_scores_on_noisy_labels_judge_nobody():
    """The worth of steps is the same whatever they do to the noisy domain."""
    worths = []
    for change in (0.0, 5.0):
        valuation = valuation_after(NOTHING_LEARNED, steps=EARLY)
        _, scores = vote(new_valuation(), NOTHING_LEARNED, step=99)
        scores.after[0, 2] += change
        finding = Finding(Measurement.of(torch.zeros(3, dtype=torch.float64)), scores=scores)
        measurement = valuation.measurement(finding, EARLY + 1)
        assert measurement.present.tolist() == [True, True, False]
        worths.append(measurement.values[:2])
    assert torch.equal(*worths)


@pytest.mark.parametrize("noisy_share", [0.0, -1.0, 1.1, math.nan])
def test_refuses_a_share_that_is_none(noisy_share):
    with pytest.raises(ValueError, match="noisy_share must be above 0 and at most 1"):
        Evidence(noisy_share=noisy_share)


def test_distrust_is_part_of_a_checkpoint():
    valuation = valuation_after(NOTHING_LEARNED, steps=12 * EARLY)
    other = new_valuation()
    other.load_state_dict(valuation.state_dict())
    assert part_of_c(other) == pytest.approx(1 / 6)
    assert other.suspects.look_noisy.tolist() == [False, False, True]
    assert torch.equal(other.suspects.progress.remaining, valuation.suspects.progress.remaining)
    assert torch.equal(other.transfer.early, valuation.transfer.early)
