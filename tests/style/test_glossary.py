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
    (r"stand[-_ ]?ins?(?![a-z]| its)", "replica"),
    (r"(?<![a-z])crew", "executor"),
    (r"rehears", "timing trial"),
    (r"foretell", "estimate"),
    (r"amorti[sz]", "vote on every n-th step, with `every=`"),
    (r"sits? the vote out", "is excluded from the vote"),
    (r"(?<![a-z])as found(?! by)|modes found", "unchanged; in each module's current mode"),
    (r"put_away", "withdraw"),
    (r"made ours", "lock"),
    (r"goes on where it was|goes on to(?![a-z])", "resumes"),
    (r"if not said", "default"),
    (r"votes? to first order", "first-order votes"),
    (r"samples (?:do not|that) meet", "samples are processed independently"),
    (r"the same to the bit|to the same bits|c[ao]me to the bits", "bit-identical"),
    (r"held against", "compared with"),
    (r"run[-_ ]director(?:y|ies)", "run folder"),
    (r"misses its aim", "targets not met"),
    (r"weights_that_tell|how manieth", "a name that says what it holds"),
]
# Words that have another meaning elsewhere, with the packages in which they mislead.
RETIRED_IN = [
    (r"(?<![a-z])twins?(?![a-z])", "replica", ("probing", "training", "weighting", "benchmark", "report")),
    (r"(?<!take )(?<![a-z])turns(?![a-z])", "test folds", ("cli", "experiments")),
]
# Terms of mathematics that a docstring may use, and a page for users may not.
RETIRED_ON_PAGES = [(r"(?<![a-z])to first order", "first-order votes")]


def paragraphs(text):
    """Yield the first line's number and the text of each paragraph, with its lines joined.

    A phrase may be broken over two lines of prose, over two comments or over two adjacent strings.
    """
    start, lines = 1, []
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if line.strip():
            lines.append(line.strip().removeprefix("# "))
        else:
            yield start, re.sub(r'"\s+[rf]?"', "", " ".join(lines))
            start, lines = number + 1, []


def places(files, pattern):
    """Return where a pattern occurs, for a message: the first line of the paragraph, and the words around the match."""
    listed = []
    for file in files:
        for number, paragraph in paragraphs(file.read_text(encoding="utf-8")):
            for match in re.finditer(pattern, paragraph, flags=re.IGNORECASE):
                words = paragraph[max(0, match.start() - 30) : match.end() + 30]
                listed.append(f"  {file.relative_to(ROOT).as_posix()}:{number} … {words} …")
    return listed


def check(files, pattern, instead):
    listed = places(files, pattern)
    if listed:
        pytest.fail("\n".join([f"write {instead!r} instead (docs/glossary.md):", *listed]), pytrace=False)


@pytest.mark.parametrize(("pattern", "instead"), RETIRED, ids=[pattern for pattern, _ in RETIRED])
def test_retired_words_do_not_come_back(pattern, instead):
    check([*SOURCE, *PAGES], pattern, instead)


@pytest.mark.parametrize(("pattern", "instead"), RETIRED_ON_PAGES, ids=[pattern for pattern, _ in RETIRED_ON_PAGES])
def test_retired_words_do_not_come_back_on_pages(pattern, instead):
    check(PAGES, pattern, instead)


@pytest.mark.parametrize(("pattern", "instead", "packages"), RETIRED_IN, ids=["twin", "turns"])
def test_words_that_mislead_in_a_package_are_not_used_there(pattern, instead, packages):
    folders = [ROOT / "src" / "steelyard" / package for package in packages]
    check([file for file in SOURCE if any(file.is_relative_to(folder) for folder in folders)], pattern, instead)


def test_the_glossary_defines_each_word_once():
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", (ROOT / "docs" / "glossary.md").read_text(), flags=re.MULTILINE)
    words = [word.strip() for row in rows for word in row[0].split(",") if row[0] not in ("word", "---")]
    assert len(words) > 40
    assert len(words) == len(set(words))


def test_a_phrase_that_is_broken_over_lines_is_still_one_phrase():
    prose = "A vote is held\nagainst it.\n"
    comment = "    # held\n    # against\n"
    strings = '    "held "\n    f"against"\n'
    text = "\n".join([prose, comment, strings])
    joined = [(number, "held against" in paragraph) for number, paragraph in paragraphs(text)]
    assert joined == [(1, True), (4, True), (7, True)]
