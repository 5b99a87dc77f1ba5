import math

import numpy as np
import pytest
from scipy import ndimage

from steelyard.imaging.anatomy.lesions import label_lesions, measure_lesions
from steelyard.imaging.evaluate.metrics import volume_metrics
from steelyard.imaging.scans.volumes import Volume

AFFINE = np.diag([1.0, 2.0, 5.0, 1.0])  # a voxel of 0.01 ml


def grid(*places, affine=AFFINE, shape=(40, 20, 10)):
    voxels = np.zeros(shape, dtype=bool)
    for place in places:
        voxels[place] = True
    return Volume(voxels, affine)


def test_lesions_touch_by_corners_and_the_largest_comes_first():
    mask = grid((1, 1, 1), (2, 2, 2), (slice(10, 15), 5, 5), (30, 10, 5))
    lesions = measure_lesions(mask, ventricles=None)
    assert lesions.count == 3
    assert lesions.volumes_ml == pytest.approx((0.05, 0.02, 0.01))
    assert lesions.total_ml == pytest.approx(0.08)
    assert np.array_equal(lesions.mask.voxels, mask.voxels)


def test_unknown_ventricles_leave_the_split_unknown():
    lesions = measure_lesions(grid((1, 1, 1)), ventricles=None)
    assert math.isnan(lesions.periventricular_ml)
    assert math.isnan(lesions.deep_ml)


@pytest.mark.parametrize(("smallest", "count"), [(0.0, 3), (0.02, 2), (0.020001, 1), (0.05, 1), (0.06, 0)])
def test_lesions_below_the_smallest_volume_are_dropped(smallest, count):
    mask = grid((1, 1, 1), (2, 2, 2), (slice(10, 15), 5, 5), (30, 10, 5))
    lesions = measure_lesions(mask, ventricles=None, smallest_ml=smallest)
    assert lesions.count == label_lesions(lesions.mask.voxels)[1] == count
    assert sum(lesions.volumes_ml) == pytest.approx(lesions.total_ml)


@pytest.mark.parametrize("edge", [0.9, 0.7, 1.1, 0.3])
def test_a_lesion_of_exactly_the_smallest_volume_stays(edge):
    affine = np.diag([edge, edge, 7 * edge, 1.0])
    mask = grid((slice(0, 3), 0, 0), affine=affine)
    assert measure_lesions(mask, ventricles=None, smallest_ml=3 * 7 * edge**3 / 1000).count == 1


def test_ten_millimetres_along_each_axis_decide():
    ventricles = grid((15, 10, 5))
    near = [(25, 10, 5), (15, 15, 5), (15, 10, 7), (15, 10, 5)]  # 10, 5 × 2, 2 × 5 and 0 mm away
    far = [(26, 10, 5), (15, 16, 5), (15, 10, 8), (24, 13, 5)]  # 11, 12, 15 and √(81 + 36) mm
    lesions = measure_lesions(grid(*near, *far), ventricles=ventricles)
    assert lesions.periventricular_ml == pytest.approx(0.04)
    assert lesions.deep_ml == pytest.approx(0.04)


def test_a_lesion_that_reaches_far_is_split():
    lesions = measure_lesions(grid((slice(0, 20), 0, 0)), ventricles=grid((0, 0, 0)))
    assert lesions.count == 1
    assert (lesions.periventricular_ml, lesions.deep_ml) == pytest.approx((0.11, 0.09))


def test_what_is_dropped_is_not_split():
    mask = grid((15, 10, 5), (slice(30, 35), 0, 0))
    lesions = measure_lesions(mask, ventricles=grid((15, 10, 5)), smallest_ml=0.03)
    assert (lesions.periventricular_ml, lesions.deep_ml) == pytest.approx((0.0, 0.05))


def test_no_lesion():
    lesions = measure_lesions(grid(), ventricles=grid((1, 1, 1)), smallest_ml=0.01)
    assert (lesions.count, lesions.volumes_ml, lesions.total_ml) == (0, (), 0.0)
    assert (lesions.periventricular_ml, lesions.deep_ml) == (0.0, 0.0)


def test_metrics_count_the_same_lesions():
    noise = ndimage.gaussian_filter(np.random.default_rng(0).standard_normal((30, 30, 12)), 1.0)
    truth = Volume(noise > np.quantile(noise, 0.96), AFFINE)
    count = measure_lesions(truth, ventricles=None).count
    one = np.zeros_like(truth.voxels)
    one[tuple(np.argwhere(truth.voxels)[0])] = True
    assert volume_metrics(one, truth.voxels, spacing=truth.spacing).lesion_recall == pytest.approx(1 / count)


def test_turning_the_grid_changes_no_number():
    random = np.random.default_rng(1)
    mask, ventricles = (Volume(random.random((20, 16, 8)) < share, AFFINE) for share in (0.02, 0.001))
    turned = [Volume(one.voxels.transpose(2, 0, 1), one.affine[:, [2, 0, 1, 3]]) for one in (mask, ventricles)]
    first = measure_lesions(mask, ventricles=ventricles, smallest_ml=0.02)
    second = measure_lesions(turned[0], ventricles=turned[1], smallest_ml=0.02)
    assert first.volumes_ml == pytest.approx(second.volumes_ml)
    assert first.periventricular_ml == pytest.approx(second.periventricular_ml)
    assert first.deep_ml == pytest.approx(second.deep_ml)


def test_faults_are_named():
    mask = grid((1, 1, 1))
    with pytest.raises(ValueError, match="boolean"):
        measure_lesions(mask.with_voxels(mask.voxels.astype(np.uint8)), ventricles=None)
    with pytest.raises(ValueError, match="grid of the lesions"):
        measure_lesions(mask, ventricles=Volume(mask.voxels, np.diag([1.0, 1.0, 5.0, 1.0])))
    with pytest.raises(ValueError, match="no voxel of ventricle"):
        measure_lesions(mask, ventricles=grid())
    with pytest.raises(ValueError, match="smallest_ml must be at least 0; got nan"):
        measure_lesions(mask, ventricles=None, smallest_ml=math.nan)
