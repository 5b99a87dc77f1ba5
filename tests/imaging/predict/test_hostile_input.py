"""Scans, runs and names may come from anybody: nothing of them is run, and nothing is written outside the results."""

import csv
import json
import pickle
import resource
from pathlib import Path

import nibabel
import pytest

import networks_by_hand
from steelyard.errors import UserError
from steelyard.imaging.predict import Options, find_scans, load_trained_network, predict
from steelyard.imaging.predict.table import COLUMNS, NUMBERS, Row, read_row, write_table

QUICK = Options(bias="skip", normalise="skip")
NAMES = [
    "=HYPERLINK(1)_FLAIR.nii.gz",
    "@SUM(1)_FLAIR.nii.gz",
    "+1-FLAIR.nii.gz",
    "-1.nii.gz",
    "<img src=x onerror=alert(1)>_FLAIR.nii.gz",
    "a\nb{{7*7}}_FLAIR.nii.gz",
    "sub-.._ses-..%2f.._FLAIR.nii.gz",
    "..nii.gz",
    "\t=1_T1w.nii.gz",
]


def everything(root):
    return set(root.rglob("*"))


def test_hostile_names_are_text_and_stay_within_the_results(run, stripped, tmp_path):
    paths = [stripped(name) for name in NAMES]
    before, out = everything(tmp_path), tmp_path / "out"
    found = list(predict(run, find_scans(paths), out, options=QUICK))
    assert {outcome.status for outcome in found} == {"done"}
    assert all(path == out or out in path.parents for path in everything(tmp_path) - before)
    page = (out / "index.html").read_text()
    assert "<img src=x" not in page
    assert "&lt;img src=x onerror" in page
    assert "b{{7*7}}_FLAIR" in page
    with (out / "volumes.csv").open(newline="") as stream:
        rows = list(csv.reader(stream))
    assert len(rows) == 1 + len(NAMES) == (out / "volumes.csv").read_text().count("\n")
    assert not [cell for row in rows for cell in row if cell[:1] in tuple("=+-@\t\r") and cell]
    assert "'=HYPERLINK(1)_FLAIR.nii.gz" in {row[COLUMNS.index("source")] for row in rows}


def test_failures_of_hostile_names_are_one_line(run, tmp_path):
    path = tmp_path / "in" / "a\nfailed: b_FLAIR.nii.gz"
    path.parent.mkdir()
    path.write_bytes(b"nothing")
    (outcome,) = predict(run, find_scans([path]), tmp_path / "out", options=QUICK)
    assert outcome.status == "failed"
    assert "\n" not in outcome.message


def test_words_in_headers_are_not_handed_on(run, stripped, tmp_path):
    path = stripped("sub-1_FLAIR.nii.gz")
    image = nibabel.load(path)
    image.header["descrip"] = b"<script>alert(1)</script>"
    image.header["aux_file"] = b"../../etc/passwd"
    image.header["intent_name"] = b"=cmd"
    image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"John Doe, 1 Jan 1950"))
    image.to_filename(path)
    list(predict(run, find_scans([path]), tmp_path / "out", options=QUICK))
    for written in (tmp_path / "out").rglob("*.nii.gz"):
        header = nibabel.load(written).header
        assert not any(header[name].item() for name in ("descrip", "aux_file", "intent_name"))
        assert not header.extensions
    assert "<script>" not in (tmp_path / "out/index.html").read_text()


def altered(tmp_path, **settings):
    run = networks_by_hand.write_run(tmp_path / "run")
    held = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(held | settings))
    return run


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"model": "os:system"}, "code of somebody"),
        ({"model": "os:system", "options": {"command": "touch owned"}}, "code of somebody"),
        ({"model": 5}, "model must be a str"),
        ({"model": {}}, "model must be a str"),
        ({"width": 10**6}, "width must be a whole number"),
        ({"width": 90_000}, "another architecture"),
        ({"width": "64"}, "width must be a whole number"),
        ({"options": 5}, "options must be a dict"),
        ({"options": {"channels": 10**9}}, "another architecture|model unet"),
        ({"slices": 5}, "slices must be a SliceChoice"),
        ({"slices": {"frame": {"shape": [10**6, 10**6]}}}, "two whole numbers"),
        ({"slices": {"frame": {"shape": ["a", "b"]}}}, "two whole numbers"),
        ({"slices": {"frame": {"shape": [64.5, 64]}}}, "two whole numbers"),
        ({"slices": {"frame": {"pixel_mm": "x"}}}, "pixel_mm must be a number"),
        ({"surprise": 1}, "has no setting"),
    ],
)
def test_configs_are_refused_in_one_line(tmp_path, settings, match):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=match) as caught:
        load_trained_network(altered(tmp_path, **settings))
    assert "config.json" in str(caught.value) or "safetensors" in str(caught.value) or "unet" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB


@pytest.mark.parametrize("text", ["[]", "{", "[" * 10_000, "null", '{"width": NaN}'])
def test_what_is_no_config_is_refused(tmp_path, text):
    run = networks_by_hand.write_run(tmp_path / "run")
    (run / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"config\.json"):
        load_trained_network(run)


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    "make", [pickle.dumps, lambda _: b"", lambda _: b"\xff" * 64, lambda _: (2**60).to_bytes(8, "little") + b"{"]
)
def test_weights_that_are_no_numbers_are_refused_and_not_run(tmp_path, make):
    run = networks_by_hand.write_run(tmp_path / "run")
    (run / "last.safetensors").write_bytes(make(Payload(tmp_path / "owned")))
    with pytest.raises(UserError, match="cannot be read as safetensors"):
        load_trained_network(run)
    assert not (tmp_path / "owned").exists()


def test_code_runs_only_if_the_user_names_it(tmp_path):
    run = altered(tmp_path, model="antigravity_of_nobody:Net")
    with pytest.raises(UserError, match="--model antigravity_of_nobody:Net"):
        load_trained_network(run)
    with pytest.raises(UserError, match="cannot be imported"):
        load_trained_network(run, model="antigravity_of_nobody:Net")


NO_ROWS = [{"wmh_ml": "<b>"}, {"scan": 5}, {"extra": 1}, {"threshold": None}, {"wmh_ml": 10**400}, {"brain_ml": -1.0}]


@pytest.mark.parametrize("change", [*NO_ROWS, {"wmh_ml": float("nan")}])
def test_records_that_were_tampered_with_are_no_rows(change):
    row = {name: getattr(Row(scan="a", source="a", contrast=""), name) for name in COLUMNS}
    row |= {name: 1.0 for name in NUMBERS if name != "deep_ml"}
    assert read_row(row).scan == "a"
    with pytest.raises(ValueError, match=r"row|cannot be|is missing"):
        read_row(row | change)


def test_a_tampered_record_costs_its_scan_only(run, stripped, tmp_path):
    paths, out = [stripped("sub-1_FLAIR.nii"), stripped("sub-2_FLAIR.nii")], tmp_path / "out"
    list(predict(run, find_scans(paths), out, options=QUICK))
    record = out / "sub-1/anat/sub-1_space-FLAIR_label-WMH_mask.json"
    held = json.loads(record.read_text())
    held["Steelyard"]["Outputs"] = {"../../etc/passwd": 5}
    record.write_text(json.dumps(held))
    assert [one.status for one in predict(run, find_scans(paths), out, options=QUICK)] == ["done", "unchanged"]


def test_cells_never_begin_a_formula():
    text = write_table([Row(scan=f"{sign}1", source=f"{sign}cmd", contrast="", problem=f"{sign}x") for sign in "=+-@"])
    for row in list(csv.reader(text.splitlines()))[1:]:
        assert all(cell[:2] in ("'=", "'+", "'-", "'@") for cell in (row[0], row[1], row[-1]))
