from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage

from steelyard.imaging.phantom import SCANNERS, simulate, traits_of, ventricles_of
from steelyard.imaging.phantom.acquisition import flair_grid
from steelyard.imaging.phantom.anatomy import grow_anatomy
from steelyard.imaging.phantom.lesions import grow_lesions
from steelyard.imaging.phantom.subject import _streams, noiseless_t1w, white_stripe
from steelyard.imaging.phantom.tissue import PosedHead


def lesion_z(image, subject):
    brain = image[subject.brain]
    return (image[subject.wmh].mean() - brain.mean()) / brain.std()


def test_lesions_are_as_visible_as_in_real_scans(subject):
    assert 1.3 < lesion_z(subject.flair.image.astype(float), subject) < 2.3
    assert 1.3 < lesion_z(subject.ideal_flair, subject) < 2.3
    assert -0.2 < lesion_z(subject.ideal_t1w, subject) < 0.8


def test_masks_are_nested_and_of_human_size(subject):
    assert not (subject.wmh & ~subject.brain).any()
    assert 1000 < subject.brain.sum() * subject.flair.grid.voxel_ml < 1800
    assert subject.wmh_ml == pytest.approx(subject.traits.load_ml, rel=0.35)
    _, count = ndimage.label(subject.brain)
    assert count <= 6  # one brain; the lowest slices may cut the temporal poles off


def test_there_is_a_skull_and_a_scalp_around_the_brain(subject):
    image = subject.flair.unshaded()
    rings = ndimage.distance_transform_edt(~subject.brain, sampling=(1, 1, 3))
    high = np.zeros(image.shape, dtype=bool)
    high[:, :, 28:40] = True
    brain = np.median(image[subject.brain])
    assert np.median(image[high & (rings > 3) & (rings < 6)]) < 0.5 * brain
    assert np.quantile(image[high & (rings > 7) & (rings < 13)], 0.9) > 1.1 * brain


def test_normalised_white_matter_is_at_zero(subject):
    for ideal in (subject.ideal_t1w, subject.ideal_flair):
        assert (ideal[~subject.brain] == 0).all()
        assert np.isfinite(ideal).all()
    bright = subject.ideal_t1w > np.quantile(subject.ideal_t1w[subject.brain], 0.65)
    deep = ndimage.binary_erosion(bright & subject.brain & ~subject.wmh, iterations=1)
    assert abs(np.median(subject.ideal_t1w[deep])) < 1
    assert abs(np.median(subject.ideal_flair[deep])) < 6


def test_the_ideal_flair_is_free_of_shading(subject):
    inside = ndimage.binary_erosion(subject.brain, iterations=3) & (np.abs(subject.ideal_flair) < 10)
    shading = subject.flair.bias[inside]
    assert np.corrcoef(subject.flair.image[inside], shading)[0, 1] > 0.5
    assert abs(np.corrcoef(subject.ideal_flair[inside], shading)[0, 1]) < 0.2


def test_the_transform_is_the_true_one(subject):
    """The T1w scan, brought to FLAIR's grid, is the head as a T1w scan on that very grid would show it."""
    scanner = SCANNERS["standard-3t"]
    _, of_anatomy, of_lesions, *_ = _streams(0, 1)
    anatomy = grow_anatomy(subject.traits.physique, of_anatomy)
    lesions = grow_lesions(anatomy, subject.traits.load_ml, of_lesions)
    traits = subject.traits
    head = PosedHead(
        anatomy=anatomy,
        lesions=lesions,
        to_head=traits.flair_to_head(),
        damage=traits.damage,
        lining=traits.lining,
    )
    grid = replace(flair_grid(), parts=1)
    truth = noiseless_t1w(head, grid, scanner.t1w_signals(subject.traits.lesion_contrast))

    def likeness(shift):
        moved = np.roll(subject.ideal_t1w, shift, axis=(0, 1, 2))
        inside = ndimage.binary_erosion(subject.brain, iterations=3)
        return np.corrcoef(moved[inside], truth[inside])[0, 1]

    aligned = likeness((0, 0, 0))
    assert aligned > 0.97
    for axis in np.eye(3, dtype=int):
        assert aligned > max(likeness(tuple(axis)), likeness(tuple(-axis))) + 0.03


def test_another_scanner_shows_the_same_head_differently(subject):
    other = simulate(0, 1, SCANNERS["clinical-1.5t"])
    assert (other.wmh == subject.wmh).all()
    assert (other.brain == subject.brain).all()
    assert other.traits == subject.traits
    for own, others in ((subject.ideal_t1w, other.ideal_t1w), (subject.ideal_flair, other.ideal_flair)):
        assert np.abs(own - others)[subject.brain].mean() > 1  # in s.d. of the white stripe


def test_the_true_ventricles_are_the_dark_middle_of_the_brain(subject):
    ventricles = ventricles_of(0, 1)
    inner = ndimage.binary_erosion(ventricles, structure=np.ones((3, 3, 1)))
    assert 10 < ventricles.sum() * subject.flair.grid.voxel_ml < 80
    assert not (ventricles & ~subject.brain).any()
    assert not (ventricles & (subject.white | subject.wmh)).any()
    for scan in (subject.ideal_flair, subject.ideal_t1w):
        assert np.median(scan[inner]) < np.quantile(scan[subject.brain], 0.1)
    middle = np.argwhere(ventricles).mean(axis=0) - np.argwhere(subject.brain).mean(axis=0)
    assert (np.abs(middle * (1, 1, 3)) < 25).all()


def test_subjects_and_seeds_differ():
    traits = [traits_of(seed, number) for seed in (0, 1) for number in (1, 2)]
    assert len({one.load_ml for one in traits}) == 4
    assert traits_of(0, 1) == traits[0]


@pytest.fixture
def two_tissues():
    generator = np.random.default_rng(0)
    image = np.zeros((20, 20, 20), dtype=np.float32)
    brain, white = np.zeros(image.shape, dtype=bool), np.zeros(image.shape, dtype=bool)
    brain[2:18, 2:18, 2:18] = white[2:18, 2:18, 10:18] = True
    image[brain] = generator.normal(60, 8, brain.sum())
    image[white] = generator.normal(100, 5, white.sum())
    return image, brain, white


def test_white_matter_is_at_zero_and_the_stripe_has_unit_spread(two_tissues):
    image, brain, white = two_tissues
    normalised = white_stripe(image, brain, white)
    assert abs(np.median(normalised[white])) < 1
    ranks = np.sort(normalised[brain])
    middle = np.searchsorted(ranks, 0)
    stripe = ranks[middle - len(ranks) // 20 : middle + len(ranks) // 20]
    assert stripe.std() == pytest.approx(1, abs=0.15)
    assert (normalised[~brain] == 0).all()


def test_units_do_not_matter(two_tissues):
    image, brain, white = two_tissues
    np.testing.assert_allclose(
        white_stripe(3 * image + 50, brain, white), white_stripe(image, brain, white), rtol=1e-3, atol=2e-3
    )
