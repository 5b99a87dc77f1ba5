import json
from pathlib import Path

import pytest

from steelyard.cli.agreement import MARK
from steelyard.cli.benchmark import with_tables
from steelyard.cli.marked_page import with_measured
from steelyard.experiments.benchmark import Record
from steelyard.report.agreement_table import as_markdown

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_states_the_costs_as_measured():
    measured = DOCS / "cost.json"
    if not measured.exists():
        pytest.skip("not measured yet: steelyard benchmark docs/cost.json --page docs/cost.md")
    page = (DOCS / "cost.md").read_text()
    assert page == with_tables(page, [Record(**record) for record in json.loads(measured.read_text())])


def test_the_page_states_what_is_lost_as_measured():
    measured = DOCS / "agreement.json"
    if not measured.exists():
        pytest.skip("not measured yet: steelyard agreement OUT DATA --page docs/cost.md; OUT/agreement.json goes here")
    page = (DOCS / "cost.md").read_text()
    assert page == with_measured(page, MARK, f"\n{as_markdown(json.loads(measured.read_text())['rows'])}")
