import errno
import gzip
import json
import os
import shutil
import tracemalloc
import unicodedata
from functools import partial

import pytest

import heads
from steelyard.errors import UserError
from steelyard.imaging.datasets.bids import GENERATOR, read_bids
from steelyard.imaging.datasets.copies import refuse_copies
from steelyard.imaging.datasets.pairs import Patterns, read_pairs
from steelyard.imaging.datasets.subjects import bids_label


def touch(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


def test_raw_bids_with_masks_in_derivatives(tmp_path):
    heads.write_subject(tmp_path, "01")
    (subject,) = read_bids(tmp_path).subjects
    assert subject.key == "sub-01"
    assert subject.flair.name == "sub-01_FLAIR.nii.gz"
    assert subject.t1.name == "sub-01_T1w.nii.gz"
    assert subject.wmh.name == "sub-01_space-FLAIR_label-WMH_mask.nii.gz"
    assert subject.brain.name == "sub-01_space-FLAIR_label-brain_mask.nii.gz"


def test_each_session_is_a_visit_of_its_own(tmp_path):
    for session in ("a", "b"):
        touch(tmp_path / "sub-1" / f"ses-{session}" / "anat" / f"sub-1_ses-{session}_FLAIR.nii")
    masks = tmp_path / "derivatives" / "manual" / "sub-1" / "ses-b" / "anat"
    touch(masks / "sub-1_ses-b_space-FLAIR_label-WMH_mask.nii.gz")
    first, second = read_bids(tmp_path).subjects
    assert (first.key, second.key) == ("sub-1_ses-a", "sub-1_ses-b")
    assert (first.wmh is None, second.wmh is None) == (True, False)
    assert first.flair.suffix == ".nii"
    assert second.folder.as_posix() == "sub-1/ses-b/anat"


def test_several_runs_are_ambiguous_until_one_is_chosen(tmp_path):
    for run in ("01", "02"):
        touch(tmp_path / "sub-1" / "anat" / f"sub-1_run-{run}_T1w.nii.gz")
    touch(tmp_path / "sub-2" / "anat" / "sub-2_T1w.nii.gz")
    dataset = read_bids(tmp_path)
    assert [subject.key for subject in dataset.subjects] == ["sub-2"]
    assert "sub-1: 2 files could be its t1: sub-1_run-01_T1w.nii.gz" in str(dataset.faults[0])
    chosen = read_bids(tmp_path, choose=["run-2"])
    assert [subject.t1.name for subject in chosen.subjects] == ["sub-1_run-02_T1w.nii.gz", "sub-2_T1w.nii.gz"]
    with pytest.raises(UserError, match="key-value"):
        read_bids(tmp_path, choose=["2"])


def test_one_scan_as_nii_and_nii_gz_is_one_if_the_bytes_are(tmp_path):
    plain = touch(tmp_path / "sub-1" / "anat" / "sub-1_FLAIR.nii")
    plain.write_bytes(b"scan")
    packed = plain.with_name("sub-1_FLAIR.nii.gz")
    packed.write_bytes(gzip.compress(b"scan"))
    (subject,) = read_bids(tmp_path).subjects
    assert subject.flair == packed
    (pair,) = read_pairs(plain.parent, Patterns(flair="{subject}_FLAIR.nii")).subjects
    assert pair.flair == packed
    for other in (gzip.compress(b"other"), b"no gzip"):
        packed.write_bytes(other)
        assert "2 files could be its flair" in read_bids(tmp_path).faults[0].text


def test_a_file_without_the_chosen_entity_gives_way(tmp_path):
    anat = tmp_path / "sub-1" / "anat"
    for name in ("FLAIR", "acq-3D_FLAIR", "T1w", "label-WMH_mask", "label-lesion_mask", "label-brain_mask"):
        touch(anat / f"sub-1_{name}.nii.gz")
    (fault,) = read_bids(tmp_path).faults
    assert "could be its flair: sub-1_FLAIR.nii.gz, sub-1_acq-3D_FLAIR.nii.gz; choose one" in fault.text
    assert "such as --choose acq-3D" in fault.text
    assert "such as --choose label-WMH" in fault.text
    (subject,) = read_bids(tmp_path, choose=["acq-3D", "label-WMH"]).subjects
    assert [path.name.removeprefix("sub-1_") for path in subject.files] == [
        "acq-3D_FLAIR.nii.gz",
        "T1w.nii.gz",
        "label-WMH_mask.nii.gz",
        "label-brain_mask.nii.gz",
    ]


def test_masks_of_one_name_in_two_places_are_told_by_their_folders(tmp_path):
    touch(tmp_path / "sub-1" / "anat" / "sub-1_FLAIR.nii")
    for rater in ("ann", "bo"):
        touch(tmp_path / "derivatives" / rater / "sub-1" / "anat" / "sub-1_label-WMH_mask.nii")
    text = read_bids(tmp_path).faults[0].text
    assert "/ann/" in text
    assert text.endswith("; keep one of them")


def test_scans_beside_session_folders_are_a_visit_too(tmp_path):
    touch(tmp_path / "sub-1" / "anat" / "sub-1_T1w.nii")
    touch(tmp_path / "sub-1" / "ses-a" / "anat" / "sub-1_ses-a_T1w.nii")
    assert [subject.key for subject in read_bids(tmp_path).subjects] == ["sub-1", "sub-1_ses-a"]


@pytest.mark.parametrize("method", ["iterdir", "is_dir"])
def test_a_folder_that_cannot_be_listed_is_its_subjects_fault(tmp_path, monkeypatch, method):
    for name in "12":
        touch(tmp_path / f"sub-{name}" / "anat" / f"sub-{name}_T1w.nii")
    kind = type(tmp_path)
    real = getattr(kind, method)

    def refuse(self, *rest):
        if self.parent.name == "sub-1" if method == "is_dir" else self.name == "sub-1":
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return real(self, *rest)

    monkeypatch.setattr(kind, method, refuse)
    dataset = read_bids(tmp_path)
    assert [subject.key for subject in dataset.subjects] == ["sub-2"]
    (fault,) = dataset.faults
    assert fault.subject == "sub-1"
    assert "cannot be read, permission denied" in fault.text


def test_ambiguous_brain_masks_are_a_note_where_none_is_needed(tmp_path):
    for name in ("FLAIR", "desc-a_label-brain_mask", "desc-b_label-brain_mask"):
        touch(tmp_path / f"sub-1_{name}.nii")
        touch(tmp_path / "sub-1" / "anat" / f"sub-1_{name}.nii")
    touch(tmp_path / "sub-1_brain.nii").write_bytes(b"one")
    touch(tmp_path / "sub-1_brain.nii.gz").write_bytes(b"two")
    patterns = Patterns(flair="{subject}_FLAIR.nii", brain="{subject}_brain.nii")
    for read in (partial(read_bids, tmp_path), partial(read_pairs, tmp_path, patterns)):
        assert "2 files could be its brain" in read().faults[0].text
        dataset = read(optional=("brain",))
        (subject,) = dataset.subjects
        assert subject.brain is None
        assert any("2 files could be its brain" in note.text for note in dataset.notes)


def test_two_faults_of_one_subject_are_one_remark(tmp_path):
    for name in ("run-1_T1w", "run-2_T1w", "run-1_FLAIR", "run-2_FLAIR"):
        touch(tmp_path / "sub-1" / "anat" / f"sub-1_{name}.nii")
    (fault,) = read_bids(tmp_path).faults
    assert "its flair" in fault.text
    assert "its t1" in fault.text


def test_copies_are_refused_in_both_subjects_and_each_names_the_other(tmp_path):
    for seed, name in enumerate("abc"):
        heads.write_subject(tmp_path, name, seed=seed)
    paths = {name: tmp_path / f"sub-{name}" / "anat" / f"sub-{name}_FLAIR.nii.gz" for name in "abc"}
    shutil.copy(paths["a"], paths["b"])
    dataset = refuse_copies(read_bids(tmp_path))
    assert [subject.key for subject in dataset.subjects] == ["sub-c"]
    assert list(map(str, dataset.faults)) == [
        f"sub-{one}: {paths[one]} is the same file as {paths[other]} of sub-{other}; one head has two names"
        for one, other in ("ab", "ba")
    ]


def test_one_scan_as_both_contrasts_is_refused(tmp_path):
    anat = heads.write_subject(tmp_path, "a")
    shutil.copy(anat / "sub-a_FLAIR.nii.gz", anat / "sub-a_T1w.nii.gz")
    dataset = refuse_copies(read_bids(tmp_path))
    assert not dataset.subjects
    (fault,) = dataset.faults
    assert fault.text.endswith("are the same file")


def test_files_that_cannot_be_read_are_no_copies(tmp_path):
    for name in "ab":
        touch(tmp_path / f"sub-{name}/anat/sub-{name}_FLAIR.nii")
    first, second = refuse_copies(read_bids(tmp_path)).faults
    assert "sub-a_FLAIR.nii" in first.text
    assert "sub-b_FLAIR.nii" in second.text
    assert "same file" not in first.text + second.text


def test_one_contrast_is_enough_and_none_is_a_fault(tmp_path):
    touch(tmp_path / "sub-1" / "anat" / "sub-1_T1w.nii.gz")
    touch(tmp_path / "sub-2" / "anat" / "sub-2_FLAIR.nii.gz")
    touch(tmp_path / "sub-3" / "anat" / "sub-3_bold.nii.gz")
    dataset = read_bids(tmp_path)
    assert [subject.key for subject in dataset.subjects] == ["sub-1", "sub-2"]
    assert "sub-1: no FLAIR; the T1w scan is processed alone" in map(str, dataset.notes)
    assert "sub-2: no T1w; the FLAIR scan is processed alone" in map(str, dataset.notes)
    assert list(map(str, dataset.faults)) == ["sub-3: there is neither a FLAIR nor a T1w scan"]


def test_derivatives_are_read_with_the_masks_beside_them_and_our_own_are_nobodys_masks(tmp_path):
    heads.write_subject(tmp_path, "01")
    ours = tmp_path / "derivatives" / "steelyard"
    for name in (
        "desc-preproc_FLAIR",
        "desc-preproc_T1w",
        "label-brain_mask",
        "label-WMH_mask",
        "label-brain_desc-supplied_mask",
    ):
        touch(ours / "sub-01" / "anat" / f"sub-01_space-FLAIR_{name}.nii.gz")
    touch(ours / "sub-01" / "anat" / "sub-01_desc-biasfield_FLAIR.nii.gz")
    description = {"Name": "x", "DatasetType": "derivative", "GeneratedBy": [{"Name": GENERATOR}]}
    (ours / "dataset_description.json").write_text(json.dumps(description))
    (raw,) = read_bids(tmp_path).subjects
    assert "manual" in raw.brain.parts
    (ready,) = read_bids(ours).subjects
    assert ready.flair.name == "sub-01_space-FLAIR_desc-preproc_FLAIR.nii.gz"
    assert ready.brain.name == "sub-01_space-FLAIR_label-brain_mask.nii.gz"


def test_subjects_that_become_one_are_duplicates(tmp_path):
    composed, decomposed = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
    for name in (composed, decomposed):
        touch(tmp_path / f"sub-{name}" / "anat" / f"sub-{name}_FLAIR.nii.gz")
    dataset = read_bids(tmp_path)
    assert len(dataset.subjects) == 1
    assert "the subject is there twice" in dataset.faults[0].text


def test_labels_hold_letters_and_digits_and_stay_apart():
    assert bids_label("José Núñez") == "JoseNunez"
    assert bids_label("患者一") != bids_label("患者二")
    assert all(bids_label(name).isalnum() and bids_label(name).isascii() for name in ("患者一", "a-b_c d", "Ж1"))


def test_a_folder_that_is_not_there_or_holds_no_subject(tmp_path):
    with pytest.raises(UserError, match="there is no such folder"):
        read_bids(tmp_path / "absent")
    with pytest.raises(UserError, match="no BIDS dataset"):
        read_bids(tmp_path)


def test_plain_folders_of_pairs_by_a_pattern(tmp_path):
    for name in ("Ann Lee", "Bo"):
        touch(tmp_path / f"{name}_FLAIR.nii.gz")
    touch(tmp_path / "Ann Lee_T1.nii")
    dataset = read_pairs(tmp_path, Patterns(flair="{subject}_FLAIR.nii.gz", t1="{subject}_T1.nii.gz"))
    assert [(subject.name, subject.key) for subject in dataset.subjects] == [
        ("Ann Lee", "sub-AnnLee"),
        ("Bo", "sub-Bo"),
    ]
    assert dataset.subjects[0].t1.name == "Ann Lee_T1.nii"
    assert dataset.subjects[1].t1 is None


def test_plain_folders_of_folders_and_their_doubts(tmp_path):
    for ending in (".nii", ".nii.gz"):
        touch(tmp_path / "7" / f"7-t1{ending}").write_bytes(ending.encode())
    dataset = read_pairs(tmp_path, Patterns(t1="{subject}/{subject}-t1.nii"))
    assert "2 files could be its t1" in dataset.faults[0].text
    with pytest.raises(UserError, match="no file fits"):
        read_pairs(tmp_path, Patterns(t1="{subject}.nii"))
    with pytest.raises(UserError, match=r"must hold \{subject\}"):
        Patterns(t1="t1.nii")
    with pytest.raises(UserError, match="a pattern for flair"):
        Patterns()


def test_a_file_that_may_not_be_looked_at_stops_no_other(tmp_path, monkeypatch):
    for name in "12":
        touch(tmp_path / name / "flair.nii")
    kind = type(tmp_path)
    real = kind.is_file

    def refuse(self, *rest):
        if self.parent.name == "1":
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return real(self, *rest)

    monkeypatch.setattr(kind, "is_file", refuse)
    assert len(read_pairs(tmp_path, Patterns(flair="{subject}/flair.nii")).subjects) == 2


def test_links_that_lead_nowhere_and_names_that_are_not_utf8_are_their_subjects_faults(tmp_path):
    touch(tmp_path / "sub-1" / "anat" / "sub-1_FLAIR.nii")
    (tmp_path / "sub-circle").symlink_to("sub-circle")
    (tmp_path / "sub-gone").symlink_to("nowhere")
    for letter in ("\udcfc", "\udcf6"):  # one byte of Latin-1 each, as Python shows it
        touch(tmp_path / f"sub-M{letter}ller" / "anat" / f"sub-M{letter}ller_FLAIR.nii")
    (tmp_path / "sub-5" / "ses-a").mkdir(parents=True)
    (tmp_path / "sub-5" / "ses-a" / "anat").symlink_to("anat")
    (tmp_path / "derivatives").symlink_to("derivatives")
    dataset = read_bids(tmp_path)
    assert [subject.key for subject in dataset.subjects] == ["sub-1"]
    texts = list(map(str, dataset.faults))
    assert all(fault.bad_name for fault in dataset.faults)
    assert sorted(text.rsplit(": ", 1)[1] for text in texts) == [
        *["is a link that leads to no folder"] * 3,
        *["the name is not UTF-8; rename it"] * 2,
    ]
    assert len({fault.subject for fault in dataset.faults}) == 5
    assert "sub-M?ller_FLAIR.nii: the name" in "".join(texts).encode().decode()


def test_in_a_plain_folder_too_links_that_lead_nowhere_are_faults(tmp_path):
    for name in ("a", "b"):
        touch(tmp_path / name / "flair.nii")
        touch(tmp_path / name / "t1.nii")
    (tmp_path / "b" / "flair.nii").unlink()
    (tmp_path / "b" / "flair.nii").symlink_to("flair.nii")
    (tmp_path / "circle").symlink_to("circle")
    touch(tmp_path / "\udcff" / "flair.nii")
    os.mkfifo(tmp_path / "a" / "other.nii")
    dataset = read_pairs(tmp_path, Patterns(flair="{subject}/flair.nii", t1="{subject}/t1.nii"))
    assert [subject.key for subject in dataset.subjects] == ["sub-a"]
    assert ["circle" in str(fault) or "UTF-8" in str(fault) for fault in dataset.faults] == [True] * 3
    piped = read_pairs(tmp_path, Patterns(flair="{subject}/other.nii", t1="{subject}/t1.nii"))
    assert piped.subjects[0].flair == tmp_path / "a" / "other.nii"  # it fails when it is read


def test_a_packed_twin_is_compared_piece_by_piece(tmp_path):
    plain = touch(tmp_path / "sub-1" / "anat" / "sub-1_FLAIR.nii")
    plain.write_bytes(bytes(100))
    plain.with_name("sub-1_FLAIR.nii.gz").write_bytes(gzip.compress(bytes(2**26)) * 4)
    tracemalloc.start()
    try:
        (fault,) = read_bids(tmp_path).faults
        assert tracemalloc.get_traced_memory()[1] < 8e6
    finally:
        tracemalloc.stop()
    assert "2 files could be its flair" in fault.text


@pytest.mark.parametrize("read", [read_bids, partial(read_pairs, patterns=Patterns(t1="{subject}.nii"))])
def test_a_path_that_is_too_long_is_one_line(tmp_path, read):
    with pytest.raises(UserError, match="file name too long"):
        read(tmp_path / ("x" * 300))
