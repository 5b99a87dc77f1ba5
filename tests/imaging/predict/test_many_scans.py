import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import nibabel
import numpy as np
import pytest

import heads
import networks_by_hand
from steelyard.errors import UserError
from steelyard.files import atomic, ownership
from steelyard.imaging.datasets.bids import read_bids
from steelyard.imaging.predict import Options, cohort, find_scans, predict
from steelyard.imaging.predict.page import render_page
from steelyard.imaging.predict.table import Row, write_table

QUICK = Options(bias="skip", normalise="skip")


def table(out):
    with (out / "volumes.csv").open(newline="") as stream:
        return {row["scan"]: row for row in csv.DictReader(stream)}


def statuses(run, paths, out, options=QUICK, **named):
    found = predict(run, find_scans(paths), out, options=options, **named)
    return {outcome.key.removesuffix("_space-FLAIR"): outcome.status for outcome in found}


@pytest.fixture
def pair(stripped):
    return [stripped("sub-1_FLAIR.nii.gz"), stripped("sub-2_FLAIR.nii.gz", size=1.05)]


def test_every_scan_gets_its_files_a_row_and_a_picture(run, pair, tmp_path, pictures):
    out = tmp_path / "out"
    assert statuses(run, pair, out) == {"sub-1": "done", "sub-2": "done"}
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    own = {
        f"sub-1/anat/sub-1_space-FLAIR_label-WMH_{name}"
        for name in ("mask.nii.gz", "mask.json", "probseg.nii.gz", "probseg.json")
    }
    assert own | {"volumes.csv", "index.html", "dataset_description.json", "figures/sub-1_space-FLAIR.jpg"} <= names
    row = table(out)["sub-1_space-FLAIR"]
    lesion_ml = float((heads.tissue() == 5).sum()) * 31.5 / 1000
    assert float(row["wmh_ml"]) == pytest.approx(lesion_ml, abs=1e-4)
    assert float(row["periventricular_ml"]) + float(row["deep_ml"]) == pytest.approx(lesion_ml, abs=1e-3)
    assert (row["lesions"], row["contrast"], row["threshold"], row["brain"]) == ("1", "flair", "0.5", "stripped")
    assert float(row["sizes_ml"]) == pytest.approx(lesion_ml, rel=1e-3)
    beside = json.loads((out / "sub-1/anat/sub-1_space-FLAIR_label-WMH_mask.json").read_text())
    assert (out / beside["Sources"][0]).resolve() == pair[0].resolve()
    assert beside["Steelyard"]["Model"]["SHA256"].startswith(row["weights"])
    assert beside["Steelyard"]["Seconds"]["total"] >= 0
    assert (out / "figures/sub-1_space-FLAIR.jpg").stat().st_size > 20_000
    page = (out / "index.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 2
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)


def test_a_second_run_does_nothing_and_a_changed_one_does(run, pair, stripped, tmp_path):
    out = tmp_path / "out"
    statuses(run, pair, out)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.rglob("sub-*") if path.is_file()}
    csv_before = (out / "volumes.csv").read_bytes()
    assert statuses(run, pair, out) == {"sub-1": "unchanged", "sub-2": "unchanged"}
    assert before == {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in before}
    assert (out / "volumes.csv").read_bytes() == csv_before
    stripped("sub-1_FLAIR.nii.gz", size=1.1)
    assert statuses(run, pair, out) == {"sub-1": "done", "sub-2": "unchanged"}
    (out / "sub-2/anat/sub-2_space-FLAIR_label-WMH_probseg.nii.gz").unlink()
    assert statuses(run, pair, out) == {"sub-1": "unchanged", "sub-2": "done"}
    other = Options(bias="skip", normalise="skip", threshold=0.4)
    assert statuses(run, pair, out, other) == {"sub-1": "done", "sub-2": "done"}
    run = networks_by_hand.write_run(tmp_path / "run", level=194.0)
    assert statuses(run, pair, out, other) == {"sub-1": "done", "sub-2": "done"}


def test_results_gather_in_one_folder(run, pair, tmp_path):
    out = tmp_path / "out"
    statuses(run, pair[:1], out)
    statuses(run, pair[1:], out)
    assert list(table(out)) == ["sub-1_space-FLAIR", "sub-2_space-FLAIR"]


def test_a_scan_that_fails_stops_no_other_and_keeps_no_old_result(run, pair, tmp_path):
    out = tmp_path / "out"
    statuses(run, pair, out)
    pair[0].write_bytes(b"no longer a scan")
    assert statuses(run, pair, out) == {"sub-1": "failed", "sub-2": "unchanged"}
    rows = table(out)
    assert rows["sub-1_space-FLAIR"]["status"] == "failed"
    assert "sub-1_FLAIR.nii.gz" in rows["sub-1_space-FLAIR"]["problem"]
    assert rows["sub-1_space-FLAIR"]["wmh_ml"] == ""
    assert not (out / "sub-1").exists()
    assert (out / ".withdrawn/sub-1/anat/sub-1_space-FLAIR_label-WMH_mask.nii.gz").is_file()
    page = (out / "index.html").read_text()
    assert page.index("Failed") < page.index("<table>")


@pytest.mark.parametrize("fatal", [1, 4, 7])
def test_a_run_that_dies_between_two_files_leaves_no_half(run, pair, tmp_path, monkeypatch, fatal):
    """It dies while files are written, while they get their names, and before the record gets its own."""
    out = tmp_path / "out"
    statuses(run, pair[:1], out)
    steps = []

    def dying(real):
        def call(*arguments, **named):
            steps.append(arguments)
            if len(steps) > fatal:
                raise KeyboardInterrupt
            return real(*arguments, **named)

        return call

    other = networks_by_hand.write_run(tmp_path / "run", level=150.0)
    with monkeypatch.context() as patch:
        for name in ("stage", "rename"):
            patch.setattr(ownership, name, dying(getattr(ownership, name)))
        patch.setattr(ownership, "discard", lambda unfinished: None)
        with pytest.raises(KeyboardInterrupt):
            statuses(other, pair[:1], out)
    assert statuses(run, pair[1:], out) == {"sub-2": "done"}
    assert not [path for path in out.rglob(".*") if atomic.is_unfinished(path)]
    left = {"sub-1_space-FLAIR"} if fatal <= 4 else set()  # what was whole stays
    assert set(table(out)) == left | {"sub-2_space-FLAIR"}
    assert {path.stem for path in (out / "figures").iterdir()} == left | {"sub-2_space-FLAIR"}
    assert statuses(other, pair[:1], out) == {"sub-1": "done"}
    assert not (out / ".withdrawn").exists()


def test_what_others_put_beside_the_results_stays_and_what_they_changed_is_moved(run, pair, tmp_path):
    out = tmp_path / "out"
    statuses(run, pair, out)
    mask = out / "sub-1/anat/sub-1_space-FLAIR_label-WMH_mask.nii.gz"
    manual = mask.with_name("sub-1_space-FLAIR_desc-manual_label-WMH_mask.nii.gz")
    stranger = out / "sub-9/anat/sub-9_label-WMH_mask.nii.gz"
    stranger.parent.mkdir(parents=True)
    for path in (manual, stranger, out / "figures/mine.jpg"):
        path.write_bytes(b"mine")
    corrected = bytes(len(mask.read_bytes()))  # of the same size
    mask.write_bytes(corrected)
    outcomes = {outcome.key: outcome for outcome in predict(run, find_scans(pair), out, options=QUICK)}
    assert outcomes["sub-1_space-FLAIR"].status == "done"
    assert outcomes["sub-1_space-FLAIR"].message == f"{mask.name}: changed by somebody else, moved to {out}/.withdrawn."
    assert (outcomes["sub-2_space-FLAIR"].status, outcomes["sub-2_space-FLAIR"].message) == ("unchanged", "")
    assert (out / ".withdrawn" / mask.relative_to(out)).read_bytes() == corrected
    assert nibabel.load(mask).get_fdata().any()
    assert all(path.read_bytes() == b"mine" for path in (manual, stranger, out / "figures/mine.jpg"))
    assert list(table(out)) == ["sub-1_space-FLAIR", "sub-2_space-FLAIR"]


def test_links_among_the_results_lead_nobody_astray(run, pair, tmp_path):
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    statuses(run, pair[1:], out)
    (elsewhere / "anat").mkdir(parents=True)
    (elsewhere / "anat/sub-1_label-WMH_mask.nii.gz").write_bytes(b"precious")
    (out / "sub-1").symlink_to(elsewhere)
    outcomes = {outcome.key: outcome for outcome in predict(run, find_scans(pair), out, options=QUICK)}
    assert outcomes["sub-1_space-FLAIR"].message.startswith(f"sub-1_space-FLAIR: {out}/sub-1: is a link; nothing is")
    assert outcomes["sub-2_space-FLAIR"].status == "unchanged"
    assert [path.name for path in elsewhere.rglob("*") if path.is_file()] == ["sub-1_label-WMH_mask.nii.gz"]
    (out / "figures").rename(tmp_path / "pictures")
    (out / "figures").symlink_to(tmp_path / "pictures")
    with pytest.raises(UserError, match=r"figures: is a link; .*; nothing was written\.$"):
        statuses(run, pair, out)


@pytest.mark.slow
def test_kill_9_at_any_moment_leaves_whole_files_and_the_same_end(run, stripped, tmp_path):
    paths = [stripped(f"sub-{number}_FLAIR.nii.gz", size=1 + number / 100) for number in range(3)]
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "steelyard",
        "predict",
        run,
        tmp_path / "in",
        out,
        "--bias",
        "skip",
        "--normalise",
        "skip",
    ]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while process.poll() is None and not list(out.rglob("*_mask.nii.gz")):
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    for path in out.rglob("*.nii.gz"):
        nibabel.load(path).get_fdata()
    for path in out.rglob("*.json"):
        json.loads(path.read_text())
    found = statuses(run, paths, out)
    assert set(found.values()) <= {"done", "unchanged"}
    statuses(run, paths, tmp_path / "at once")
    assert (out / "volumes.csv").read_bytes() == (tmp_path / "at once/volumes.csv").read_bytes()
    assert not list(out.rglob("*.part"))


@pytest.mark.slow
def test_workers_give_the_same_bytes(run, stripped, tmp_path):
    paths = [stripped(f"sub-{number}_FLAIR.nii.gz", size=1 + number / 100) for number in range(3)]
    one, two = tmp_path / "one", tmp_path / "two"
    assert statuses(run, paths, one) == statuses(run, paths, two, workers=2)
    for path in [one / "volumes.csv", *one.rglob("*.nii.gz")]:
        assert path.read_bytes() == (two / path.relative_to(one)).read_bytes()


def test_a_wrong_folder_or_run_is_refused_before_anything_is_written(run, pair, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="not written by steelyard predict"):
        statuses(run, pair, foreign)
    with pytest.raises(UserError, match="no such run folder"):
        statuses(tmp_path / "none", pair, tmp_path / "out")
    with pytest.raises(UserError, match="workers must be at least 1"):
        statuses(run, pair, tmp_path / "out", workers=0)
    with pytest.raises(UserError, match="workers must be at most"):
        statuses(run, pair, tmp_path / "out", workers=99999)
    assert not (tmp_path / "out").exists()
    assert [path.name for path in foreign.iterdir()] == ["thesis.txt"]


def test_predicted_masks_are_nobodys_manual_masks(run, tmp_path):
    heads.write_subject(tmp_path / "bids", "1", contrasts=("flair",))
    manual = read_bids(tmp_path / "bids").subjects[0].wmh
    skip = Options(bias="skip", normalise="skip", brain="skip")
    statuses(run, [tmp_path / "bids"], tmp_path / "bids/derivatives/predicted", skip)
    assert list((tmp_path / "bids/derivatives/predicted").rglob("*_label-WMH_mask.nii.gz"))
    assert read_bids(tmp_path / "bids").subjects[0].wmh == manual


def test_the_official_validator_is_content(run, pair, tmp_path):
    statuses(run, pair, tmp_path / "out")
    validator = Path(sys.executable).with_name("bids-validator-deno")
    result = subprocess.run([validator, "--format", "json", tmp_path / "out"], capture_output=True, check=False)
    issues = json.loads(result.stdout)["issues"]["issues"]
    assert [issue for issue in issues if issue["severity"] == "error"] == []


def rows(*volumes, brain=1400.0):
    return [
        Row(
            scan=f"sub-{n}",
            source=f"{n}.nii",
            contrast="flair",
            wmh_ml=volume,
            lesions=1,
            brain_ml=brain,
            threshold=0.5,
            smallest_ml=0.0,
        )
        for n, volume in enumerate(volumes)
    ]


def order(page):
    return re.findall(r'<section class="card" id="([^"]+)"', page)


def test_what_to_look_at_comes_first():
    cohort = rows(5.0, 6.0, 5.5, 4.8, 6.2, 5.1, 0.0, 200.0)
    failed = [Row(scan="sub-x", source="x.nii", contrast="", status="failed", problem="is broken")]
    page = render_page(cohort, pictures={row.scan: b"" for row in cohort}, failed=failed, facts="")
    assert set(order(page)[:2]) == {"sub-6", "sub-7"}
    assert order(page)[2:] == [f"sub-{n}" for n in range(6)]
    assert "no lesion was found" in page
    assert "lesions fill 14% of the brain" in page
    assert page.index("sub-x (x.nii): is broken") < page.index("<table>")
    ordinary = rows(5.0, 6.0, 5.5, 4.8, 6.2, 5.1)
    page = render_page(ordinary, pictures={row.scan: b"" for row in ordinary}, failed=[], facts="")
    assert order(page)[:2] == ["sub-3", "sub-4"]
    assert "the largest volume" in page
    assert "the smallest volume" in page


def test_the_table_is_the_same_whatever_the_order():
    cohort = rows(1.0, 2.5, 3.0)
    assert write_table(cohort) == write_table(cohort[::-1])
    assert write_table(cohort).splitlines()[2].startswith("sub-1,1.nii,flair,done,2.5,1,")


def test_a_picture_shows_the_slice_with_most_lesion_of_each_band():
    from steelyard.imaging.predict.mosaic import _levels

    mask = np.zeros((4, 4, 60), dtype=bool)
    mask[1, 1, 33] = True
    mask[1:3, 1, 34] = True
    shown = _levels(np.arange(60), heads.Volume(mask, np.eye(4)))
    assert len(shown) == 12
    assert 34 in shown
    assert shown == sorted(shown)
    assert len(_levels(np.arange(3), heads.Volume(mask, np.eye(4)))) == 3


def test_the_network_is_read_anew_in_each_call(pair, tmp_path):
    run = networks_by_hand.write_run(tmp_path / "run")
    statuses(run, pair[:1], tmp_path / "out")
    (run / "last.safetensors").unlink()
    with pytest.raises(UserError, match="there are no weights"):
        statuses(run, pair[:1], tmp_path / "out")
    assert cohort.predict is predict


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no names that are not UTF-8")
def test_a_name_in_another_encoding_breaks_neither_table_nor_page(run, stripped, tmp_path):
    plain = stripped("sub-1_FLAIR.nii")
    odd = plain.with_name(os.fsdecode(b"sub-J\xfcrgen_FLAIR.nii"))
    plain.rename(odd)
    out = tmp_path / "out"
    assert [one.status for one in predict(run, find_scans([odd]), out, options=QUICK)] == ["done"]
    assert "rgen_FLAIR.nii" in (out / "index.html").read_text(encoding="utf-8")


def test_prediction_does_not_load_the_training_stack():
    stack = ["lightning", "steelyard.imaging.train", "steelyard.training", "steelyard.probing"]
    code = f"import sys, steelyard.imaging.predict; print([name for name in {stack} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
