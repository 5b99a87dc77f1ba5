"""One line that names file and fault, the others go on, exit code 2, nothing overwritten, never a traceback."""

import errno
import gzip
import os
import shutil
from pathlib import Path

import nibabel
import numpy as np
import pytest

import heads
from steelyard.cli import main
from steelyard.errors import UserError
from steelyard.imaging.datasets import copies
from steelyard.imaging.datasets.subjects import Subject
from steelyard.imaging.preprocess import Settings, prepare
from steelyard.imaging.scans.volumes import Volume

QUICK = ["--brain", "own", "--align", "skip", "--bias", "skip"]


@pytest.fixture
def cohort(tmp_path):
    root = tmp_path / "bids"
    heads.write_subject(root, "bad", seed=1)
    heads.write_subject(root, "good", seed=2)
    return root


def run(capsys, root, out, *arguments):
    code = main(["preprocess", str(root), str(out), *QUICK, *arguments])
    return code, capsys.readouterr().err


def flair(root):
    return root / "sub-bad" / "anat" / "sub-bad_FLAIR.nii.gz"


def mask(root, label):
    return root / "derivatives" / "manual" / "sub-bad" / "anat" / f"sub-bad_space-FLAIR_label-{label}_mask.nii.gz"


def spoil_truncated(root):
    content = flair(root).read_bytes()
    flair(root).write_bytes(content[: len(content) // 2])
    return flair(root), "cut short or damaged"


def spoil_pipe(root):
    flair(root).unlink()
    os.mkfifo(flair(root))
    return flair(root), "not a regular file"


def spoil_folder_in_a_circle(root):
    folder = root / "sub-bad"
    shutil.rmtree(folder)
    folder.symlink_to(folder)
    return folder, "leads to no folder"


def spoil_name(root):
    scan = os.fsencode(flair(root).parent) + b"/sub-bad_acq-\xff_FLAIR.nii.gz"
    flair(root).rename(os.fsdecode(scan))
    return "sub-bad_acq-?_FLAIR.nii.gz", "the name is not UTF-8"


def spoil_text(root):
    flair(root).write_text("this is a note about the scan")
    return flair(root), "no NIfTI image|cut short or damaged"


def spoil_empty_file(root):
    flair(root).write_bytes(b"")
    return flair(root), "no NIfTI image|cut short or damaged"


def spoil_four_dimensions(root):
    nibabel.Nifti1Image(np.ones((*heads.SHAPE, 3), dtype=np.float32), heads.AFFINE).to_filename(flair(root))
    return flair(root), "60×72×44×3"


def spoil_nan(root):
    voxels = heads.scan("flair", heads.tissue()).voxels
    voxels[1, 2, 3] = np.nan
    heads.save(flair(root), Volume(voxels, heads.AFFINE))
    return flair(root), "1 of 190080 voxels are NaN"


def spoil_constant(root):
    heads.save(flair(root), Volume(np.full(heads.SHAPE, 7.0, dtype=np.float32), heads.AFFINE))
    return flair(root), "every voxel is 7"


def with_affine(root, affine):
    """Put an affine into the header by hand: nibabel would not write such a thing."""
    content = nibabel.Nifti1Image(heads.scan("flair", heads.tissue()).voxels, heads.AFFINE).to_bytes()
    header = nibabel.Nifti1Header(content[:348])
    header["qform_code"], header["sform_code"] = 0, 1
    for axis, row in zip("xyz", affine, strict=False):
        header[f"srow_{axis}"] = row
    flair(root).write_bytes(gzip.compress(header.binaryblock + content[348:], compresslevel=1))
    return flair(root)


def spoil_zero_affine(root):
    return with_affine(root, np.diag([0.0, 0.0, 0.0, 1.0])), "affine is zero, singular"


def spoil_tiny_voxels(root):
    return with_affine(root, np.diag([1e-3, 1e-3, 1e-3, 1.0])), "cannot be right; the affine is absurd"


def spoil_sheared_affine(root):
    affine = heads.AFFINE.copy()
    affine[0, 1] = 2.0
    return with_affine(root, affine), "not at right angles"


def spoil_mask_grid(root):
    heads.save(mask(root, "WMH"), Volume(np.ones((30, 30, 30), dtype=bool), heads.AFFINE))
    return mask(root, "WMH"), "on another grid"


def spoil_mask_values(root):
    labels = (heads.tissue() % 3).astype(np.float32)
    heads.save(mask(root, "WMH"), Volume(labels, heads.AFFINE))
    return mask(root, "WMH"), "one other value; this holds 0, 1, 2"


def spoil_empty_lesions(root):
    heads.save(mask(root, "WMH"), Volume(np.zeros(heads.SHAPE, dtype=bool), heads.AFFINE))
    return mask(root, "WMH"), "the mask is empty"


def spoil_empty_brain(root):
    heads.save(mask(root, "brain"), Volume(np.zeros(heads.SHAPE, dtype=bool), heads.AFFINE))
    return mask(root, "brain"), "the mask is empty"


def spoil_no_contrast(root):
    shutil.rmtree(flair(root).parent)
    return "sub-bad", "neither a FLAIR nor a T1w"


SPOILERS = [value for name, value in sorted(globals().items()) if name.startswith("spoil_")]


@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda spoil: spoil.__name__.removeprefix("spoil_"))
def test_a_bad_subject_is_one_line_and_the_other_goes_on(spoil, cohort, tmp_path, capsys):
    named, fault = spoil(cohort)
    code, said = run(capsys, cohort, tmp_path / "out")
    assert code == 2
    lines = [line for line in said.splitlines() if line.startswith("failed: ")]
    assert len(lines) == 1
    assert str(named) in lines[0]
    assert any(part in lines[0] for part in fault.split("|"))
    assert "Traceback" not in said
    assert list((tmp_path / "out").rglob("sub-good_*_FLAIR.nii.gz"))
    assert not list((tmp_path / "out").rglob("sub-bad_*"))
    assert fault.split("|")[0][:10] in (tmp_path / "out" / "index.html").read_text() or "|" in fault


def test_one_head_under_two_names_is_refused_under_both(cohort, tmp_path, capsys, monkeypatch):
    compared = []
    real = copies._identical_scans
    monkeypatch.setattr(copies, "_identical_scans", lambda dataset: compared.append(dataset) or real(dataset))
    shutil.copy(cohort / "sub-good" / "anat" / "sub-good_FLAIR.nii.gz", flair(cohort))
    code, said = run(capsys, cohort, tmp_path / "out")
    assert code == 2
    assert said.count("one head has two names") == 2
    assert "0 of 2 subjects are ready" in said
    assert not list((tmp_path / "out").rglob("sub-*"))
    assert len(compared) == 1


def test_the_largest_scan_is_an_option(cohort, tmp_path, capsys):
    code, said = run(capsys, cohort, tmp_path / "out", "--largest-scan", "0.1")
    assert code == 2
    assert (
        said.count("60×72×44 are 0.2 million voxels; at most 0.1 million are read (raise it with --largest-scan") == 2
    )
    for wrong in ("0", "-1", "nan", "inf"):
        code, said = run(capsys, cohort, tmp_path / "out", "--largest-scan", wrong)
        assert code == 2
        assert "the largest scan must be a positive number of million voxels; got" in said


def test_an_empty_lesion_mask_is_accepted_on_request(cohort, tmp_path, capsys):
    spoil_empty_lesions(cohort)
    assert run(capsys, cohort, tmp_path / "out", "--empty-wmh")[0] == 0


def test_scans_of_two_heads_are_told_apart(cohort):
    other = heads.scan("t1", heads.tissue(size=0.55, pose=heads.motion(40.0, (20.0, -15.0, 10.0))), noise=60.0)
    path = heads.save(cohort / "other.nii.gz", other.with_voxels(np.roll(other.voxels, 9, 1)[::-1].copy()))
    mixed = Subject(name="x", label="x", flair=flair(cohort), t1=path, brain=mask(cohort, "brain"))
    with pytest.raises(UserError, match=r"other.nii.gz: cannot be of the same head as .*sub-bad_FLAIR.nii.gz"):
        prepare(mixed, Settings(brain="own", bias="skip"))


def test_a_failure_puts_earlier_results_aside_and_loses_none(cohort, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(capsys, cohort, out)[0] == 0
    scans = {path.name: path.read_bytes() for path in (out / "sub-bad").rglob("*.nii.gz")}
    spoil_truncated(cohort)
    code, said = run(capsys, cohort, out)
    assert code == 2
    assert "its earlier outputs were moved to" in said
    assert scans
    assert not list((out / "sub-bad").rglob("*.nii.gz"))
    assert {path.name: path.read_bytes() for path in (out / ".withdrawn").rglob("*.nii.gz")} == scans


def test_a_full_disk_is_one_line_and_leaves_no_half_file(cohort, tmp_path, capsys, monkeypatch):
    real, out = os.fsync, tmp_path / "out"

    def full(handle):
        if "sub-bad_space-FLAIR_desc-preproc_T1w.nii.gz" in str(Path(f"/proc/self/fd/{handle}").readlink()):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    code, said = run(capsys, cohort, out)
    assert code == 2
    assert "sub-bad_space-FLAIR_desc-preproc_T1w.nii.gz: the disk is full" in said
    assert not list(out.rglob("*.part"))
    assert not list(out.rglob("sub-bad*.json"))
    assert list(out.rglob("sub-good_*_FLAIR.json"))


def test_folders_that_cannot_be_used_are_one_line(cohort, tmp_path, capsys, monkeypatch):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.txt").write_text("mine")
    (tmp_path / "file").write_text("")
    for out, line in (
        (taken, "is not empty and was not written by"),
        (tmp_path / "file", "is a file; a folder is needed"),
        (cohort, "must not be the input"),
        (tmp_path / "file" / "below", "not a directory"),
    ):
        code, said = run(capsys, cohort, out)
        assert code == 2
        assert str(out) in said
        assert line in said
    assert [path.name for path in taken.iterdir()] == ["thesis.txt"]
    code, said = run(capsys, tmp_path / "absent", tmp_path / "out")
    assert code == 2
    assert "there is no such folder" in said


def test_folders_without_permission_are_one_line(cohort, tmp_path, capsys, monkeypatch):
    # Root may read and write anything: refuse in its stead.
    closed = tmp_path / "closed"
    closed.mkdir()
    kind = type(closed)
    listing, opening = kind.iterdir, kind.open

    def iterdir(self):
        if self.name == "sub-bad":
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return listing(self)

    def open_(self, mode="r", *rest, **named):
        if "x" in mode and self.is_relative_to(closed):
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return opening(self, mode, *rest, **named)

    monkeypatch.setattr(kind, "open", open_)
    code, said = run(capsys, cohort, closed)
    assert code == 2
    assert f"{closed}/dataset_description.json: permission denied; nothing was written." in said
    monkeypatch.setattr(kind, "iterdir", iterdir)
    code, said = run(capsys, cohort, tmp_path / "out")
    assert code == 2
    assert "sub-bad: cannot be read, permission denied" in said
    assert "1 of 2 subjects are ready" in said


def test_names_with_spaces_and_unicode(tmp_path, capsys):
    root, out = tmp_path / "müller’s scans", tmp_path / "fertig für heute"
    for name in ("Zoë Ångström 1", "患者一"):
        heads.write_subject(root, name, seed=len(name))
    code, said = run(capsys, root, out)
    assert code == 0, said
    assert list((out / "sub-ZoeAngstrom1").rglob("*_T1w.nii.gz"))
    assert "Zoë Ångström 1" in (out / "index.html").read_text(encoding="utf-8")
    assert len(list(out.glob("sub-*"))) == 2
