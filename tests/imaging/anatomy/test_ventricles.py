import time

import nibabel
import numpy as np
import pytest
from scipy import ndimage

from steelyard.imaging.anatomy.ventricles import find_ventricles
from steelyard.imaging.phantom import SCANNERS, scanner_named, simulate, ventricles_of
from steelyard.imaging.scans.volumes import Volume, canonical, turned_back

SEED, NUMBER = 7, 2
CONTRASTS = ("flair", "t1")
ORIENTATIONS = ("LPS", "SAR", "PIL")


def dice(first, second):
    return 2 * np.count_nonzero(first & second) / (np.count_nonzero(first) + np.count_nonzero(second))


def volumes(seed, number, scanner):
    """Both contrasts as perfect preprocessing leaves them, the brain and the true ventricles."""
    subject = simulate(seed, number, scanner_named(scanner))
    affine = subject.flair.grid.affine
    arrays = (subject.ideal_flair, subject.ideal_t1w, subject.brain, ventricles_of(seed, number))
    names = ("flair", "t1", "brain", "truth")
    return {name: Volume(array, affine) for name, array in zip(names, arrays, strict=True)}


@pytest.fixture(scope="module")
def head():
    return volumes(SEED, NUMBER, "standard-3t")


@pytest.fixture(scope="module")
def found(head):
    return {contrast: find_ventricles(head[contrast], head["brain"]) for contrast in CONTRASTS}


def oriented(volume, codes):
    """The same volume, its axes running another way."""
    turn = nibabel.orientations.ornt_transform(
        nibabel.orientations.io_orientation(volume.affine), nibabel.orientations.axcodes2ornt(codes)
    )
    affine = volume.affine @ nibabel.orientations.inv_ornt_aff(turn, volume.voxels.shape)
    return Volume(nibabel.orientations.apply_orientation(volume.voxels, turn), affine)


def resampled(volume, spacing):
    """A volume on voxels of another size."""
    factors = np.divide(volume.spacing, spacing)
    order = 0 if volume.voxels.dtype == bool else 1
    widths = [max(1, round(1 / factor)) for factor in factors]  # thick slices average
    voxels = volume.voxels.astype(np.float32)
    voxels = ndimage.uniform_filter(voxels, widths) if order else voxels
    zoomed = ndimage.zoom(voxels, factors, order=order, grid_mode=True, mode="nearest")
    size = np.multiply(volume.spacing, volume.voxels.shape) / zoomed.shape
    affine = volume.affine.copy()
    affine[:3, :3] = np.diag(size)
    return Volume(zoomed > 0.5 if volume.voxels.dtype == bool else zoomed, affine)


@pytest.mark.parametrize("contrast", CONTRASTS)
def test_the_true_ventricles_are_found(head, found, contrast):
    assert dice(found[contrast].voxels, head["truth"].voxels) > 0.9
    assert found[contrast].same_grid(head[contrast])


def test_flair_and_t1_agree(found):
    assert dice(found["flair"].voxels, found["t1"].voxels) > 0.93


@pytest.mark.parametrize("codes", ORIENTATIONS)
def test_the_way_the_axes_run_changes_no_voxel(head, found, codes):
    turned = find_ventricles(oriented(head["t1"], codes), oriented(head["brain"], codes))
    assert np.array_equal(canonical(turned).voxels, found["t1"].voxels)


@pytest.mark.parametrize("codes", ORIENTATIONS)
def test_turning_back_undoes_canonical(codes):
    volume = oriented(Volume(np.arange(24.0).reshape(2, 3, 4), np.diag([1.0, 2.0, 3.0, 1.0])), codes)
    assert np.array_equal(turned_back(canonical(volume).voxels, volume).voxels, volume.voxels)


@pytest.mark.parametrize("spacing", [(0.9, 0.9, 7.0), (1.5, 1.5, 1.5)])
def test_other_voxels_find_the_same_ventricles(head, spacing):
    scan, brain, truth = (resampled(head[name], spacing) for name in ("flair", "brain", "truth"))
    assert dice(find_ventricles(scan, brain).voxels, truth.voxels) > 0.8


def test_a_head_that_is_turned_is_followed(head, found):
    cosine, sine = np.cos(np.radians(18)), np.sin(np.radians(18))
    nod = np.array([[1, 0, 0, 0], [0, cosine, -sine, 0], [0, sine, cosine, 0], [0, 0, 0, 1]])
    turned = {name: Volume(head[name].voxels, nod @ head[name].affine) for name in ("flair", "brain")}
    assert dice(find_ventricles(turned["flair"], turned["brain"]).voxels, found["flair"].voxels) > 0.94


def test_fluid_below_the_ventricles_is_left_alone(head, found):
    truth, fluid = head["truth"].voxels, np.median(head["flair"].voxels[head["truth"].voxels])
    nearest = ndimage.distance_transform_edt(~truth, sampling=(1, 1, 3), return_distances=False, return_indices=True)
    below = (nearest[2] - np.arange(truth.shape[2]) >= 1) & head["brain"].voxels & ~truth
    flooded = head["flair"].with_voxels(np.where(below, fluid, head["flair"].voxels))
    more = find_ventricles(flooded, head["brain"]).voxels & ~found["flair"].voxels
    assert np.count_nonzero(more) < 0.05 * np.count_nonzero(truth)


def test_a_speck_is_no_ventricle(head, found):
    depth = ndimage.distance_transform_edt(head["truth"].voxels, sampling=(1, 1, 3))
    x, y, z = np.unravel_index(depth.argmax(), depth.shape)
    voxels = head["flair"].voxels.copy()
    fluid = voxels[x, y, z]
    voxels[x - 9 : x + 10, y - 9 : y + 10, z - 3 : z + 4] = 0
    voxels[x - 1 : x + 2, y - 1 : y + 2, z] = fluid
    assert found["flair"].voxels[x, y, z]
    assert not find_ventricles(head["flair"].with_voxels(voxels), head["brain"]).voxels[x, y, z]


@pytest.mark.parametrize("size", [0.35, 2.0])  # of the head: ventricles of less than 3 and of more than 150 ml
def test_ventricles_of_an_incredible_volume_are_none(head, size):
    scaled = {name: Volume(head[name].voxels, np.diag([size] * 3 + [1]) @ head[name].affine) for name in head}
    assert find_ventricles(scaled["flair"], scaled["brain"]) is None


def test_nothing_credible_is_none(head):
    scan, brain = head["flair"], head["brain"]
    noise = np.random.default_rng(0).standard_normal(scan.voxels.shape).astype(np.float32)
    nowhere = np.zeros_like(brain.voxels)
    speck = nowhere.copy()
    speck[100:104, 100:104, 20:22] = True
    assert find_ventricles(scan.with_voxels(noise), brain) is None
    assert find_ventricles(scan.with_voxels(-scan.voxels), brain) is None  # fluid is bright on T2
    assert find_ventricles(scan.with_voxels(np.zeros_like(noise)), brain) is None
    assert find_ventricles(scan, brain.with_voxels(nowhere)) is None
    assert find_ventricles(scan, brain.with_voxels(speck)) is None


def test_a_brain_that_does_not_belong_to_the_scan_is_refused(head):
    with pytest.raises(ValueError, match="boolean mask on the grid"):
        find_ventricles(head["flair"], head["brain"].with_voxels(head["brain"].voxels.astype(np.uint8)))
    with pytest.raises(ValueError, match="boolean mask on the grid"):
        find_ventricles(head["flair"], Volume(head["brain"].voxels, np.eye(4)))


@pytest.mark.slow
@pytest.mark.parametrize("scanner", sorted(SCANNERS))
@pytest.mark.parametrize("number", [1, 2, 3])
def test_every_scanner(scanner, number):
    head = volumes(11, number, scanner)
    for contrast in CONTRASTS:
        assert dice(find_ventricles(head[contrast], head["brain"]).voxels, head["truth"].voxels) > 0.88


@pytest.mark.slow
def test_a_large_scan_takes_less_than_three_seconds(head):
    scan, brain = (resampled(head[name], (0.83, 1.0, 0.8)) for name in ("t1", "brain"))
    assert scan.voxels.shape == (255, 256, 180)
    start = time.perf_counter()
    assert find_ventricles(scan, brain) is not None
    assert time.perf_counter() - start < 3
