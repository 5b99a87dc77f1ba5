"""The repository stays light: results are summarised before they are committed."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import steelyard

ROOT = Path(__file__).parents[2]
MOST_FILES = 700
MOST_BYTES = 8 * 1000**2
CHANGELOG_SECTIONS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


@pytest.fixture(scope="module")
def tracked():
    """The files that git tracks and that are there."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    try:
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is not a git checkout, so there are no tracked files to count")
    paths = [ROOT / name for name in listing.split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_there_are_few_files(tracked):
    folders = {}
    for path in tracked:
        folder = "/".join(path.relative_to(ROOT).parts[:3])
        folders[folder] = folders.get(folder, 0) + 1
    largest = sorted(folders, key=folders.get, reverse=True)[:5]
    listed = ", ".join(f"{folder} ({folders[folder]})" for folder in largest)
    assert len(tracked) <= MOST_FILES, f"{len(tracked)} files, at most {MOST_FILES}; most of them in {listed}"


def test_their_content_is_small(tracked):
    sizes = {path.relative_to(ROOT).as_posix(): path.stat().st_size for path in tracked}
    total = sum(sizes.values())
    largest = sorted(sizes, key=sizes.get, reverse=True)[:10]
    listed = ", ".join(f"{name} ({sizes[name] / 1000:.0f} kB)" for name in largest)
    assert total <= MOST_BYTES, f"{total / 1e6:.1f} MB, at most {MOST_BYTES / 1e6:.0f} MB; the largest are {listed}"


def test_the_version_is_written_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    advice = "the installed package is older than pyproject.toml: install it again"
    assert steelyard.__version__ == project["version"], advice
    assert not re.search(r"^version:", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE)
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^## \[Unreleased\]$", changelog, flags=re.MULTILINE)
    assert set(re.findall(r"^### (.+)$", changelog, flags=re.MULTILINE)) <= CHANGELOG_SECTIONS


@pytest.mark.parametrize("name", [".github/workflows/ci.yml", ".pre-commit-config.yaml"])
def test_files_for_hosted_services_can_be_read(name):
    yaml = pytest.importorskip("yaml", reason="PyYAML reads the file")
    assert {"jobs", "repos"} & yaml.safe_load((ROOT / name).read_text()).keys()
