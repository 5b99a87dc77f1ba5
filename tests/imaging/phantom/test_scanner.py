from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from steelyard.errors import UserError
from steelyard.imaging.phantom.scanner import SCANNERS, Scanner, scanner_named


def character(scanner):
    return np.array([*scanner.t1w_signals(1.0), *scanner.flair_signals(1.0), 10 * scanner.noise, scanner.shading])


@pytest.mark.parametrize(("one", "other"), list(combinations(SCANNERS, 2)))
def test_presets_are_different_domains(one, other):
    assert np.abs(character(SCANNERS[one]) - character(SCANNERS[other])).max() > 0.05


def test_the_default_has_the_papers_protocol():
    scanner = next(iter(SCANNERS.values()))
    t1w, flair = scanner.t1w, scanner.flair
    assert (t1w.echo_time, t1w.repetition_time, t1w.flip_angle) == (2.98, 2300, 9)
    assert (flair.echo_time, flair.repetition_time, flair.flip_angle) == (90, 9160, 150)
    assert scanner.field_strength == 3.0


def test_fat_suppression_darkens_fat_in_flair_alone():
    plain, suppressed = Scanner(), Scanner(fat_suppression=0.9)
    assert plain.t1w_signals(1.0) == suppressed.t1w_signals(1.0)
    assert suppressed.flair_signals(1.0)[4] == pytest.approx(0.1 * plain.flair_signals(1.0)[4])


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UserError, match=r"scanner must be one of standard-3t, .*; got 9t\."):
        scanner_named("9t")


@pytest.mark.parametrize("wrong", [{"field_strength": 9.0}, {"noise": -0.1}, {"fat_suppression": 2.0}])
def test_impossible_scanners_are_refused(wrong):
    with pytest.raises(ValueError, match="must"):
        replace(Scanner(), **wrong)
