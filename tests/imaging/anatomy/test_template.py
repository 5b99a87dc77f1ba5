import pytest
import torch

from steelyard.imaging.anatomy.template import load_template


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
