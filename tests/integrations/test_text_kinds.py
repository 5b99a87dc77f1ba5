"""The example trains on text of three kinds, and its audit names the one with poor labels."""

import runpy
from pathlib import Path

import pytest

pytest.importorskip("transformers")

EXAMPLE = Path(__file__).parents[2] / "examples" / "text_kinds.py"


def test_the_audit_names_the_noisy_kind(capsys):
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    audit = capsys.readouterr().out.split("\ndomain ")[1]
    assert "posts: noisy labels." in audit
    assert audit.count("noisy labels.") == 1
