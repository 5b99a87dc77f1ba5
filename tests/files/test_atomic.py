import os
import subprocess
import sys

import pytest

from killed import NOBODY, unfinished
from steelyard.errors import UserError
from steelyard.files.atomic import append_text, is_orphan, remove, stage, write_bytes
from steelyard.files.destinations import check_file, check_folder
from steelyard.files.locks import InUseError, lock_folder


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("precious")
    link.symlink_to(target)
    write_bytes(link, b"new")
    assert (link.read_text(), target.read_text(), link.is_symlink()) == ("new", "precious", False)
    link.unlink()
    link.symlink_to(target)
    remove(link)
    assert target.read_text() == "precious"


def test_what_a_killed_process_left_goes_with_the_next_write(tmp_path):
    own = stage(tmp_path / "a", b"half")
    orphan = unfinished(tmp_path / "a", NOBODY)
    elsewhere = own.with_name(f".a.elsewhere-{NOBODY}.part")
    other = own.with_name(orphan.name.replace(".a.", ".b."))
    for path in (orphan, elsewhere, other):
        path.write_bytes(b"half")
    write_bytes(tmp_path / "a", b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["a", elsewhere.name, other.name])


def test_only_what_a_killed_process_of_this_machine_left_is_an_orphan(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
        assert is_orphan(unfinished(tmp_path / "a", child.pid))
    assert is_orphan(unfinished(tmp_path / "a", NOBODY))
    assert is_orphan(stage(tmp_path / "a", b"of an earlier call"))
    assert not is_orphan(unfinished(tmp_path / "a", os.getppid()))
    for name in (f".a.elsewhere-{NOBODY}.part", ".notes.draft-1.part", "a.part", ".a.unfinished"):
        assert not is_orphan(tmp_path / name)


def test_windows_is_not_asked_by_signal_which_processes_run(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a signal was sent"))
    assert not is_orphan(unfinished(tmp_path / "a"))


def test_a_link_under_the_temporary_name_is_not_written_through(tmp_path):
    temporary = stage(tmp_path / "a", b"")
    temporary.unlink()
    temporary.symlink_to(tmp_path / "outside")
    write_bytes(tmp_path / "a", b"new")
    assert not (tmp_path / "outside").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_appending_never_changes_a_file_under_another_name(tmp_path):
    path = tmp_path / "epochs.csv"
    append_text(path, "a\n")
    os.link(path, tmp_path / "other")
    append_text(path, "b\n")
    append_text(path, "c\n")
    assert path.read_text() == "a\nb\nc\n"
    assert (tmp_path / "other").read_text() == "a\n"


@pytest.mark.parametrize("target", ["nothing", "precious"])
def test_appending_to_a_link_is_refused(tmp_path, target):
    (tmp_path / "precious").write_text("years")
    (tmp_path / "epochs.csv").symlink_to(tmp_path / target)
    with pytest.raises(UserError, match=r"epochs\.csv: is a link; remove it to go on\.$"):
        append_text(tmp_path / "epochs.csv", "a\n")
    assert (tmp_path / "precious").read_text() == "years"
    assert not (tmp_path / "nothing").exists()


def test_appending_to_a_pipe_does_not_wait(tmp_path):
    os.mkfifo(tmp_path / "epochs.csv")
    with pytest.raises(UserError, match=r"epochs\.csv: "):
        append_text(tmp_path / "epochs.csv", "a\n")


@pytest.fixture
def unusable(tmp_path):
    """Things that are no folder."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "file").write_text("precious")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


@pytest.mark.parametrize("name", ["loop", "dangling", "file", "pipe", "file/below", "loop/below/further"])
def test_what_is_no_folder_is_refused_and_nothing_is_made(unusable, name):
    before = {path.name for path in unusable.iterdir()}
    with pytest.raises(UserError, match=f"{name}: .*a folder is needed"):
        check_folder(unusable / name)
    with pytest.raises(UserError, match="a folder is needed"), lock_folder(unusable / name):
        pass
    assert {path.name for path in unusable.iterdir()} == before


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_may_not_be_written_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    for check in (check_folder, check_file):
        with pytest.raises(UserError, match="permission denied"):
            check(tmp_path / "new")


def failing(folder, names):
    with lock_folder(folder):
        for name in names:
            (folder / name).touch()
        raise ValueError("too late")


@pytest.mark.parametrize("names", [(), ("result",)])
def test_a_folder_that_nothing_was_written_into_goes_with_the_failure(tmp_path, names):
    with pytest.raises(ValueError, match="too late"):
        failing(tmp_path / "a" / "b", names)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == set(names)
    assert (tmp_path / "a").exists() == bool(names)


def test_one_folder_has_one_run(tmp_path):
    with lock_folder(tmp_path):
        with pytest.raises(InUseError, match="another run is working on it"), lock_folder(tmp_path):
            pass
        assert not list(tmp_path.iterdir())
    with lock_folder(tmp_path):
        pass


@pytest.mark.parametrize("name", ["loop", "dangling", "pipe", "file", "file/below"])
def test_files_that_are_not_ours_are_not_replaced(unusable, name):
    for mark in (None, "our mark"):
        with pytest.raises(UserError, match=r"name another file|a folder is needed"):
            check_file(unusable / name, mark=mark)


def test_files_of_ours_may_be_replaced(tmp_path):
    path = tmp_path / "page.html"
    check_file(path, mark="our mark")
    path.write_text("<!doctype html>our mark")
    check_file(path, mark="our mark")
    with pytest.raises(UserError, match="exists already; remove it or name another file"):
        check_file(path)
