import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from steelyard.errors import UserError
from steelyard.imaging.scans.frame import Frame
from steelyard.imaging.scans.volumes import Volume


def ball(shape=(60, 80, 20), spacing=(0.9, 1.2, 5.0), centre=(30, 44), radius_mm=20.0):
    x, y, _ = np.meshgrid(*map(np.arange, shape), indexing="ij")
    inside = ((x - centre[0]) * spacing[0]) ** 2 + ((y - centre[1]) * spacing[1]) ** 2 < radius_mm**2
    return Volume(inside, np.diag([*spacing, 1.0]))


def test_own_pixels_are_taken_as_they_are_and_put_back_exactly():
    brain = ball()
    values = np.random.default_rng(0).normal(size=brain.voxels.shape).astype(np.float32)
    placement = Frame(shape=(96, 64)).place(brain)
    planes = placement.cut(values, range(3, 8))
    assert planes.shape == (5, 96, 64)
    assert np.array_equal(placement.back(planes), values[:, :, 3:8])


def test_rows_run_from_the_front_and_columns_from_the_left():
    brain = ball()
    voxels = np.zeros(brain.voxels.shape, dtype=np.float32)
    voxels[10, 70, 4] = 1.0  # left of the middle, in front of it
    row, column = np.argwhere(Frame(shape=(96, 64)).place(brain).cut(voxels, range(4, 5))[0] == 1)[0]
    assert row < 96 / 2
    assert column < 64 / 2


@pytest.mark.parametrize("pixel", [0.6, 1.0, 1.5, 2.5])
def test_the_brain_keeps_its_area_and_sits_in_the_middle_at_any_resolution(pixel):
    brain = ball()
    size = 16 * int(np.ceil(44 / pixel / 16))
    plane = Frame(shape=(size, size), pixel_mm=pixel).place(brain).cut_mask(brain.voxels, range(5, 6))[0]
    assert plane.sum() * pixel**2 == pytest.approx(brain.voxels[:, :, 5].sum() * 0.9 * 1.2, rel=0.04)
    middle = np.argwhere(plane).mean(axis=0)
    assert middle == pytest.approx([(size - 1) / 2] * 2, abs=0.6)


def test_a_smooth_picture_survives_the_way_there_and_back():
    brain = ball()
    x, y, _ = np.meshgrid(*map(np.arange, brain.voxels.shape), indexing="ij")
    smooth = (np.sin(x / 9) + np.cos(y / 11)).astype(np.float32) * brain.voxels
    placement = Frame(shape=(64, 64), pixel_mm=1.0).place(brain)
    back = placement.back(placement.cut(smooth, range(20)))
    inner = ball(radius_mm=16.0).voxels
    assert np.abs(back - smooth)[inner].max() < 0.05


def test_a_frame_grows_where_the_brain_does_not_fit_and_only_there():
    brain = ball()
    frame = Frame(shape=(32, 64), pixel_mm=1.0)
    assert frame.covering(brain).shape == (48, 64)
    assert frame.covering(brain).place(brain).cut_mask(brain.voxels, range(1))[0].sum() == pytest.approx(
        brain.voxels[:, :, 0].sum() * 0.9 * 1.2, rel=0.04
    )
    assert Frame().covering(brain).shape == (48, 48)


def test_without_a_shape_the_whole_plane_is_seen():
    brain = ball()
    assert Frame().place(brain).cut(brain.voxels, range(2)).shape == (2, 80, 60)
    assert Frame(pixel_mm=2.0).place(brain).cut(brain.voxels, range(2)).shape == (2, 48, 27)


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": (0, 5)},
        {"shape": (64,)},
        {"shape": (64.5, 64)},
        {"shape": (10**6, 64)},
        {"shape": "ab"},
        {"pixel_mm": 0.0},
        {"pixel_mm": float("nan")},
    ],
)
def test_impossible_frames_are_refused(wrong):
    with pytest.raises(UserError):
        Frame(**wrong)


def test_planes_have_the_same_bits_whatever_the_number_of_threads():
    brain = ball(shape=(240, 256, 48), spacing=(1.0, 1.0, 3.0), centre=(120, 128), radius_mm=70.0)
    values = np.random.default_rng(0).normal(size=brain.voxels.shape).astype(np.float32)
    placement = Frame(shape=(96, 80), pixel_mm=2.0).place(brain)
    planes, back = [], []
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            planes.append(placement.cut(values, range(48)))
            back.append(placement.back(planes[0]))
    assert np.array_equal(*planes)
    assert np.array_equal(*back)
