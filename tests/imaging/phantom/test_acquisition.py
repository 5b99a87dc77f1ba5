import numpy as np
import pytest
import torch

from steelyard.imaging.phantom.acquisition import Grid, draw_shading, flair_grid, rician, sample, t1w_grid


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
