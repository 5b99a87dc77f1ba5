"""A change of what users rely on must be meant: it shows in a committed file. To import it, torch is enough."""

import difflib
import subprocess
import sys

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


def test_importing_steelyard_needs_torch_alone():
    heavy = ["numpy", "matplotlib", "rich", "tyro", "nibabel", "scipy", "transformers", "accelerate"]
    heavy += ["steelyard.imaging", "steelyard.cli", "steelyard.integrations"]
    code = f"""
import sys, torch
before = set(sys.modules)
import steelyard
steelyard.Balancer
print([name for name in {heavy} if name in set(sys.modules) - before])
"""
    silent = "ignore:Failed to initialize NumPy:UserWarning"  # torch's own, where numpy is not installed
    out = subprocess.run([sys.executable, "-W", silent, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
    assert out.stderr == ""


def test_without_its_parts_the_command_says_what_to_install():
    code = "import sys; sys.modules['tyro'] = None; from steelyard.__main__ import main; sys.exit(main())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert out.returncode == 2
    assert out.stderr == "steelyard: tyro is missing; install steelyard's extra 'all', as README says\n"
