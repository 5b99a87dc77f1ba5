"""What docs/preprocessing.md claims, on real scans beside the project (or at STEELYARD_DATA) and on phantoms."""

import json
import os
from functools import cache
from pathlib import Path

import nibabel
import numpy as np
import pytest
import SimpleITK as sitk

from steelyard.imaging.datasets.bids import read_bids
from steelyard.imaging.datasets.subjects import Subject
from steelyard.imaging.preprocess import Settings, prepare, preprocess
from steelyard.imaging.preprocess.brain import extract_brain
from steelyard.imaging.preprocess.register import dice
from steelyard.imaging.scans.grids import mean_displacement, resample_scan, to_matrix
from steelyard.imaging.scans.volumes import Volume, read_mask, read_scan

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
DATA = Path(os.environ.get("STEELYARD_DATA", Path(__file__).resolve().parents[4] / "shared" / "data"))


SEED = 11


def data(name: str) -> Path:
    for folder in (DATA / name, DATA.parents[2] / "shared" / "data" / name):
        if folder.is_dir():
            return folder
    pytest.skip(f"{name} is not beside the project; set STEELYARD_DATA to where it is")


@pytest.fixture(autouse=True)
def _cores():
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(2)


@cache
def prepared(subject: Subject):
    return prepare(subject, Settings())


def reference(root: Path, pipeline: str, subject: Subject):
    name = f"{subject.key}_from-T1w_to-FLAIR_mode-image_xfm.txt"
    return to_matrix(sitk.ReadTransform(str(root / "derivatives" / pipeline / subject.folder / name)))


@pytest.mark.parametrize("index", range(3))
def test_real_pairs_are_aligned_to_a_millimetre(index):
    root = data("raw-t1-flair")
    subject = read_bids(root).subjects[index]
    done = prepared(subject)
    assert mean_displacement(done.alignment.matrix, reference(root, "reference", subject), done.brain) <= 1.0


@pytest.mark.parametrize("index", range(9))
def test_real_brains_and_data_that_is_aligned_already(index):
    subject = read_bids(data("ms-t1-flair")).subjects[index]
    done = prepared(subject)
    supplied = read_mask(subject.brain).voxels
    assert done.alignment.unchanged
    assert dice(done.brain.voxels, supplied) > 0.87
    assert dice(extract_brain(read_scan(subject.t1)).voxels, supplied) > 0.87
    assert done.overlap > 0.96


def test_t1_and_flair_of_two_people_are_told_apart(tmp_path):
    first, second = read_bids(data("ms-t1-flair")).subjects[:2]
    mixed = Subject(name="x", label="x", flair=first.flair, t1=second.t1)
    with pytest.raises(ValueError, match="cannot be of the same head"):
        prepare(mixed, Settings())


def test_one_real_subject_takes_at_most_a_minute(tmp_path):
    root = data("raw-t1-flair")
    dataset = read_bids(root)
    one = type(dataset)(root, dataset.subjects[1:2], (), ())
    assert [outcome.status for outcome in preprocess(one, tmp_path / "out", settings=Settings())] == ["done"]
    (beside,) = (tmp_path / "out").rglob("*_FLAIR.json")
    assert json.loads(beside.read_text())["Steelyard"]["Seconds"]["total"] <= 60


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory):
    phantom = pytest.importorskip("steelyard.imaging.phantom")
    root = tmp_path_factory.mktemp("phantoms") / "bids"
    list(phantom.write_cohort(root, phantom.Cohort(subjects=3, seed=SEED)))
    return root


def white_matter(index: int, done):
    """The simulator's own, within the brain that was found."""
    phantom = pytest.importorskip("steelyard.imaging.phantom")
    return phantom.simulate(SEED, index + 1, phantom.scanner_named("standard-3t")).white & done.brain.voxels


@pytest.mark.parametrize("index", range(3))
def test_phantoms_are_aligned_stripped_and_corrected(index, phantoms):
    subject = read_bids(phantoms).subjects[index]
    done = prepared(subject)
    truth = phantoms / "derivatives" / "truth" / subject.folder
    assert mean_displacement(done.alignment.matrix, reference(phantoms, "truth", subject), done.brain) <= 0.3
    assert dice(done.brain.voxels, done.masks["brain"].voxels) >= 0.96
    white = white_matter(index, done)
    for contrast, suffix in (("flair", "FLAIR"), ("t1", "T1w")):
        image = nibabel.load(truth / f"{subject.key}_desc-biasfield_{suffix}.nii.gz")
        field = Volume(image.get_fdata().astype(np.float32), image.affine)
        if contrast == "t1":
            field = resample_scan(field, done.brain, done.alignment.matrix)
        true, found = np.log(field.voxels[white]), np.log(done.scans[contrast].field[white])
        assert (true - found).var() <= 0.2 * true.var()


@pytest.mark.parametrize("index", range(3))
def test_white_matter_lies_within_one_deviation_of_the_stripe(index, phantoms):
    subject = read_bids(phantoms).subjects[index]
    done = prepared(subject)
    white = white_matter(index, done)
    medians = [abs(np.median(channel.ready.voxels[white])) for channel in done.scans.values()]
    assert max(medians) <= 1.0
