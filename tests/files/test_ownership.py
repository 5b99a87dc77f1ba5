"""Whatever lies in a folder of results, and wherever a run is killed: only what is on record is replaced or deleted."""

import json
import os

import pytest

import killed
from steelyard.errors import UserError
from steelyard.files import atomic, ownership
from steelyard.files.ownership import (
    delete_results,
    discard_unfinished,
    is_intact,
    read_sealed,
    replace_top_file,
    withdraw,
    write_results,
)

CONTENT = {"Type": "Lesion", "Steelyard": {"Fingerprint": "a", "Numbers": [0.1, 2]}}


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def paths(out, *names):
    return [out / "sub-1" / "anat" / name for name in names]


def write(out, version, names=("mask", "map")):
    """Write results of a version; the record lies beside them."""
    record, *files = paths(out, "record.json", *names)
    plan = {path: f"{path.name} {version}".encode for path in files}
    return write_results(out, record, plan, CONTENT)


def contents(out):
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_results_are_replaced_and_what_is_no_longer_among_them_is_deleted(out):
    record, mask, other = paths(out, "record.json", "mask", "map")
    assert write(out, 1) == []
    assert is_intact(out, record)
    assert read_sealed(record)["Numbers"] == [0.1, 2]
    assert write(out, 2, names=("mask",)) == []
    assert mask.read_bytes() == b"mask 2"
    assert not other.exists()
    assert set(contents(out)) == {"sub-1/anat/record.json", "sub-1/anat/mask"}


def test_a_file_that_was_changed_is_moved_and_never_replaces_what_was_moved_before(out):
    record, mask = paths(out, "record.json", "mask")
    write(out, 1)
    for number in (1, 2):
        mask.write_text(f"corrected {number}")
        assert not is_intact(out, record)
        assert write(out, 2) == [mask]
    moved = out / ".withdrawn" / "sub-1" / "anat"
    assert (moved / "mask").read_text() == "corrected 1"
    assert (moved / "mask.2").read_text() == "corrected 2"
    assert mask.read_bytes() == b"mask 2"


@pytest.mark.parametrize("spoil", ["foreign", "sizes only", "edited"])
def test_without_a_record_that_proves_it_nothing_is_ours(out, spoil):
    record, mask, other = paths(out, "record.json", "mask", "map")
    write(out, 1)
    content = json.loads(record.read_text())
    if spoil == "foreign":
        record.unlink()
    elif spoil == "sizes only":  # as earlier versions wrote them
        content["Steelyard"]["Outputs"] = {"sub-1/anat/mask": 6, "sub-1/anat/map": 5}
        record.write_text(json.dumps(content))
    else:
        record.write_text(json.dumps(content | {"Comment": "checked"}))
    before = contents(out)
    assert {mask, other} <= set(write(out, 2))
    assert {
        path.removeprefix(".withdrawn/"): held for path, held in contents(out).items() if "withdrawn" in path
    } == before


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "sub-1/anat/../../../outside", "a\0b"])
def test_names_in_a_record_lead_nowhere_else(out, name, monkeypatch):
    outside = out.parent / "outside"
    outside.write_text("precious")
    record = out / "record.json"
    known = ownership.digest(outside)
    record.write_text(json.dumps(ownership._sealed({"Steelyard": {}}, {name: known})))
    delete_results(out, record)
    assert outside.read_text() == "precious"


class Killed(BaseException):
    pass


def killed_at(monkeypatch, step):
    """Let the run die at one of its steps on the file system, without a chance to tidy up."""
    done = []

    def fatal(name, real):
        def call(*arguments, **named):
            done.append(name)
            if len(done) > step:
                raise Killed
            return real(*arguments, **named)

        return call

    monkeypatch.setattr(atomic.Path, "replace", fatal("rename", atomic.Path.replace))
    monkeypatch.setattr(os, "fsync", fatal("write", os.fsync))
    monkeypatch.setattr(atomic, "remove", fatal("remove", atomic.remove))
    monkeypatch.setattr(ownership, "remove", fatal("remove", ownership.remove))
    for module in (atomic, ownership):
        monkeypatch.setattr(module, "discard", lambda unfinished: None)
    return done


@pytest.mark.parametrize("step", range(11))
def test_a_run_that_is_killed_leaves_nothing_that_is_not_known(out, monkeypatch, step):
    """Old results, new ones or none; never a mixture, a leftover, or a loss of what is not ours."""
    record, mask = paths(out, "record.json", "mask")
    write(out, 1, names=("mask", "map", "old"))
    mask.write_text("corrected")
    paths(out, "mine")[0].write_text("mine")
    with monkeypatch.context() as patch:
        done = killed_at(patch, step)
        try:
            write(out, 2)
            assert step >= len(done)
        except Killed:
            assert step < len(done)
    discard_unfinished(out)
    after = {name.rpartition("/")[2]: held for name, held in contents(out).items() if "withdrawn" not in name}
    moved = out / ".withdrawn" / "sub-1" / "anat" / "mask"
    assert after.pop("mine") == b"mine"
    assert b"corrected" in (after.pop("mask") if not moved.exists() else moved.read_bytes(), b"")
    assert not [name for name in after if name.startswith(".")]
    if is_intact(out, record):
        assert set(after) == {"record.json", "map", "mask"} if "old" not in after else {"record.json", "map", "old"}
    write(out, 2)
    assert is_intact(out, record)
    assert {path.name for path in record.parent.iterdir()} == {"record.json", "mask", "map", "mine"}
    assert moved.read_text() == "corrected"


def test_a_full_disk_leaves_earlier_results_as_they_were(out, monkeypatch):
    write(out, 1)
    before = contents(out)
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(UserError, match=r"anat/mask: the disk is full\.$"):
        write(out, 2)
    assert contents(out) == before


def test_unfinished_names_are_swept_and_others_are_not(out):
    swept = killed.unfinished(out / "mask")
    mine = [out / name for name in (".mine.part", "mine.part", ".mine.unfinished", ".mine.draft-1.part")]
    mine.append(killed.unfinished(out / ".withdrawn" / "a"))
    for path in (swept, *mine):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    discard_unfinished(out)
    assert {path for path in out.rglob("*") if path.is_file()} == set(mine)


def test_files_about_the_whole_folder_are_written_anew_unless_somebody_changed_them(out):
    table = out / "volumes.csv"
    assert [replace_top_file(out, "volumes.csv", text) for text in ("a", "a", "b", "a")] == [[]] * 4
    table.write_text("a, with my notes")
    assert replace_top_file(out, "volumes.csv", "c") == [table]
    assert (out / ".withdrawn" / "volumes.csv").read_text() == "a, with my notes"
    assert table.read_text() == "c"


@pytest.mark.parametrize("linked", ["sub-1", "sub-1/anat"])
def test_nothing_is_written_or_deleted_through_a_link(out, tmp_path, linked):
    record, mask = paths(out, "record.json", "mask")
    write(out, 1)
    (out / linked).rename(tmp_path / "elsewhere")
    (out / linked).symlink_to(tmp_path / "elsewhere")
    before = contents(tmp_path / "elsewhere")
    for action in (lambda: write(out, 2), lambda: delete_results(out, record), lambda: withdraw(out, [mask])):
        with pytest.raises(UserError, match=f"{linked}: is a link"):
            action()
    discard_unfinished(out)
    assert contents(tmp_path / "elsewhere") == before


def test_results_do_not_leave_through_the_folder_of_withdrawn_ones(out, tmp_path):
    (mask,) = paths(out, "mask")
    write(out, 1)
    mask.write_text("corrected")
    (tmp_path / "elsewhere").mkdir()
    (out / ".withdrawn").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="withdrawn: is a link"):
        write(out, 2)
    assert mask.read_text() == "corrected"
    assert not list((tmp_path / "elsewhere").iterdir())
