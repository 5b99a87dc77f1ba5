"""One word for one thing: retired words do not come back. docs/glossary.md has the words to use."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = sorted((ROOT / "src").rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

# (a pattern, what to write instead). Letters of any case; a word in a name counts, as in `stand_in_for`.
RETIRED = [
    (r"shadow", "replica"),
    (r"stand[-_ ]?ins?(?![a-z])", "replica"),
    (r"(?<![a-z])crew", "executor"),
    (r"rehears", "timing trial"),
    (r"foretell", "estimate"),
    (r"amorti[sz]ed", "every"),
    (r"sits? the vote out", "is excluded from the vote"),
    (r"(?<![a-z])as found(?! by)|modes found", "unchanged; in each module's current mode"),
    (r"put_away", "withdraw"),
    (r"made ours", "lock"),
    (r"goes on where it was", "resumes"),
    (r"if not said", "default"),
    (r"votes? to first order", "first-order votes"),
    (r"samples (?:do not|that) meet", "samples are processed independently"),
    (r"the same to the bit", "bit-identical"),
    (r"misses its aim", "targets not met"),
    (r"weights_that_tell|how manieth", "a name that says what it holds"),
]
# Words that have another meaning elsewhere, with the packages in which they mislead.
RETIRED_IN = [
    (r"(?<![a-z])twins?(?![a-z])", "replica", ("probing", "training", "weighting", "benchmark", "report")),
    (r"(?<!take )(?<![a-z])turns(?![a-z])", "test folds", ("cli", "experiments")),
]


def places(files, pattern):
    """Return where a pattern occurs, for a message."""
    listed = []
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            if re.search(pattern, line, flags=re.IGNORECASE):
                listed.append(f"  {file.relative_to(ROOT).as_posix()}:{number} {line.strip()[:80]}")
    return listed


def check(files, pattern, instead):
    listed = places(files, pattern)
    if listed:
        pytest.fail("\n".join([f"write {instead!r} instead (docs/glossary.md):", *listed]), pytrace=False)


@pytest.mark.parametrize(("pattern", "instead"), RETIRED, ids=[pattern for pattern, _ in RETIRED])
def test_retired_words_do_not_come_back(pattern, instead):
    check([*SOURCE, *PAGES], pattern, instead)


@pytest.mark.parametrize(("pattern", "instead", "packages"), RETIRED_IN, ids=["twin", "turns"])
def test_words_that_mislead_in_a_package_are_not_used_there(pattern, instead, packages):
    folders = [ROOT / "src" / "steelyard" / package for package in packages]
    check([file for file in SOURCE if any(file.is_relative_to(folder) for folder in folders)], pattern, instead)


def test_the_glossary_defines_each_word_once():
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", (ROOT / "docs" / "glossary.md").read_text(), flags=re.MULTILINE)
    words = [word.strip() for row in rows for word in row[0].split(",") if row[0] not in ("word", "---")]
    assert len(words) > 40
    assert len(words) == len(set(words))
