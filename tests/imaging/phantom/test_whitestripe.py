import numpy as np
import pytest

from steelyard.imaging.phantom.subject import white_stripe


@pytest.fixture
def head():
    generator = np.random.default_rng(0)
    image = np.zeros((20, 20, 20), dtype=np.float32)
    brain, white = np.zeros(image.shape, dtype=bool), np.zeros(image.shape, dtype=bool)
    brain[2:18, 2:18, 2:18] = white[2:18, 2:18, 10:18] = True
    image[brain] = generator.normal(60, 8, brain.sum())
    image[white] = generator.normal(100, 5, white.sum())
    return image, brain, white


def test_white_matter_is_at_zero_and_the_stripe_has_unit_spread(head):
    image, brain, white = head
    normalised = white_stripe(image, brain, white)
    assert abs(np.median(normalised[white])) < 1
    ranks = np.sort(normalised[brain])
    middle = np.searchsorted(ranks, 0)
    stripe = ranks[middle - len(ranks) // 20 : middle + len(ranks) // 20]
    assert stripe.std() == pytest.approx(1, abs=0.15)
    assert (normalised[~brain] == 0).all()


def test_units_do_not_matter(head):
    image, brain, white = head
    np.testing.assert_allclose(
        white_stripe(3 * image + 50, brain, white), white_stripe(image, brain, white), rtol=1e-3, atol=2e-3
    )
