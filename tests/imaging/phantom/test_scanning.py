"""From tissue to image: MR signals, scanners, grids, shading and noise."""

from dataclasses import replace
from itertools import combinations
from math import cos, exp, log, radians, sin

import numpy as np
import pytest
import torch

from steelyard.errors import UserError
from steelyard.imaging.phantom.acquisition import Grid, draw_shading, flair_grid, rician, sample, t1w_grid
from steelyard.imaging.phantom.scanner import SCANNERS, Scanner, scanner_named
from steelyard.imaging.phantom.signal import (
    RELAXATION,
    TISSUES,
    Flair,
    Mprage,
    Relaxation,
    SpinEcho,
    tissue_signals,
    with_lesion_contrast,
)


def simulated_mprage(sequence, tissue):
    """Follow the longitudinal magnetisation pulse by pulse until nothing changes from one inversion to the next."""
    recover = lambda m, time: 1 + (m - 1) * exp(-time / tissue.t1)  # noqa: E731
    half, alpha = sequence.train_length // 2, radians(sequence.flip_angle)
    m = 1.0
    for _ in range(12):
        m = recover(-m, sequence.inversion_time - half * sequence.echo_spacing)
        for pulse in range(sequence.train_length):
            if pulse == half:
                centre = m
            m = recover(m * cos(alpha), sequence.echo_spacing)
        rest = sequence.repetition_time - sequence.inversion_time - half * sequence.echo_spacing
        m = recover(m, rest)
    return tissue.density * sin(alpha) * centre * exp(-sequence.echo_time / tissue.t2)


@pytest.mark.parametrize("tissue", TISSUES)
def test_mprage_agrees_with_a_simulation_pulse_by_pulse(tissue):
    relaxation = RELAXATION[3.0][tissue]
    assert Mprage().signal(relaxation) == pytest.approx(simulated_mprage(Mprage(), relaxation), rel=0.01, abs=2e-4)


def test_flair_nulls_a_tissue_at_its_inversion_time():
    fluid = RELAXATION[3.0]["csf"]
    null = fluid.t1 * (log(2) - log(1 + exp(-9160 / fluid.t1)))
    assert Flair(inversion_time=null).signal(fluid) == pytest.approx(0, abs=1e-12)
    assert 2300 < null < 2600  # the inversion time that protocols use


def test_flair_by_hand():
    tissue = Relaxation(density=0.5, t1=1000, t2=100)
    expected = 0.5 * (1 - 2 * exp(-2.5) + exp(-9.16)) * exp(-0.9) * sin(radians(75)) ** 2
    assert Flair().signal(tissue) == pytest.approx(expected)


def test_spin_echo_by_hand():
    tissue = Relaxation(density=0.5, t1=600, t2=12)
    assert SpinEcho().signal(tissue) == pytest.approx(0.5 * (1 - exp(-1)) * exp(-1))


@pytest.mark.parametrize("field", RELAXATION)
def test_contrasts_are_those_radiologists_know(field):
    t1w = dict(zip(TISSUES, tissue_signals(Mprage(), RELAXATION[field]), strict=True))
    flair = dict(zip(TISSUES, tissue_signals(Flair(), RELAXATION[field]), strict=True))
    assert t1w["csf"] < 0.4 < t1w["grey"] < t1w["lesion"] < t1w["white"] == 1 < t1w["fat"]
    assert t1w["csf"] < t1w["hole"] < t1w["grey"]  # tissue lost is dark on T1w, and still bright on FLAIR
    assert 1.4 < flair["hole"] < flair["lesion"]
    assert flair["csf"] < 0.2 < flair["white"] == 1 < flair["grey"] < 1.4 < flair["lesion"] < 2.2


def test_lesion_contrast_moves_t2_from_white_matter():
    table = RELAXATION[3.0]
    assert with_lesion_contrast(table, 1.0) == table
    for tissue in ("lesion", "hole"):
        none = with_lesion_contrast(table, 0.0)[tissue]
        assert (none.t1, none.t2) == (table[tissue].t1, table["white"].t2)


def test_impossible_times_are_refused():
    with pytest.raises(ValueError, match="T1 and T2 must be positive"):
        Relaxation(density=1.0, t1=0.0, t2=1.0)
    with pytest.raises(ValueError, match=r"pulse train must fit around TI within TR; got TI 900 ms and TR 1000 ms"):
        Mprage(repetition_time=1000.0)


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
    with pytest.raises(UserError, match=r"scanner must be one of standard-3t, .*; got '9t'\."):
        scanner_named("9t")


@pytest.mark.parametrize("wrong", [{"field_strength": 9.0}, {"noise": -0.1}, {"fat_suppression": 2.0}])
def test_impossible_scanners_are_refused(wrong):
    with pytest.raises(ValueError, match="must"):
        replace(Scanner(), **wrong)


def everywhere(points):
    return torch.ones(len(points), dtype=torch.bool)


def test_the_grids_are_the_papers():
    assert flair_grid().shape == (212, 256, 48)
    np.testing.assert_allclose(np.linalg.norm(flair_grid().affine[:3, :3], axis=0), [1, 1, 3])
    np.testing.assert_allclose(np.linalg.norm(t1w_grid().affine[:3, :3], axis=0), [1, 1, 1.2])


def small_grid(parts):
    affine = np.diag([2.0, 1.0, 3.0, 1.0])
    affine[:3, 3] = (-7, 3, 5)
    return Grid(shape=(6, 5, 4), affine=affine, parts=parts)


def test_voxels_are_where_the_affine_says():
    image = sample(small_grid(1), everywhere, lambda points: points.T, channels=3)
    np.testing.assert_allclose(image[:, 4, 3, 2], [-7 + 8, 3 + 3, 5 + 6], atol=1e-5)


@pytest.mark.parametrize("parts", [1, 3])
def test_a_slice_averages_over_its_thickness(parts):
    image = sample(small_grid(parts), everywhere, lambda points: points[:, 2:].T ** 2, channels=1)
    middle = 5 + 3 * np.arange(4)
    expected = np.mean([(middle + offset) ** 2 for offset in ([0] if parts == 1 else [-1, 0, 1])], axis=0)
    np.testing.assert_allclose(image[0, 0, 0], expected, rtol=1e-5)


def test_nothing_is_read_far_from_the_inside():
    right = sample(flair_grid(), lambda points: points[:, 0] > 0, lambda points: 1 + 0 * points[:, :1].T, channels=1)
    assert right[0, 110:].min() == 1
    assert right[0, :100].max() == 0


def test_shading_is_one_field_on_every_grid():
    shading = draw_shading(0.2, np.random.default_rng(0))
    flair, t1w = shading.on(flair_grid()), shading.on(t1w_grid())
    point = np.array([10.5, -20.5, 13.5, 1.0])
    indices = [np.linalg.solve(grid.affine, point)[:3] for grid in (flair_grid(), t1w_grid())]
    near = [image[tuple(np.rint(index).astype(int))] for image, index in zip((flair, t1w), indices, strict=True)]
    assert near[0] == pytest.approx(near[1], rel=0.01)


def test_shading_has_the_strength_asked_for():
    within = np.s_[50:160, 60:200, 4:44]
    spread = [np.log(draw_shading(0.1, np.random.default_rng(k)).on(flair_grid())[within]).std() for k in range(8)]
    assert np.mean(spread) == pytest.approx(0.1, rel=0.3)


def test_noise_is_rician():
    silent = rician(np.zeros(200_000, dtype=np.float32), 2.0, np.random.default_rng(0))
    assert silent.mean() == pytest.approx(2 * np.sqrt(np.pi / 2), rel=0.01)
    loud = rician(np.full(200_000, 100, dtype=np.float32), 2.0, np.random.default_rng(0))
    assert loud.std() == pytest.approx(2.0, rel=0.01)
    assert loud.mean() == pytest.approx(100.02, abs=0.02)
