import importlib.util
import json
import re
import shlex
import types
from pathlib import Path

import pytest

import steelyard

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
UNDOCUMENTED = """
class Public:
    '''Documented.'''
    def method(self): ...
    @property
    def value(self): ...
def public(): ...
"""


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("build", ROOT / "docs" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_snippets_run(page, capsys):
    namespace = {}
    for block in blocks(page, "python"):
        exec(block, namespace)
    assert capsys.readouterr().out


def test_the_commands_of_the_readme_exist():
    commands = [
        line.split("#")[0].strip() for block in blocks(ROOT / "README.md", "bash") for line in block.splitlines()
    ]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    made = [shlex.split(command)[1] for command in commands if command.startswith("make ")]
    assert {"demo", "test"} <= set(made) <= set(targets)
    ci = (ROOT / ".ci" / "run").read_text()
    assert all(f"make {target}\n" in ci for target in ("demo", "test"))


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readme_states_the_benchmark_as_measured():
    number = r"([\d.]+)"
    row = rf"^\| `([a-z-]+)` \| {number} \| {number}× \| {number} \| {number}× \|$"
    rows = re.findall(row, (ROOT / "README.md").read_text(), re.MULTILINE)
    measured = [
        (
            r["method"],
            str(r["every"]),
            *(f"{r[key]:.2f}" for key in ("time_ratio", "time_ratio_spread", "memory_ratio")),
        )
        for r in json.loads((ROOT / "docs" / "benchmark.json").read_text())
    ]
    assert rows == measured


def test_the_reference_names_everything_public(build, tmp_path):
    assert build.main(tmp_path) == 0
    page = (tmp_path / "steelyard.html").read_text()
    for name in steelyard.__all__:
        assert f'id="{name}"' in page, name


def test_a_public_name_without_documentation_fails_the_build(build, monkeypatch, tmp_path, capsys):
    assert list(build.undocumented(steelyard)) == []
    module = types.ModuleType("undocumented")
    exec(UNDOCUMENTED, module.__dict__)
    module.__all__ = ["Public", "public"]
    assert set(build.undocumented(module)) == {
        "undocumented.Public.method",
        "undocumented.Public.value",
        "undocumented.public",
    }
    monkeypatch.setattr(build, "undocumented", lambda _: ["steelyard.Nameless"])
    assert build.main(tmp_path) == 1
    assert "steelyard.Nameless is public and has no docstring" in capsys.readouterr().err
