"""A scan stored with other axes gives the same lesions in the world, to the bit."""

from itertools import permutations, product

import nibabel
import numpy as np
import pytest
from nibabel import orientations
from scipy import ndimage

import heads
import networks_by_hand
from steelyard.errors import UserError
from steelyard.imaging.predict import Options, Scan, find_scans, load_trained_network, outputs, predict_scan
from steelyard.imaging.predict.pipeline import find_brain, upright_at_origin
from steelyard.imaging.preprocess.brain import NoBrainError
from steelyard.imaging.scans.background import is_stripped, stripped_brain
from steelyard.imaging.scans.volumes import Volume, canonical, read_scan, turned_back

QUICK = Options(bias="skip", normalise="skip")
TURNS = [
    np.array(list(zip(axes, flips, strict=True)))
    for axes in permutations(range(3))
    for flips in product((1, -1), repeat=3)
]
OBLIQUE = heads.motion(degrees=7.0) @ np.diag([0.999, 1.001, 1.0, 1.0]) @ heads.AFFINE


def turned(volume, turn):
    back = orientations.inv_ornt_aff(turn, volume.voxels.shape)
    return Volume(orientations.apply_orientation(volume.voxels, turn), volume.affine @ back)


def test_all_48_ways_to_store_a_scan(run, stripped, tmp_path):
    model = load_trained_network(run)
    own = read_scan(stripped("sub-1_FLAIR.nii", affine=OBLIQUE))
    lesion = Volume(heads.tissue() == 5, OBLIQUE)
    first = predict_scan(tmp_path / "in/sub-1_FLAIR.nii", model, QUICK)
    for turn in TURNS:
        path = heads.save(tmp_path / "sub-1_FLAIR.nii", turned(own, turn))
        found = predict_scan(path, model, QUICK)
        again = read_scan(path)
        assert np.array_equal(turned_back(found.lesions.mask.voxels, again).voxels, turned(lesion, turn).voxels)
        assert np.array_equal(found.probabilities.voxels, first.probabilities.voxels)
        assert found.lesions.volumes_ml == first.lesions.volumes_ml
        assert found.lesions.deep_ml == first.lesions.deep_ml


@pytest.mark.parametrize("turn", TURNS[5::13])
def test_files_lie_where_the_scan_lies(run, stripped, tmp_path, turn):
    path = heads.save(tmp_path / "sub-1_FLAIR.nii.gz", turned(read_scan(stripped("a.nii", affine=OBLIQUE)), turn))
    image = nibabel.load(path)
    image.header.set_qform(OBLIQUE @ np.diag([1, 1, 1, 1]), code=3)
    image.header.set_sform(image.affine, code=2)
    image.to_filename(path)
    found = predict_scan(path, load_trained_network(run), QUICK)
    (scan,) = find_scans([path])
    outputs.write_scan(tmp_path / "out", scan, found, common={}, picture=b"")
    given = nibabel.load(path)
    for name, kind in (("mask", np.uint8), ("probseg", np.float32)):
        written = nibabel.load(tmp_path / f"out/sub-1/anat/sub-1_space-FLAIR_label-WMH_{name}.nii.gz")
        assert written.get_data_dtype() == kind
        assert np.array_equal(written.affine, given.affine)
        for form in ("get_qform", "get_sform"):
            assert getattr(written.header, form)(coded=True)[1] == getattr(given.header, form)(coded=True)[1]
            assert np.array_equal(getattr(written.header, form)(), getattr(given.header, form)())
    assert np.array_equal(written.get_fdata() >= 0.5, turned(Volume(heads.tissue() == 5, OBLIQUE), turn).voxels)


@pytest.mark.parametrize("codes", [(0, 0), (1, 0), (0, 1)])
def test_headers_with_one_form_or_none_keep_their_place(run, tmp_path, stripped, codes):
    path = stripped("sub-1_FLAIR.nii.gz")
    image = nibabel.load(path)
    image.header["qform_code"], image.header["sform_code"] = codes
    plain = nibabel.Nifti1Image(image.get_fdata(dtype=np.float32), None, image.header)
    plain.to_filename(path)
    found = predict_scan(path, load_trained_network(run), QUICK)
    outputs.write_scan(tmp_path / "out", find_scans([path])[0], found, common={}, picture=b"")
    (mask,) = (tmp_path / "out").rglob("*_mask.nii.gz")
    assert np.array_equal(nibabel.load(mask).affine, nibabel.load(path).affine)


def test_the_upright_scan_knows_nothing_of_the_header_but_spacing(tmp_path):
    scan = heads.scan("t1", heads.tissue(), affine=OBLIQUE)
    for turn in TURNS[::7]:
        image = nibabel.Nifti1Image(turned(scan, turn).voxels, turned(scan, turn).affine)
        image.set_qform(image.affine, code=1)  # a quaternion in 32 bits: the axes' lengths come out a little different
        image.set_sform(None, code=0)
        image.to_filename(tmp_path / "a.nii")
        found = upright_at_origin(read_scan(tmp_path / "a.nii"))
        assert np.array_equal(found.voxels, canonical(scan).voxels)
        assert np.array_equal(found.affine, upright_at_origin(scan).affine)
        assert np.array_equal(found.affine, np.diag(np.diag(found.affine)))


def test_stripped_scans_are_told_from_heads(stripped):
    scan = read_scan(stripped("a.nii"))
    normalised = scan.with_voxels(np.where(scan.voxels == 0, 0, scan.voxels - 180).astype(np.float32))
    assert is_stripped(scan)
    assert is_stripped(normalised)
    assert find_brain(normalised, "auto")[1] == "stripped"
    assert np.array_equal(find_brain(normalised, "auto")[0].voxels, heads.brain(heads.tissue()).voxels)
    whole = heads.scan("flair", heads.tissue())
    assert not is_stripped(whole)
    silent = whole.with_voxels(np.where(heads.tissue() == 0, 0, whole.voxels))
    assert np.count_nonzero(silent.voxels) < 0.6 * silent.voxels.size
    assert not is_stripped(silent)
    tiny = Volume(scan.voxels, np.diag([1.0, 1, 1, 1]))  # 36 ml
    assert not is_stripped(tiny)


def test_holes_in_a_stripped_brain_belong_to_it(stripped):
    scan = read_scan(stripped("a.nii"))
    holed = scan.voxels.copy()
    holed[28:32, 34:38, 20:24] = 0
    assert find_brain(scan.with_voxels(holed), "skip")[0].voxels[30, 36, 22]


def test_holes_are_filled_as_on_the_whole_grid_and_stay_open_at_its_border():
    noise = ndimage.gaussian_filter(np.random.default_rng(1).normal(size=(24, 26, 28)), 1.0)
    pieces = noise > -0.5 * noise.std()
    pieces[:4] = pieces[:, :3] = pieces[:, :, 20:] = False
    whole = ndimage.binary_fill_holes(pieces)
    assert np.count_nonzero(whole) > np.count_nonzero(pieces)
    scan = Volume(np.where(pieces, 100.0, 0.0).astype(np.float32), np.eye(4))
    assert np.array_equal(stripped_brain(scan).voxels, whole)


@pytest.mark.parametrize("frame", [networks_by_hand.Frame(), networks_by_hand.Frame(shape=(16, 16))])
def test_frames_without_size_and_frames_too_small_serve_any_scan(tmp_path, stripped, frame):
    run = networks_by_hand.write_run(tmp_path / "run", settings=networks_by_hand.config(frame))
    found = predict_scan(stripped("a.nii"), load_trained_network(run), QUICK)
    assert np.array_equal(found.lesions.mask.voxels, canonical(Volume(heads.tissue() == 5, heads.AFFINE)).voxels)


def test_small_lesions_are_dropped_and_the_threshold_counts(run, stripped):
    path, model = stripped("a.nii"), load_trained_network(run)
    everything = predict_scan(path, model, QUICK)
    size = everything.lesions.total_ml
    for smallest, count in ((size - 0.01, 1), (size + 0.01, 0)):
        options = Options(bias="skip", normalise="skip", smallest_ml=smallest)
        assert predict_scan(path, model, options).lesions.count == count
    for level, other in ((0.001, 0.999),):
        low = predict_scan(path, model, Options(bias="skip", normalise="skip", threshold=level))
        high = predict_scan(path, model, Options(bias="skip", normalise="skip", threshold=other))
        assert low.lesions.total_ml >= everything.lesions.total_ml >= high.lesions.total_ml
        assert np.array_equal(high.lesions.mask.voxels, high.probabilities.voxels >= np.float32(other))


def test_scans_without_brain_say_so(run, tmp_path, monkeypatch):
    def find_none(scan):
        raise NoBrainError("no brain was found in it")

    monkeypatch.setattr("steelyard.imaging.predict.pipeline.extract_brain", find_none)
    path = heads.save(tmp_path / "a.nii", heads.scan("flair", heads.tissue()))
    with pytest.raises(UserError, match=r"a\.nii: no brain was found in it\.$"):
        predict_scan(path, load_trained_network(run), Options())


def test_names_of_results_do_not_depend_on_the_folder(tmp_path):
    assert Scan(path=tmp_path / "x.nii", label="1").key == "sub-1_space-orig"
