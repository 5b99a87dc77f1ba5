"""Fields on a grid, rigid motion, and the template that both are used with."""

import numpy as np
import pytest
import SimpleITK
import torch

from steelyard.imaging.anatomy.field import field_of
from steelyard.imaging.anatomy.rigid import Rigid, draw_rigid
from steelyard.imaging.anatomy.template import load_template
from steelyard.imaging.scans.grids import itk_text

SHAPE = (5, 6, 7)


def test_linear_functions_are_read_exactly():
    field = field_of(np.zeros(SHAPE), origin=(-4.0, 2.0, 1.0), spacing=1.5)
    x, y, z = field.positions()
    field = field_of(2 * x - y + 3 * z, x * 0 + y * 0 + z, origin=field.origin, spacing=field.spacing)
    inside = torch.rand(100, 3, generator=torch.Generator().manual_seed(1)) * torch.tensor([6, 7.5, 9])
    points = inside + torch.tensor(field.origin)
    expected = torch.stack([2 * points[:, 0] - points[:, 1] + 3 * points[:, 2], points[:, 2]])
    torch.testing.assert_close(field.at(points), expected, rtol=1e-5, atol=1e-4)


def test_the_edge_goes_on_beyond_the_grid():
    values = np.arange(np.prod(SHAPE), dtype=float).reshape(SHAPE)
    field = field_of(values, origin=(0.0, 0.0, 0.0), spacing=1.0)
    far = torch.tensor([[100.0, 100.0, 100.0], [-100.0, -100.0, -100.0]])
    torch.testing.assert_close(field.at(far), torch.tensor([[values.max(), values.min()]], dtype=torch.float32))


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


def test_the_ventricles_are_found_and_nothing_else():
    distance = load_template().ventricle_distance
    ventricles = distance.values[0] < 0
    assert 12_000 < int(ventricles.sum()) < 25_000  # mm³; the cisterns would add as much again
    left, right = ventricles.flip(0).float(), ventricles.float()
    assert float((left * right).sum() / right.sum()) > 0.9


def test_the_brain_is_inside_its_surface():
    template = load_template()
    depth = template.brain_distance.at(torch.tensor([[0.0, -20.0, 10.0], [0.0, -20.0, 110.0]]))[0]
    assert depth[0] < -20 < 20 < depth[1]


def test_the_push_points_away_from_the_ventricles():
    template = load_template()
    beside = torch.tensor([[-22.0, 0.0, 22.0], [22.0, 0.0, 22.0]])
    push = template.ventricle_push.at(beside)[0]
    assert push[0] < -0.3 < 0.3 < push[1]


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_no_grey_rim_remains_around_the_occipital_horns(side):
    template = load_template()
    across = torch.stack([torch.linspace(8, 34, 27) * side, torch.full((27,), -30.0), torch.full((27,), 20.0)], dim=1)
    grey, white = template.tissues.at(across)
    fluid = 1 - grey - white
    border = (fluid > 0.1) & (fluid < 0.9)
    assert border.any()
    assert float(grey[border].max()) < 0.2
