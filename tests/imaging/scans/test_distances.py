import tracemalloc

import numpy as np
import pytest
from scipy import ndimage

from steelyard.imaging.scans.distances import deep_inside, near
from steelyard.imaging.scans.volumes import Volume

SPACINGS = ((1.0, 1.0, 1.0), (0.5, 0.5, 0.475), (0.9, 1.1, 7.0))


def blob(spacing, *, shape=(37, 41, 35)):
    """Some smooth pieces, of which some touch the border."""
    noise = ndimage.gaussian_filter(np.random.default_rng(3).normal(size=shape), 3)
    return Volume(noise > 0.3 * noise.max(), np.diag([*spacing, 1.0]))


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("reach", [0.0, 2.0, 100.0])
def test_near_is_the_distance_transform_cut_at_a_distance(spacing, reach):
    mask = blob(spacing)
    distance = ndimage.distance_transform_edt(~mask.voxels, sampling=spacing)
    assert np.array_equal(near(mask, reach), distance <= reach)


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("depth", [0.0, 1.0, 2.5, 100.0])
def test_deep_inside_is_the_distance_transform_cut_at_a_depth(spacing, depth):
    mask = blob(spacing)
    distance = ndimage.distance_transform_edt(np.pad(mask.voxels, 1), sampling=spacing)[1:-1, 1:-1, 1:-1]
    assert np.array_equal(deep_inside(mask, depth), (distance >= depth) & mask.voxels)


def test_an_empty_mask_is_near_nothing():
    empty = Volume(np.zeros((5, 6, 7), dtype=bool), np.eye(4))
    assert not near(empty, 3.0).any()
    assert not deep_inside(empty, 0.0).any()


@pytest.mark.parametrize("measure", [near, deep_inside])
def test_memory_follows_the_mask_and_not_the_grid(measure):
    mask = Volume(np.zeros((160, 160, 160), dtype=bool), np.eye(4))
    mask.voxels[70:90, 70:90, 70:90] = True
    tracemalloc.start()
    measure(mask, 10.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak / mask.voxels.size < 4  # bytes for each voxel; the transform of the whole grid takes 48
