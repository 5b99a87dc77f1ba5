import numpy as np
import pytest
import SimpleITK

from steelyard.imaging.anatomy.rigid import Rigid, draw_rigid
from steelyard.imaging.scans.grids import itk_text


def test_itk_reads_the_same_map(tmp_path):
    matrix = Rigid(angles=(5, -3, 8), translation=(1, 2, 3), centre=(10, 20, 30)).matrix()
    path = tmp_path / "xfm.txt"
    path.write_text(itk_text(matrix))
    transform = SimpleITK.ReadTransform(str(path))
    for point in np.random.default_rng(0).normal(0, 50, size=(5, 3)):
        left_posterior = np.array(transform.TransformPoint((point * [-1, -1, 1]).tolist()))
        np.testing.assert_allclose(left_posterior * [-1, -1, 1], matrix[:3, :3] @ point + matrix[:3, 3], atol=1e-9)


def test_motion_is_rigid_and_leaves_its_centre():
    matrix = Rigid(angles=(5, -3, 8), translation=(0, 0, 0), centre=(10, 20, 30)).matrix()
    np.testing.assert_allclose(matrix[:3, :3] @ matrix[:3, :3].T, np.eye(3), atol=1e-12)
    assert np.linalg.det(matrix[:3, :3]) == pytest.approx(1)
    np.testing.assert_allclose(matrix @ [10, 20, 30, 1], [10, 20, 30, 1], atol=1e-12)


def test_drawn_motion_is_small_and_varies():
    generator = np.random.default_rng(0)
    drawn = [draw_rigid(generator, degrees=(4, 1, 2), millimetres=3) for _ in range(300)]
    angles = np.array([motion.angles for motion in drawn])
    np.testing.assert_allclose(angles.std(axis=0), [4, 1, 2], rtol=0.15)
    assert np.abs(angles[:, 0]).max() <= 10
