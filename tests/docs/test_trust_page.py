import json
from pathlib import Path

import pytest

from fuzz.__main__ import CASES
from fuzz.tally import MARK, TITLES, as_markdown
from steelyard.files.marked_page import with_measured

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def counts():
    return json.loads((DOCS / "trust.json").read_text())


def test_the_page_states_the_campaign_as_counted(counts):
    page = (DOCS / "trust.md").read_text()
    assert page == with_measured(page, MARK, f"\n{as_markdown(counts)}")


def test_what_is_stated_was_a_whole_campaign_without_findings(counts):
    assert counts["parts"].keys() == CASES.keys()
    for name, part in counts["parts"].items():
        assert part["cases"] >= CASES[name]
        assert part["findings"] == 0


def test_every_part_has_a_title():
    assert set(TITLES) == set(CASES)
