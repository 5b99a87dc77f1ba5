import numpy as np
import pytest
import torch
from scipy import ndimage

from steelyard.imaging.phantom.anatomy import grow_anatomy
from steelyard.imaging.phantom.lesions import grow_lesions
from steelyard.imaging.phantom.traits import draw_physique


@pytest.fixture(scope="module")
def anatomy():
    generator = np.random.default_rng(5)
    return grow_anatomy(draw_physique(70, generator), generator)


@pytest.fixture(scope="module")
def white_matter(anatomy):
    """Points every 2 mm of the subject's white matter, and where the template has them."""
    axes = torch.arange(-60.0, 61.0, 2), torch.arange(-95.0, 66.0, 2), torch.arange(-40.0, 66.0, 2)
    points = torch.cartesian_prod(*axes)
    places = anatomy.to_template(points)
    depth = anatomy.layers.at(places)[0]
    places = anatomy.before_ageing(places, depth)
    white = (anatomy.brain_tissues(places, depth)[0] > 0.5) & (depth < 0)
    return places[white]


@pytest.mark.parametrize("load", [1.0, 8.0, 40.0])
def test_lesions_fill_the_volume_drawn(anatomy, white_matter, load):
    lesions = grow_lesions(anatomy, load, np.random.default_rng(6))
    volume = float((lesions.severity_at(white_matter) > 0.5).sum()) * 0.008
    assert volume == pytest.approx(load, rel=0.15)


def test_lesions_cap_and_line_the_ventricles_and_dot_the_deep_white_matter(anatomy, white_matter):
    lesions = grow_lesions(anatomy, 15.0, np.random.default_rng(7))
    sick = white_matter[lesions.severity_at(white_matter) > 0.5]
    distance = anatomy.template.ventricle_distance.at(sick)[0]
    assert float((distance < 6).float().mean()) > 0.25
    assert float((distance > 10).float().mean()) > 0.05
    assert float(sick[:, 0].abs().min()) > 5  # the corpus callosum is spared
    everywhere = anatomy.template.ventricle_distance.at(white_matter)[0]
    assert float(distance.median()) < 0.5 * float(everywhere.median())


def test_a_larger_load_contains_the_smaller(anatomy, white_matter):
    small, large = (grow_lesions(anatomy, load, np.random.default_rng(8)) for load in (4.0, 20.0))
    few, many = (lesions.severity_at(white_matter) > 0.5 for lesions in (small, large))
    assert not bool((few & ~many).any())
    assert int(many.sum()) > 3 * int(few.sum())


def test_most_lesions_are_discrete_and_of_the_size_that_raters_outline(anatomy):
    """Real subjects of 14 to 17 ml have 18 to 38 lesions, 5 to 13 of them of 0.1 to 0.5 ml."""
    lesions = grow_lesions(anatomy, 15.0, np.random.default_rng(7))
    ground = lesions.ground
    labels, count = ndimage.label(ground.values[0].numpy() > lesions.threshold)
    volumes = ndimage.sum_labels(labels > 0, labels, range(1, count + 1)) / 1000
    assert 5 <= ((volumes >= 0.1) & (volumes < 0.5)).sum() <= 30
    assert (volumes < 0.1).sum() < 25
    assert volumes.max() < 0.6 * volumes.sum()


def test_small_lesions_are_rounded(anatomy):
    """A ball fills 0.52 of its box and a cube all of it."""
    lesions = grow_lesions(anatomy, 15.0, np.random.default_rng(7))
    labels, _ = ndimage.label(lesions.ground.values[0].numpy() > lesions.threshold)
    boxes = ndimage.find_objects(labels)
    filled = [(labels[box] == index).mean() for index, box in enumerate(boxes, start=1) if labels[box].size < 400]
    assert len(filled) > 5
    assert np.median(filled) < 0.7


@pytest.mark.parametrize("load", [8.0, 40.0])
def test_white_matter_away_from_lesions_is_healthy(anatomy, white_matter, load):
    severity = grow_lesions(anatomy, load, np.random.default_rng(6)).severity_at(white_matter)
    assert float((severity == 0).float().mean()) > 0.85
    assert float(severity[severity < 0.5].mean()) < 0.01


def test_one_lesion_loses_more_tissue_than_another(anatomy, white_matter):
    lesions = grow_lesions(anatomy, 15.0, np.random.default_rng(7))
    severity, lost, _ = lesions.at(white_matter, damage=0.3)
    lost = lost[severity > 0.5]
    assert float(lost.mean()) == pytest.approx(0.3, abs=0.12)
    assert 0.1 < float(lost.std()) < 0.3


def test_the_lining_stays_at_the_ventricles(anatomy, white_matter):
    near = grow_lesions(anatomy, 15.0, np.random.default_rng(7)).at(white_matter, damage=0.3)[2]
    distance = anatomy.template.ventricle_distance.at(white_matter)[0]
    assert float(near[distance > 4].max()) < 0.05
    assert float(near[distance < 1].min()) > 0.5
