"""A change of what users rely on must be meant: it shows in a committed file."""

import difflib

import pytest

import public_api

ADVICE = "If the change is meant: run `make snapshots`, read the difference, and tell users in CHANGELOG.md."


def check(file, description):
    committed = file.read_text(encoding="utf-8").splitlines()
    difference = difflib.unified_diff(committed, description.splitlines(), file.name, "now", lineterm="", n=1)
    lines = list(difference)
    if lines:
        pytest.fail("\n".join(["The public interface changed.", *lines, ADVICE]), pytrace=False)


def test_the_library_is_as_committed():
    check(public_api.LIBRARY, public_api.library())


def test_the_command_line_is_as_committed():
    pytest.importorskip("tyro", reason="the command line needs the extra `cli`")
    pytest.importorskip("rich", reason="the command line needs the extra `cli`")
    check(public_api.COMMAND_LINE, public_api.command_line())


def test_a_changed_default_or_a_new_method_is_seen():
    with pytest.raises(pytest.fail.Exception, match=r"(?s)-.*every: int=1.*\+.*every: int=2.*make snapshots"):
        check(public_api.LIBRARY, public_api.library().replace("every: int=1", "every: int=2"))
    with pytest.raises(pytest.fail.Exception, match=r"\+    surprise\(self\)"):
        check(public_api.LIBRARY, public_api.library() + "    surprise(self)\n")
