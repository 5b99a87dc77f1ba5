"""Records of preprocessed subjects that anybody may have changed."""

import json

import pytest

from steelyard.files.ownership import write_results
from steelyard.imaging.datasets.subjects import Subject
from steelyard.imaging.preprocess import outputs

SUBJECT = Subject(name="1", label="1", flair="sub-1_FLAIR.nii.gz")
WHOLE = {"Fingerprint": "x", "Measures": {"brain_ml": 1400.0}, "Seconds": {"total": 2.5}, "Outputs": {}}


def written(out, content):
    path = outputs.record_path(out, SUBJECT)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))


def sealed(out, content):
    """A record as a run writes it, with the digest of itself."""
    path = outputs.record_path(out, SUBJECT)
    write_results(out, path, {}, content)
    return path


def test_a_whole_record_is_read(tmp_path):
    sealed(tmp_path, {"Steelyard": WHOLE | {"Measures": {"brain_ml": 1400.0, "moved_mm": float("nan")}}})
    record = outputs.read_record(tmp_path, SUBJECT)
    assert (record.fingerprint, record.seconds) == ("x", 2.5)
    assert record.measures["brain_ml"] == 1400.0


@pytest.mark.parametrize(
    "change",
    [
        {"Measures": None},
        {"Measures": {"brain_ml": "x"}},
        {"Measures": {"brain_ml": 1e308}},
        {"Measures": {"brain_ml": [1]}},
        {"Seconds": 3},
        {"Seconds": {"total": "long"}},
    ],
)
def test_a_damaged_record_vouches_for_nothing(tmp_path, change):
    sealed(tmp_path, {"Steelyard": WHOLE | change})
    assert outputs.read_record(tmp_path, SUBJECT) is None


@pytest.mark.parametrize("content", [[], 3, {"Steelyard": []}, {"Steelyard": {"Outputs": [3]}}, {"Steelyard": None}])
def test_what_is_no_record_names_no_files(tmp_path, content):
    written(tmp_path, content)
    assert outputs.read_record(tmp_path, SUBJECT) is None
    assert outputs.files_by_subject(tmp_path) == {}
    assert outputs.files_of(tmp_path, "sub-1") == []


def test_a_record_that_somebody_changed_vouches_for_nothing(tmp_path):
    path = sealed(tmp_path, {"Steelyard": WHOLE})
    assert outputs.read_record(tmp_path, SUBJECT) is not None
    path.write_text(path.read_text().replace("1400.0", "1401.0"))
    assert outputs.read_record(tmp_path, SUBJECT) is None
