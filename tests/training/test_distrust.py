"""With `noisy_share`, a domain whose labels look noisy gets part of its share and takes no part in votes."""

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


def vote(valuation, losses, *, seed):
    """A vote with random scores."""
    generator = torch.Generator().manual_seed(seed)
    scores = Scores(
        after=torch.rand(4, 3, generator=generator, dtype=torch.float64),
        before=torch.full((3,), math.nan, dtype=torch.float64),
        losses=torch.tensor(losses, dtype=torch.float64),
        gradient_norms=torch.ones(3, dtype=torch.float64),
    )
    finding = Finding(Measurement.of(torch.zeros(3, dtype=torch.float64)), scores=scores)
    return valuation.measurement(finding), scores


def new_valuation(noisy_share=0.1, importance=None):
    return Valuation(NAMES, Evidence(noisy_share=noisy_share), judge="loss", importance=importance)


def valuation_after(losses, *, votes=60, **settings):
    """What was measured while the losses fell from 1 to these."""
    valuation = new_valuation(**settings)
    vote(valuation, (1.0, 1.0, 1.0), seed=0)
    for number in range(1, votes):
        vote(valuation, losses, seed=number)
    return valuation


def test_a_domain_that_learned_nothing_gets_a_tenth_of_its_share():
    valuation = valuation_after(NOTHING_LEARNED)
    assert valuation.noisy.tolist() == [False, False, True]
    assert valuation.weights_for([1 / 3] * 3) == pytest.approx([10 / 21, 10 / 21, 1 / 21])


def test_by_default_the_audit_says_it_and_the_weights_do_not_follow():
    valuation = valuation_after(NOTHING_LEARNED, noisy_share=1.0)
    assert valuation.noisy.tolist() == [False, False, True]
    assert valuation.weights_for([1 / 3] * 3) == pytest.approx([1 / 3] * 3)
    assert Evidence().noisy_share == 1.0


def test_the_only_domain_that_matters_is_not_distrusted():
    valuation = valuation_after(NOTHING_LEARNED, importance={"a": 0.0, "b": 0.0, "c": 1.0})
    assert valuation.noisy.tolist() == [False, False, True]
    assert not valuation.distrusted.any()


def test_domains_that_learned_keep_their_shares():
    valuation = valuation_after(LEARNED)
    assert not valuation.noisy.any()
    assert valuation.weights_for([0.5, 0.3, 0.2]) == pytest.approx([0.5, 0.3, 0.2])


def test_nothing_is_distrusted_before_the_early_moment():
    valuation = valuation_after((0.6, 0.6, 1.0))  # the better half has not halved its losses yet
    assert not valuation.noisy.any()


def test_scores_on_noisy_labels_judge_nobody():
    """The worth of steps is the same whatever they do to the noisy domain."""
    worths = []
    for change in (0.0, 5.0):
        valuation = valuation_after(NOTHING_LEARNED)
        _, scores = vote(new_valuation(), (0.2, 0.2, 1.0), seed=99)
        scores.after[0, 2] += change
        measurement = valuation.measurement(Finding(Measurement.of(torch.zeros(3, dtype=torch.float64)), scores=scores))
        assert measurement.present.tolist() == [True, True, False]
        worths.append(measurement.values[:2])
    assert torch.equal(*worths)


@pytest.mark.parametrize("noisy_share", [0.0, -1.0, 1.1, math.nan])
def test_refuses_a_share_that_is_none(noisy_share):
    with pytest.raises(ValueError, match="noisy_share must be above 0 and at most 1"):
        Evidence(noisy_share=noisy_share)


def test_distrust_is_part_of_a_checkpoint():
    valuation = valuation_after(NOTHING_LEARNED)
    other = new_valuation()
    other.load_state_dict(valuation.state_dict())
    assert other.noisy.tolist() == [False, False, True]
    assert torch.equal(other.progress.remaining, valuation.progress.remaining)
    assert torch.equal(other.transfer.early, valuation.transfer.early)
