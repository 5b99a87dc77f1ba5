from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from steelyard.imaging.phantom.traits import LOAD_RANGE, draw_age, draw_load, draw_physique


def physiques(age, count=200):
    generator = np.random.default_rng(0)
    return [draw_physique(age, generator) for _ in range(count)]


def test_ventricles_and_sulci_widen_with_age():
    young, old = physiques(50), physiques(80)
    for trait in ("ventricle_growth", "sulcal_widening", "fluid_gap"):
        before, after = (np.mean([getattr(one, trait) for one in people]) for people in (young, old))
        assert after > 1.3 * before, trait


def test_ages_are_those_of_the_studies():
    generator = np.random.default_rng(0)
    ages = [draw_age(generator) for _ in range(500)]
    assert 45 <= min(ages) < 55
    assert 80 < max(ages) <= 88


def test_a_head_without_a_skull_is_refused():
    with pytest.raises(ValueError, match="thicknesses must be positive"):
        replace(physiques(60, 1)[0], skull=(1.0, 0.0, 1.0))


def loads(age, count=4000):
    generator = np.random.default_rng(1)
    return np.array([draw_load(age, generator) for _ in range(count)])


def test_loads_are_lognormal_within_their_range():
    drawn = loads(67)
    assert LOAD_RANGE[0] <= drawn.min() < 1.3
    assert 35 < drawn.max() <= LOAD_RANGE[1]
    assert 6.5 < np.median(drawn) < 8.5
    low, high = (np.log(np.array(LOAD_RANGE) / 8) / 0.95).tolist()
    assert stats.kstest(np.log(drawn / 8) / 0.95, stats.truncnorm(low, high).cdf).pvalue > 0.01


def test_loads_grow_with_age():
    assert np.median(loads(80)) > 1.3 * np.median(loads(60))
