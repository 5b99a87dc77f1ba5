import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import unquote

import nibabel
import numpy as np
import pytest

import heads
import killed
from steelyard.cli import main
from steelyard.errors import UserError
from steelyard.files import atomic, ownership
from steelyard.imaging.datasets.bids import read_bids
from steelyard.imaging.preprocess import Settings, preprocess
from steelyard.imaging.preprocess.quality import assess_quality

QUICK = Settings(brain="own", align="skip", bias="skip")


@pytest.fixture
def cohort(tmp_path):
    root = tmp_path / "bids"
    for number in (1, 2):
        heads.write_subject(root, f"0{number}", seed=number)
    return root


def outcomes(root, out, settings=QUICK, **named):
    return {outcome.key: outcome.status for outcome in preprocess(read_bids(root), out, settings=settings, **named)}


def test_derivatives_are_bids_and_say_how_they_were_made(cohort, tmp_path):
    out = tmp_path / "out"
    assert outcomes(cohort, out, Settings(brain="own")) == {"sub-01": "done", "sub-02": "done"}
    names = {path.name for path in (out / "sub-01" / "anat").iterdir()}
    assert {
        "sub-01_space-FLAIR_desc-preproc_FLAIR.nii.gz", "sub-01_space-FLAIR_desc-preproc_T1w.nii.gz",
        "sub-01_space-FLAIR_label-brain_mask.nii.gz", "sub-01_space-FLAIR_label-WMH_mask.nii.gz",
        "sub-01_from-T1w_to-FLAIR_mode-image_xfm.txt",
    } <= names  # fmt: skip
    assert not [name for name in names if name.endswith(".nii.gz") and name.replace(".nii.gz", ".json") not in names]
    beside = json.loads((out / "sub-01" / "anat" / "sub-01_space-FLAIR_desc-preproc_T1w.json").read_text())
    assert beside["SkullStripped"] is True
    assert beside["Steelyard"]["Alignment"]["LeftUntouched"] is True
    assert beside["Steelyard"]["Versions"]["SimpleITK"]
    assert beside["Steelyard"]["WhiteStripe"]["deviation"] > 0
    assert set(beside["Steelyard"]["Inputs"]) == {"flair", "t1", "wmh", "brain"}
    (ready, _) = read_bids(out).subjects
    image = nibabel.load(ready.flair)
    brain = nibabel.load(ready.brain).get_fdata() > 0
    assert np.allclose(image.affine, heads.AFFINE)
    assert not image.get_fdata()[~brain].any()
    assert nibabel.load(ready.wmh).get_fdata().sum() == (heads.tissue(size=1.01) == 5).sum()


def test_one_contrast_alone_is_processed_on_its_own_grid(tmp_path):
    heads.write_subject(tmp_path / "bids", "t", seed=1, contrasts=("t1",))
    heads.write_subject(tmp_path / "bids", "f", seed=2, contrasts=("flair",), ending=".nii")
    assert outcomes(tmp_path / "bids", tmp_path / "out", Settings(brain="own")) == {"sub-f": "done", "sub-t": "done"}
    assert (tmp_path / "out/sub-t/anat/sub-t_space-T1w_desc-preproc_T1w.nii.gz").is_file()
    assert (tmp_path / "out/sub-f/anat/sub-f_space-FLAIR_desc-preproc_FLAIR.nii.gz").is_file()


def test_unchanged_subjects_are_not_done_again_and_changed_ones_are(cohort, tmp_path):
    out = tmp_path / "out"
    outcomes(cohort, out)
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("sub-*.nii.gz")}
    assert outcomes(cohort, out) == {"sub-01": "unchanged", "sub-02": "unchanged"}
    assert {path: path.stat().st_mtime_ns for path in out.rglob("sub-*.nii.gz")} == stamps
    heads.save(cohort / "sub-01/anat/sub-01_T1w.nii.gz", heads.scan("t1", heads.tissue(), seed=77))
    assert outcomes(cohort, out) == {"sub-01": "done", "sub-02": "unchanged"}
    (out / "sub-02/anat/sub-02_space-FLAIR_label-brain_mask.nii.gz").unlink()
    assert outcomes(cohort, out) == {"sub-01": "unchanged", "sub-02": "done"}
    other = Settings(brain="own", align="skip", bias="skip", stripe=0.1)
    assert outcomes(cohort, out, other) == {"sub-01": "done", "sub-02": "done"}


def test_workers_give_the_same_bytes_and_the_output_may_lie_in_the_dataset(cohort, tmp_path):
    inside = cohort / "derivatives" / "ready"
    assert outcomes(cohort, tmp_path / "one") == outcomes(cohort, inside, workers=2)
    assert outcomes(cohort, inside, workers=2) == {"sub-01": "unchanged", "sub-02": "unchanged"}
    for path in (tmp_path / "one").rglob("*.nii.gz"):
        assert path.read_bytes() == (inside / path.relative_to(tmp_path / "one")).read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_killed_run_leaves_only_whole_files_and_goes_on(tmp_path):
    root, out = tmp_path / "bids", tmp_path / "out"
    for number in range(4):
        heads.write_subject(root, str(number), seed=number)
    command = [
        sys.executable,
        "-m",
        "steelyard",
        "preprocess",
        str(root),
        str(out),
        "--brain",
        "own",
        "--align",
        "skip",
    ]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while process.poll() is None and not list(out.rglob("*_T1w.nii.gz")):
        time.sleep(0.01)
    workers = children(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    while any(map(running, workers)):  # they end with their parent, but not before they have noticed
        time.sleep(0.01)
    for path in out.rglob("*.nii.gz"):
        nibabel.load(path).get_fdata()
    for path in out.rglob("*.json"):
        json.loads(path.read_text())
    done = sum((out / f"sub-{n}/anat/sub-{n}_space-FLAIR_desc-preproc_FLAIR.json").is_file() for n in range(4))
    assert done < 4
    found = outcomes(root, out, Settings(brain="own", align="skip"))
    assert list(found.values()).count("unchanged") == done
    assert list(found.values()).count("done") == 4 - done
    assert not list(out.rglob("*.part"))


def test_the_page_is_self_contained_and_lists_everyone(cohort, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["preprocess", str(cohort), str(out), "--brain", "own", "--align", "skip", "--bias", "skip"]) == 0
    assert "Preprocessing: sub-01 (1 of 2, about" in capsys.readouterr().err
    page = (out / "index.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 2
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)
    assert (out / "figures" / "sub-01.jpg").stat().st_size > 20_000


def test_outliers_come_first_and_say_why():
    same = [{"brain_ml": 1400.0 + n, "information": 0.7} for n in range(8)]
    assessments = assess_quality(
        [*same, {"brain_ml": 1750.0, "information": 0.7}, {"brain_ml": 1402.0, "information": 0.25}]
    )
    assert all(not assessment.remarks for assessment in assessments[:8])
    assert assessments[8].remarks == ("brain volume is unlike the others' (1.75e+03)",)
    assert assessments[9].remarks == ("T1w and FLAIR share 0.25 nats of information only",)
    assert assessments[9].score > assessments[8].score > assessments[0].score


def test_what_has_lost_its_source_is_not_read_again(cohort, tmp_path, caplog):
    out = tmp_path / "out"
    heads.write_subject(cohort, "03", seed=3)
    outcomes(cohort, out, Settings(brain="own", bias="skip"))
    own = out / "sub-02/anat/sub-02_note.txt"
    own.write_text("not ours")
    (cohort / "sub-01/anat/sub-01_T1w.nii.gz").unlink()
    (cohort / "derivatives/manual/sub-01/anat/sub-01_space-FLAIR_label-WMH_mask.nii.gz").unlink()
    (cohort / "sub-02/anat/sub-02_FLAIR.nii.gz").write_bytes(b"broken")
    shutil.rmtree(cohort / "sub-03")
    found = list(preprocess(read_bids(cohort), out, settings=Settings(brain="own", bias="skip")))
    assert [outcome.status for outcome in found] == ["done", "failed"]
    assert found[1].message.endswith(f"; its earlier outputs were moved to {out}/.withdrawn.")
    assert f"sub-03: is no longer in the source; its earlier outputs were moved to {out}/.withdrawn." in caplog.messages
    assert {path.name.split("_", 1)[1] for path in (out / "sub-01/anat").iterdir()} == {
        f"space-FLAIR_{name}.{ending}"
        for name in ("desc-preproc_FLAIR", "label-brain_mask", "label-brain_desc-supplied_mask")
        for ending in ("nii.gz", "json")
    }
    assert list(out.glob("sub-02/**/*.*")) == [own]
    assert not (out / "sub-03").exists()
    assert {path.name for path in (out / "figures").iterdir()} == {"sub-01.jpg"}


def test_what_a_killed_run_wrote_is_known(cohort, tmp_path, monkeypatch):
    out = tmp_path / "out"
    names = []

    def die(path, target, **named):
        if "mask" in target.name:
            raise KeyboardInterrupt
        names.append(target)
        atomic.rename(path, target, **named)

    with monkeypatch.context() as patch:
        patch.setattr(ownership, "rename", die)
        with pytest.raises(KeyboardInterrupt):
            outcomes(cohort, out)
    assert names
    assert all(path.is_file() for path in names)
    shutil.rmtree(cohort / "sub-01")
    assert outcomes(cohort, out) == {"sub-02": "done"}
    assert not [path for path in out.rglob("sub-01*") if path.is_file()]


def test_only_what_is_ours_and_unchanged_is_replaced(cohort, tmp_path):
    out = tmp_path / "out"
    outcomes(cohort, out)
    mask = out / "sub-01/anat/sub-01_space-FLAIR_label-WMH_mask.nii.gz"
    stale = out / "sub-02/anat/sub-02_space-FLAIR_desc-preproc_T1w.nii.gz"
    note = out / "sub-01/anat/sub-01_desc-manual_label-WMH_mask.nii.gz"
    for path in (mask, stale, note):
        path.write_bytes(b"by hand")
    (cohort / "sub-02/anat/sub-02_T1w.nii.gz").unlink()
    found = {outcome.key: outcome for outcome in preprocess(read_bids(cohort), out, settings=QUICK)}
    for key, path in (("sub-01", mask), ("sub-02", stale)):
        assert found[key].status == "done"
        assert found[key].message == f"{path.name}: changed by somebody else, moved to {out}/.withdrawn."
        assert (out / ".withdrawn" / path.relative_to(out)).read_bytes() == b"by hand"
    assert note.read_bytes() == b"by hand"
    assert not stale.exists()
    assert not list(out.glob("sub-02/anat/*_T1w.json"))
    assert mask.stat().st_size > 100


def test_a_subject_without_its_flair_leaves_nothing_of_it(cohort, tmp_path):
    out = tmp_path / "out"
    outcomes(cohort, out)
    (cohort / "sub-01/anat/sub-01_FLAIR.nii.gz").unlink()
    shutil.rmtree(cohort / "derivatives/manual/sub-01")
    assert outcomes(cohort, out, Settings(brain="skip", align="skip", bias="skip"))["sub-01"] == "done"
    assert not list((out / "sub-01/anat").glob("*space-FLAIR*"))
    assert not (out / ".withdrawn").exists()


def test_a_subject_behind_a_link_is_its_own_failure(cohort, tmp_path):
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    out.mkdir()
    (out / "sub-01").symlink_to(elsewhere)
    (out / "dataset_description.json").write_text('{"GeneratedBy": [{"Name": "steelyard preprocess"}]}')
    found = {outcome.key: outcome for outcome in preprocess(read_bids(cohort), out, settings=QUICK)}
    assert found["sub-01"].message.startswith(f"sub-01: {out}/sub-01: is a link;")
    assert found["sub-02"].status == "done"
    assert not list(elsewhere.iterdir())


def test_the_official_validator_is_content(tmp_path):
    root, out = tmp_path / "with a space", tmp_path / "out"
    heads.write_subject(root, "01", seed=1)
    heads.write_subject(root, "02", seed=2, contrasts=("t1",))
    outcomes(root, out, Settings(brain="own", bias="skip"))
    validator = Path(sys.executable).with_name("bids-validator-deno")
    result = subprocess.run([validator, "--format", "json", out], capture_output=True, check=False)
    issues = json.loads(result.stdout)["issues"]["issues"]
    assert [issue for issue in issues if issue["severity"] == "error"] == []
    link = unquote(json.loads((out / "dataset_description.json").read_text())["DatasetLinks"]["raw"])
    for path in out.rglob("*_mask.json"):
        sources = json.loads(path.read_text())["Sources"]
        assert sources
        assert all((out / link / source.removeprefix("bids:raw:")).is_file() for source in sources)


def test_a_page_that_cannot_be_written_hides_no_other_failure(cohort, tmp_path, capsys):
    out = tmp_path / "out"
    (cohort / "sub-02/anat/sub-02_FLAIR.nii.gz").write_bytes(b"broken")
    outcomes(cohort, out)
    (out / "index.html").unlink()
    (out / "index.html").mkdir()
    assert main(["preprocess", str(cohort), str(out), "--brain", "own", "--align", "skip", "--bias", "skip"]) == 2
    said = capsys.readouterr().err
    assert "failed: sub-02: " in said
    assert f"failed: the page of the cohort could not be written: {out}/index.html: is a directory.\n" in said
    assert "nothing was written" not in said


def test_a_subject_is_on_the_page_though_its_namesake_failed(tmp_path):
    out = tmp_path / "out"
    heads.write_subject(tmp_path / "bids", "a1", seed=1)
    heads.write_subject(tmp_path / "bids", "a-1", seed=2)
    for _ in range(2):
        assert [outcome.key for outcome in preprocess(read_bids(tmp_path / "bids"), out, settings=QUICK)] == [
            "sub-a1"
        ] * 2
        assert (out / "index.html").read_text().count("data:image/jpeg;base64,") == 1


def start(root, out, *more):
    command = [sys.executable, "-m", "steelyard", "preprocess", str(root), str(out), "--brain", "own", *more]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_their_parent(tmp_path, how):
    root, out = tmp_path / "bids", tmp_path / "out"
    for number in range(6):
        heads.write_subject(root, str(number), seed=number)
    process = start(root, out, "--align", "skip", "--bias", "skip", "--workers", "2")
    while process.poll() is None and not list(out.glob("figures/*.jpg")):
        time.sleep(0.01)
    workers = children(process.pid)
    assert len(workers) >= 2
    process.send_signal(how)
    said = process.communicate(timeout=10)[1]
    if how == signal.SIGTERM:
        assert process.returncode == 143
        assert said.endswith("stopped by SIGTERM; run the same command again to finish.\n")
    deadline = time.monotonic() + 5
    while alive := [pid for pid in workers if running(pid)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.05)


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_second_run_on_the_same_folder_is_refused_and_harms_nothing(cohort, tmp_path):
    out = tmp_path / "out"
    first = preprocess(read_bids(cohort), out, settings=QUICK)
    next(first)
    part = killed.unfinished(out / "sub-02" / "live")
    part.parent.mkdir(exist_ok=True)
    part.touch()
    with pytest.raises(UserError, match=r"out: another run is working on it\.$"):
        outcomes(cohort, out)
    assert part.exists()
    first.close()
    assert outcomes(cohort, out) == {"sub-01": "unchanged", "sub-02": "done"}
    assert not part.exists()
