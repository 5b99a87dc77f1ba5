import numpy as np
import pytest

from steelyard.imaging.metrics import voxel_metrics
from steelyard.imaging.phantom import scanner_named, simulate, ventricles_of
from steelyard.imaging.ventricles import find_ventricles
from steelyard.imaging.volumes import Volume

SEED, NUMBER = 7, 1


def dice(found, truth):
    return voxel_metrics(found.astype(float), truth).dsc


@pytest.fixture(scope="module")
def head():
    return simulate(SEED, NUMBER, scanner_named("standard-3t"))


@pytest.fixture(scope="module")
def volumes(head):
    affine = head.flair.grid.affine
    return {
        name: Volume(voxels, affine)
        for name, voxels in (("flair", head.ideal_flair), ("t1", head.ideal_t1w), ("brain", head.brain))
    }


def test_both_contrasts_show_the_same_ventricles(volumes):
    truth = ventricles_of(SEED, NUMBER)
    flair, t1 = (find_ventricles(volumes[name], volumes["brain"]) for name in ("flair", "t1"))
    assert dice(flair.voxels, truth) > 0.88
    assert dice(t1.voxels, truth) > 0.85
    assert dice(t1.voxels, flair.voxels) > 0.92
    assert flair.same_grid(volumes["flair"])


def test_the_same_scan_gives_the_same_bits(volumes):
    first, second = (find_ventricles(volumes["t1"], volumes["brain"]) for _ in range(2))
    np.testing.assert_array_equal(first.voxels, second.voxels)


def test_orientation_does_not_matter(volumes):
    """The axes are swapped and two of them run the other way."""
    turn = np.array([[0, -1, 0, 255], [-1, 0, 0, 211], [0, 0, 1, 0], [0, 0, 0, 1.0]])

    def turned(volume):
        nx, ny, _ = volume.voxels.shape
        turn[:2, 3] = nx - 1, ny - 1
        return Volume(volume.voxels[::-1, ::-1].transpose(1, 0, 2), volume.affine @ turn)

    plain = find_ventricles(volumes["flair"], volumes["brain"])
    other = find_ventricles(turned(volumes["flair"]), turned(volumes["brain"]))
    assert dice(other.voxels, turned(plain).voxels) > 0.99


def test_nothing_credible_is_none(volumes):
    brain = volumes["brain"]
    noise = np.random.default_rng(0).standard_normal(brain.voxels.shape).astype(np.float32)
    assert find_ventricles(brain.with_voxels(noise), brain) is None
    assert find_ventricles(brain.with_voxels(np.zeros_like(noise)), brain) is None
    assert find_ventricles(volumes["flair"], brain.with_voxels(np.zeros_like(brain.voxels))) is None


def test_grids_must_agree(volumes):
    other = Volume(volumes["brain"].voxels, np.diag([2.0, 2.0, 2.0, 1.0]))
    with pytest.raises(ValueError, match="share one grid"):
        find_ventricles(volumes["flair"], other)


@pytest.mark.slow
@pytest.mark.parametrize("scanner", ["clinical-1.5t", "standard-3t"])
@pytest.mark.parametrize("number", range(1, 7))
def test_six_heads(number, scanner):
    subject = simulate(SEED, number, scanner_named(scanner))
    affine, truth = subject.flair.grid.affine, ventricles_of(SEED, number)
    brain = Volume(subject.brain, affine)
    found = [find_ventricles(Volume(ideal, affine), brain) for ideal in (subject.ideal_flair, subject.ideal_t1w)]
    assert dice(found[0].voxels, truth) > 0.85
    assert dice(found[1].voxels, truth) > 0.83
    assert dice(found[0].voxels, found[1].voxels) > 0.92
