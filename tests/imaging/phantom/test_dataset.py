import errno
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import nibabel
import numpy as np
import pytest
import SimpleITK

import killed
from steelyard.errors import UserError
from steelyard.files.locks import lock_folder
from steelyard.imaging.phantom import Cohort, write_cohort
from steelyard.imaging.phantom.dataset import TRUTH, _participant

MARK = {"seed": 0, "scanner": "standard-3t", "version": version("steelyard")}


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def truth(folder, name, ending):
    return folder / TRUTH / name / "anat" / f"{name}_{ending}"


def validate(folder):
    validator = Path(sys.executable).with_name("bids-validator-deno")
    result = subprocess.run([validator, "--format", "json", folder], capture_output=True, check=False)
    issues = json.loads(result.stdout)["issues"]["issues"]
    return result.returncode, [issue for issue in issues if issue["severity"] == "error"]


@pytest.mark.parametrize("part", [Path(), TRUTH])
def test_the_official_validator_is_content(cohort_folder, part):
    assert validate(cohort_folder / part) == (0, [])


def test_a_stopped_run_goes_on_and_ends_with_the_same_bytes(cohort_folder, tmp_path):
    """Neither stopping, nor the number of workers, nor the number of subjects changes a byte of a subject."""
    out = tmp_path / "again"
    run = write_cohort(out, Cohort(subjects=3, seed=0))
    assert next(run) == "sub-001"
    run.close()
    assert not (out / "dataset_description.json").exists()
    (out / ".unfinished" / "sub-002" / "scans" / "anat").mkdir(parents=True)
    (out / ".unfinished" / "sub-002" / "scans" / "anat" / "sub-002_T1w.nii.gz").write_bytes(b"half")
    with pytest.raises(UserError, match="unfinished cohort"):
        list(write_cohort(out, Cohort(subjects=3, seed=1)))
    first = files(out / "sub-001")

    assert sorted(write_cohort(out, Cohort(subjects=3, seed=0, workers=2))) == ["sub-001", "sub-002", "sub-003"]
    assert files(out / "sub-001") == first
    for folder in (Path(), TRUTH):
        for name in ("sub-001", "sub-002"):
            assert files(out / folder / name) == files(cohort_folder / folder / name)
    assert not list(out.rglob(".unfinished*"))
    assert not list(out.rglob("*.part"))


def test_nothing_is_overwritten(cohort_folder, tmp_path):
    before = files(cohort_folder)
    with pytest.raises(UserError, match=r"with a space is not empty; nothing was written\."):
        list(write_cohort(cohort_folder, Cohort(subjects=1)))
    assert files(cohort_folder) == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="is a file; a folder is needed"):
        list(write_cohort(tmp_path / "file", Cohort(subjects=1)))


def full(monkeypatch, *, after):
    """The disk is full after some files."""
    real, written = os.fsync, []

    def sync(handle):
        written.append(handle)
        if len(written) > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", sync)


def test_what_a_full_disk_left_is_taken_up(made, tmp_path, monkeypatch):
    monkeypatch.setattr("steelyard.imaging.phantom.dataset.simulate", lambda *_: made.subjects[0])
    out = tmp_path / "new" / "out"
    for files in (0, 3, 22):
        with monkeypatch.context() as patch:
            full(patch, after=files)
            with pytest.raises(UserError, match="the disk is full"):
                list(write_cohort(out, Cohort(subjects=1)))
        assert (tmp_path / "new").exists() == bool(files)
    assert list(write_cohort(out, Cohort(subjects=1))) == ["sub-001"]
    assert files_of(out, "sub-001") == files_of(made.folder, "sub-001")
    assert not list(out.rglob(".unfinished*"))


def files_of(folder, name):
    return files(folder / name), files(folder / TRUTH / name)


def test_what_a_killed_run_left_of_its_mark_is_no_obstacle(tmp_path, monkeypatch):
    mine = tmp_path / ".notes.draft-1.part"
    for path in (killed.unfinished(tmp_path / ".unfinished-phantom.json"), mine):
        path.write_text("{")
    monkeypatch.setattr("steelyard.imaging.phantom.dataset.simulate", stop)
    with pytest.raises(KeyboardInterrupt):
        list(write_cohort(tmp_path, Cohort(subjects=1, seed=1)))
    assert {path.name for path in tmp_path.iterdir()} == {".unfinished-phantom.json", mine.name}


def test_a_folder_with_the_name_of_a_subject_is_not_taken_for_one(tmp_path):
    (tmp_path / ".unfinished-phantom.json").write_text(json.dumps(MARK))
    scan = tmp_path / "sub-001" / "mine.nii"
    scan.parent.mkdir()
    scan.write_text("mine")
    with pytest.raises(UserError, match=r"sub-001: was not written by this command; remove it or name another folder"):
        list(write_cohort(tmp_path, Cohort(subjects=1)))
    assert scan.read_text() == "mine"


@pytest.mark.parametrize("name", ["README", "participants.tsv", "derivatives/truth/README"])
def test_what_a_person_put_into_an_unfinished_cohort_is_not_replaced(tmp_path, name):
    (tmp_path / ".unfinished-phantom.json").write_text(json.dumps(MARK))
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(UserError, match=rf"{name}: exists and was not written by this command"):
        list(write_cohort(tmp_path, Cohort(subjects=1)))
    assert (tmp_path / name).read_text() == "mine"


def stop(*arguments):
    raise KeyboardInterrupt


@pytest.mark.parametrize("text", ["{", "[]", "\xff", "[" * 100_000])
def test_a_damaged_mark_is_one_line(tmp_path, text):
    (tmp_path / ".unfinished-phantom.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=r"unfinished-phantom\.json: is damaged; remove the folder to begin anew\.$"):
        list(write_cohort(tmp_path, Cohort(subjects=1)))


@pytest.mark.parametrize("text", ["{", "{}", '{"VolumeMl": "much"}', '{"VolumeMl": NaN}'])
def test_a_damaged_volume_beside_a_mask_is_one_line(tmp_path, text):
    damaged = truth(tmp_path, "sub-001", "space-FLAIR_label-WMH_mask.json")
    damaged.parent.mkdir(parents=True)
    damaged.write_text(text)
    with pytest.raises(UserError, match=r"label-WMH_mask\.json: "):
        _participant(tmp_path, Cohort(subjects=1), 1)


def test_two_runs_do_not_share_a_folder(tmp_path):
    with lock_folder(tmp_path), pytest.raises(UserError, match="another run is working on it"):
        list(write_cohort(tmp_path, Cohort(subjects=1)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [".unfinished", "derivatives"])
def test_heads_do_not_leave_through_a_link(tmp_path, name):
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    out.mkdir()
    (out / name).symlink_to(elsewhere)
    (out / ".unfinished-phantom.json").write_text(json.dumps(MARK))
    with pytest.raises(UserError, match=f"{name}: is a link"):
        list(write_cohort(out, Cohort(subjects=1)))
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"subjects": 0}, "subjects must be at least 1; got 0"),
        ({"subjects": 1, "seed": -1}, "seed must be at least 0; got -1"),
        ({"subjects": 1, "workers": 0}, "workers must be at least 1; got 0"),
        ({"subjects": 1, "scanner": "9t"}, "scanner must be one of"),
    ],
)
def test_impossible_cohorts_are_refused(wrong, message):
    with pytest.raises(UserError, match=message):
        Cohort(**wrong)


def test_images_have_the_papers_grids(cohort_folder):
    flair = nibabel.load(cohort_folder / "sub-001" / "anat" / "sub-001_FLAIR.nii.gz")
    t1w = nibabel.load(cohort_folder / "sub-001" / "anat" / "sub-001_T1w.nii.gz")
    assert flair.shape == (212, 256, 48)
    np.testing.assert_allclose(flair.header.get_zooms(), [1, 1, 3])
    np.testing.assert_allclose(t1w.header.get_zooms(), [1, 1, 1.2], rtol=1e-6)
    assert nibabel.aff2axcodes(t1w.affine) == ("A", "S", "R")
    for ending in ("label-WMH_mask", "label-brain_mask", "desc-preproc_T1w", "desc-preproc_FLAIR"):
        image = nibabel.load(truth(cohort_folder, "sub-001", f"space-FLAIR_{ending}.nii.gz"))
        assert image.shape == flair.shape
        np.testing.assert_array_equal(image.affine, flair.affine)


def test_itk_brings_t1w_to_flair(cohort_folder):
    """What any user would do with the files gives the ideal pair up to the scale."""
    folder = cohort_folder / "sub-002" / "anat"
    flair = SimpleITK.ReadImage(str(folder / "sub-002_FLAIR.nii.gz"), SimpleITK.sitkFloat32)
    t1w = SimpleITK.ReadImage(str(folder / "sub-002_T1w.nii.gz"), SimpleITK.sitkFloat32)
    bias = SimpleITK.ReadImage(str(truth(cohort_folder, "sub-002", "desc-biasfield_T1w.nii.gz")), SimpleITK.sitkFloat32)
    ideal, brain = (
        SimpleITK.GetArrayFromImage(
            SimpleITK.ReadImage(str(truth(cohort_folder, "sub-002", f"space-FLAIR_{ending}.nii.gz")))
        )
        for ending in ("desc-preproc_T1w", "label-brain_mask")
    )
    transform = SimpleITK.ReadTransform(str(truth(cohort_folder, "sub-002", "from-T1w_to-FLAIR_mode-image_xfm.txt")))

    def likeness(transform):
        aligned = SimpleITK.GetArrayFromImage(SimpleITK.Resample(t1w / bias, flair, transform))
        return np.corrcoef(aligned[brain > 0], ideal[brain > 0])[0, 1]

    assert likeness(transform) > 0.9999
    assert likeness(transform.GetInverse()) < 0.9


def test_the_table_tells_the_volumes_of_the_masks(cohort_folder):
    lines = (cohort_folder / "participants.tsv").read_text().splitlines()
    assert lines[0].split("\t") == ["participant_id", "age", "wmh_ml", "brain_ml", "scanner"]
    assert len(lines) == 3
    for line in lines[1:]:
        name, _, wmh, brain, scanner = line.split("\t")
        assert scanner == "standard-3t"
        for label, volume in (("WMH", wmh), ("brain", brain)):
            mask = nibabel.load(truth(cohort_folder, name, f"space-FLAIR_label-{label}_mask.nii.gz"))
            assert np.asarray(mask.dataobj).sum() * 0.003 == pytest.approx(float(volume), abs=0.006)


def test_sidecars_state_the_protocol_in_seconds(cohort_folder):
    sidecar = json.loads((cohort_folder / "sub-001" / "anat" / "sub-001_FLAIR.json").read_text())
    assert (sidecar["EchoTime"], sidecar["RepetitionTime"], sidecar["InversionTime"]) == (0.09, 9.16, 2.5)
    assert (sidecar["FlipAngle"], sidecar["SliceThickness"], sidecar["MagneticFieldStrength"]) == (150, 3, 3)
