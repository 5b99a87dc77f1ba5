import errno
import os
from pathlib import Path

import pytest

from steelyard.errors import UserError
from steelyard.imaging.predict import find_scans


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(os.fsencode(name))
    return root


def keys(*paths, **named):
    return [scan.key for scan in find_scans([Path(path) for path in paths], **named)]


@pytest.mark.parametrize(
    ("name", "key", "folder"),
    [
        ("sub-01_FLAIR.nii.gz", "sub-01_space-FLAIR", "sub-01/anat"),
        ("sub-01_ses-2_run-1_acq-3D_T1w.nii", "sub-01_ses-2_acq-3D_run-1_space-T1w", "sub-01/ses-2/anat"),
        ("sub-01_space-FLAIR_desc-preproc_T1w.nii.gz", "sub-01_space-T1w", "sub-01/anat"),
        ("José Núñez 2_FLAIR.nii.gz", "sub-JoseNunez2_space-FLAIR", "sub-JoseNunez2/anat"),
        ("sub-01_odd_FLAIR.nii.gz", "sub-01odd_space-FLAIR", "sub-01odd/anat"),
        ("patient7-flair.nii", "sub-patient7flair_space-FLAIR", "sub-patient7flair/anat"),
        ("head.nii.gz", "sub-head_space-orig", "sub-head/anat"),
        ("p1/FLAIR.nii.gz", "sub-p1_space-FLAIR", "sub-p1/anat"),
    ],
)
def test_results_are_named_after_their_scan(tmp_path, name, key, folder):
    (scan,) = find_scans([touch(tmp_path, name) / name])
    assert (scan.key, scan.folder.as_posix()) == (key, folder)


def test_the_option_says_what_a_name_does_not(tmp_path):
    touch(tmp_path, "head.nii.gz", "sub-1_FLAIR.nii.gz")
    assert keys(tmp_path / "head.nii.gz", contrast="t1") == ["sub-head_space-T1w"]
    with pytest.raises(UserError, match=r"is a FLAIR by its name; --contrast t1 says otherwise"):
        keys(tmp_path / "sub-1_FLAIR.nii.gz", contrast="t1")


def test_a_dataset_gives_every_scan_but_no_derivative(tmp_path):
    root = touch(
        tmp_path,
        "sub-2/anat/sub-2_FLAIR.nii.gz",
        "sub-1/ses-a/anat/sub-1_ses-a_run-2_FLAIR.nii.gz",
        "sub-1/ses-a/anat/sub-1_ses-a_T1w.nii",
        "sub-1/ses-a/anat/sub-1_ses-a_T2w.nii",
        "sub-1/anat/sub-1_desc-brain_T1w.nii.gz",
        "derivatives/x/sub-2/anat/sub-2_FLAIR.nii.gz",
        ".git/sub-3_FLAIR.nii.gz",
    )
    both = ["sub-1_ses-a_run-2_space-FLAIR", "sub-1_ses-a_space-T1w", "sub-2_space-FLAIR"]
    assert keys(root) == keys(root, root / "sub-2") == both
    assert keys(root, contrast="t1") == both[1:2]


@pytest.mark.parametrize("other", ["b/sub-a_FLAIR.nii.gz", "b/sub-A_FLAIR.nii", "sub-a_FLAIR.nii"])
def test_two_scans_of_one_name_are_refused_and_both_named(tmp_path, other):
    touch(tmp_path, "sub-a_FLAIR.nii.gz", other)
    with pytest.raises(UserError, match="both would be called") as caught:
        keys(tmp_path / "sub-a_FLAIR.nii.gz", tmp_path / other)
    assert str(tmp_path / "sub-a_FLAIR.nii.gz") in str(caught.value)
    assert str(tmp_path / other) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "match"), [("none.nii.gz", "no such file"), ("a.txt", "NIfTI file"), ("", "there is no …_FLAIR")]
)
def test_what_is_no_scan_is_refused(tmp_path, name, match):
    with pytest.raises(UserError, match=match):
        keys(tmp_path / name)


def test_what_cannot_be_read_is_listed_with_its_fault(tmp_path, monkeypatch):
    touch(
        tmp_path, "sub-1/sub-1_FLAIR.nii", "a/anat/sub-2_FLAIR.nii", "b/anat/sub-3_FLAIR.nii", "c\udcff/sub-4_T1w.nii"
    )
    (tmp_path / "sub-5_FLAIR.nii").symlink_to("sub-5_FLAIR.nii")
    real = os.scandir

    def refuse(path):
        if Path(path).name == "anat":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)  # root may read anything
    scans = find_scans([tmp_path])
    faults = {scan.path.relative_to(tmp_path).as_posix(): scan.fault for scan in scans}
    assert faults.pop("sub-1/sub-1_FLAIR.nii") is None
    assert faults.pop("c\udcff/sub-4_T1w.nii") is None
    assert faults.pop("sub-5_FLAIR.nii").endswith("is a link that leads in a circle.")
    assert {path: text.rsplit(": ", 1)[1] for path, text in faults.items()} == {
        "a/anat": "cannot be read, permission denied.",
        "b/anat": "cannot be read, permission denied.",
    }
    with pytest.raises(UserError, match="anat: cannot be read, permission denied"):
        find_scans([tmp_path / "a" / "anat"])


def test_a_file_that_is_a_link_to_nowhere_is_its_own_fault_only(tmp_path):
    touch(tmp_path, "sub-1_FLAIR.nii")
    (tmp_path / "sub-2_FLAIR.nii").symlink_to("sub-2_FLAIR.nii")
    (tmp_path / "sub-3_FLAIR.nii").symlink_to("nowhere")
    scans = find_scans([tmp_path / f"sub-{number}_FLAIR.nii" for number in (1, 2, 3)])
    assert [scan.fault is None for scan in scans] == [True, False, True]
    with pytest.raises(UserError, match="file name too long"):
        find_scans([tmp_path / ("x" * 300 + ".nii")])
