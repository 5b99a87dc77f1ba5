import csv
import importlib.util
import json
import re
import shlex
import types
from pathlib import Path
from statistics import fmean

import pytest
import tyro

import steelyard
from steelyard.cli import COMMANDS
from steelyard.experiments.problems import catalogue as problems
from steelyard.experiments.regret.groups import GROUPS
from steelyard.experiments.regret.methods import COMPARED
from steelyard.experiments.regret.trial import parse_method
from steelyard.report.data.results import read_results

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


# Of Lightning: it asks for an outdated class of torch's, and advises more workers.
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning", "ignore:.*does not have many workers:UserWarning")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_snippets_run(page, capsys):
    if page.name == "nnunet.md":
        pytest.importorskip("nnunetv2", reason="the Makefile installs it without what it asks for")
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


def test_the_paths_that_contributing_names_exist():
    named = re.findall(r"`((?:src|tests|docs)/[^`]*)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 20
    missing = [path for path in named if "your_" not in path and not (ROOT / path).exists()]
    assert missing == []


def test_the_commands_of_contributing_exist():
    commands = re.findall(r"`make ([a-z-]+)", (ROOT / "CONTRIBUTING.md").read_text())
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert {"format", "quick", "test", "fuzz", "docs", "snapshots", "same-bits"} <= set(commands) <= set(targets)


def test_the_readme_states_the_benchmark_as_measured():
    number = r"([\d.]+)"
    row = rf"^\| `([a-z-]+)` \| (\d+) \| `([a-z -]+)` \| (\d+) \| {number}× \| {number}× \|$"
    rows = re.findall(row, (ROOT / "README.md").read_text(), re.MULTILINE)
    measured = {
        (r["network"], str(r["domains"]), r["method"], str(r["every"])): tuple(
            "" if r[key] is None else f"{r[key]:.2f}" for key in ("time_ratio", "memory_ratio")
        )
        for r in json.loads((ROOT / "docs" / "cost.json").read_text())
    }
    assert len(rows) >= 8
    assert [measured[row[:4]] for row in rows] == [row[4:] for row in rows]


def test_the_method_states_the_toys_errors_as_measured():
    with (ROOT / "docs" / "noisy_labels.csv").open() as file:
        errors = {row["method"]: float(row["error"]) for row in csv.DictReader(file) if row["domains"] == "2"}
    page = (ROOT / "docs" / "method.md").read_text()
    stated = re.search(r"falls from ([\d.]+) to ([\d.]+) \(best possible: ([\d.]+)\)", page)
    assert stated.groups() == tuple(f"{errors[method]:.3f}" for method in ("equal", "greedy", "best"))


def test_the_commands_of_the_readme_parse():
    lines = "\n".join(blocks(ROOT / "README.md", "bash")).splitlines()
    commands = [line.split("#")[0].split()[1:] for line in lines if line.startswith("steelyard ")]
    assert {command[0] for command in commands} >= {"phantom", "preprocess"}
    for command in commands:
        tyro.extras.subcommand_cli_from_dict(COMMANDS, args=command)


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


def test_the_real_nine_are_stated_as_measured():
    page, readme = (path.read_text() for path in (ROOT / "docs" / "real_nine.md", ROOT / "README.md"))
    rows = read_results(ROOT / "docs" / "results" / "real_nine" / "results.csv").rows
    means = {}
    for method in ("equal", "flair-only", "t1-only"):
        scores = {domain: [] for domain in ("flair", "t1")}
        for row in rows:
            if row.run.method == method:
                scores[row.domain].append(row.metrics["dsc"])
        means[method] = [f"{fmean(scores[domain]):.3f}" for domain in ("flair", "t1")]
        assert f"| {method} | {' | '.join(means[method])} |" in page
    assert f"{means['equal'][0]} on FLAIR and {means['equal'][1]} on T1" in " ".join(readme.split())
    assert f"reach {means['flair-only'][0]} and {means['t1-only'][1]}" in " ".join(readme.split())


@pytest.mark.parametrize("name", ["regret.md", "does_it_pay.md"])
def test_the_commands_of_the_suite_parse(name):
    lines = "".join(blocks(ROOT / "docs" / name, "bash")).splitlines()
    assert lines
    for line in lines:
        command = line.split("#")[0].split("steelyard ")[1].split()
        assert command[0] == "regret"
        tyro.extras.subcommand_cli_from_dict(COMMANDS, args=command)


def test_the_page_of_the_suite_names_all_there_is():
    page = (ROOT / "docs" / "regret.md").read_text()
    names = {*problems.NAMES, *GROUPS}
    names.update(parse_method(text)[0] for text in COMPARED)
    for problem in ("digits", "wine", "phantoms"):
        names.update(problems.problem_named(problem).variants)
    assert {name for name in names if f"`{name}`" not in page} == {"drift"}
    assert "| drift |" in page
    for group in ("choosing", "confirming", "drift"):
        for block in GROUPS[group]:
            first, end = block.seeds
            row = next(
                line for line in page.splitlines() if line.startswith(f"| {group} |") and f"`{block.problem}`" in line
            )
            assert f"| {first} to {end - 1}" in row
