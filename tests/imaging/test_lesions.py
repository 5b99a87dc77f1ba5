import math

import numpy as np
import pytest

from steelyard.imaging.lesions import find_lesions
from steelyard.imaging.volumes import Volume

AFFINE = np.diag([1.0, 2.0, 5.0, 1.0])  # 0.01 ml a voxel


def volume(*boxes, shape=(30, 30, 12)):
    voxels = np.zeros(shape, dtype=bool)
    for box in boxes:
        voxels[box] = True
    return Volume(voxels, AFFINE)


LARGE, SMALL = np.s_[2:6, 2:6, 2:4], np.s_[20, 20, 8]


def test_lesions_come_largest_first():
    lesions = find_lesions(volume(SMALL, LARGE))
    assert lesions.count == 2
    assert lesions.volumes == pytest.approx((0.32, 0.01))
    assert lesions.total_ml == pytest.approx(0.33)


def test_corners_hang_together():
    assert find_lesions(volume(np.s_[1, 1, 1], np.s_[2, 2, 2])).count == 1
    assert find_lesions(volume(np.s_[1, 1, 1], np.s_[3, 2, 2])).count == 2


def test_small_lesions_are_dropped_and_the_limit_itself_stays():
    mask = volume(SMALL, LARGE)
    assert find_lesions(mask, smallest_ml=0.32).volumes == pytest.approx((0.32,))
    np.testing.assert_array_equal(find_lesions(mask, smallest_ml=0.02).mask.voxels, volume(LARGE).voxels)
    assert find_lesions(mask, smallest_ml=0.33).count == 0
    np.testing.assert_array_equal(mask.voxels, volume(SMALL, LARGE).voxels)


@pytest.mark.parametrize(("axis", "reach"), [(0, 10), (1, 5), (2, 2)])
def test_ten_millimetres_part_periventricular_from_deep(axis, reach):
    """The ventricle is one voxel; a row of lesion leaves it along an axis of 1, 2 or 5 mm a voxel."""
    row = [slice(0, 1)] * 3
    row[axis] = slice(1, 12)
    lesions = find_lesions(volume(tuple(row)), ventricles=volume(np.s_[0, 0, 0]))
    assert lesions.periventricular_ml == pytest.approx(0.01 * reach)
    assert lesions.deep_ml == pytest.approx(0.01 * (11 - reach))


def test_each_lesion_lies_where_most_of_it_does():
    near, far = np.s_[3:15, 0:1, 0:1], np.s_[3:15, 20:21, 0:1]
    table = find_lesions(volume(near, far), ventricles=volume(np.s_[0, 0, 0])).table
    assert sorted(lesion.place for lesion in table) == ["deep", "periventricular"]
    assert sum(lesion.deep_ml for lesion in table) == pytest.approx(0.12 + 0.04)


def test_without_ventricles_the_split_is_unknown():
    lesions = find_lesions(volume(LARGE))
    assert math.isnan(lesions.periventricular_ml)
    assert math.isnan(lesions.deep_ml)
    assert lesions.table[0].place == "unknown"


def test_no_lesions():
    lesions = find_lesions(volume(), ventricles=volume(LARGE))
    assert (lesions.count, lesions.volumes, lesions.total_ml, lesions.periventricular_ml) == (0, (), 0, 0)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="smallest_ml must not be negative; got -1"):
        find_lesions(volume(LARGE), smallest_ml=-1)
    with pytest.raises(ValueError, match="share one grid"):
        find_lesions(volume(LARGE), ventricles=volume(LARGE, shape=(30, 30, 13)))
    with pytest.raises(ValueError, match="ventricles is empty; pass None"):
        find_lesions(volume(LARGE), ventricles=volume())
