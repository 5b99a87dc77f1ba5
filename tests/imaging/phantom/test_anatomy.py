from dataclasses import replace

import numpy as np
import pytest
import torch

from steelyard.imaging.phantom.anatomy import grow_anatomy
from steelyard.imaging.phantom.traits import draw_physique


@pytest.fixture(scope="module")
def anatomy():
    generator = np.random.default_rng(3)
    return grow_anatomy(replace(draw_physique(60, generator), ventricle_growth=0.0, sulcal_widening=1.0), generator)


@pytest.fixture(scope="module")
def lattice():
    axes = torch.arange(-70.0, 71.0, 4), torch.arange(-100.0, 71.0, 4), torch.arange(-60.0, 76.0, 4)
    return torch.cartesian_prod(*axes)


def fluid_ml(anatomy, points):
    """Fluid inside the brain, near the ventricles and elsewhere."""
    places = anatomy.to_template(points)
    depth = anatomy.layers.at(places)[0]
    inside = depth < 0
    places, depth, points = places[inside], depth[inside], points[inside]
    fluid = anatomy.brain_tissues(anatomy.before_ageing(places, depth), depth)[2]
    central = (points[:, 0].abs() < 40) & (points[:, 2] > -5) & (points[:, 2] < 40) & (depth < -20)
    return float(fluid[central].sum()) * 0.064, float(fluid[~central].sum()) * 0.064


def test_ageing_widens_the_ventricles_alone(anatomy, lattice):
    young = fluid_ml(anatomy, lattice)
    old = fluid_ml(replace(anatomy, physique=replace(anatomy.physique, ventricle_growth=4.0)), lattice)
    assert old[0] > young[0] + 10
    assert abs(old[1] - young[1]) < 0.1 * young[1]


def test_ageing_widens_the_sulci(anatomy, lattice):
    young = fluid_ml(anatomy, lattice)
    old = fluid_ml(replace(anatomy, physique=replace(anatomy.physique, sulcal_widening=2.2)), lattice)
    assert old[1] > 1.3 * young[1]


def test_shares_add_up_to_one_voxel(anatomy, lattice):
    places = anatomy.to_template(lattice)
    layers = anatomy.layers.at(places)
    brain = anatomy.brain_tissues(places, layers[0])
    torch.testing.assert_close(brain.sum(dim=0), torch.ones(len(places)))
    around = torch.stack(list(anatomy.head_tissues(places, layers).values()))
    assert float(around.min()) >= 0
    assert float(around.sum(dim=0).max()) <= 1 + 1e-5


def test_people_differ_smoothly(anatomy, lattice):
    other = grow_anatomy(anatomy.physique, np.random.default_rng(4))
    scaled = lattice / torch.tensor(anatomy.physique.size)
    moved = anatomy.to_template(lattice) - scaled
    assert 1.0 < float((moved - (other.to_template(lattice) - scaled)).norm(dim=1).mean()) < 10
    step = torch.tensor([1.0, 0.0, 0.0])
    stretched = (anatomy.to_template(lattice + step) - anatomy.to_template(lattice))[:, 0] * anatomy.physique.size[0]
    assert float(stretched.min()) > 0.4  # nothing folds over itself
