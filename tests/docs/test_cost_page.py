import json
from pathlib import Path

import pytest

from steelyard.cli.benchmark import with_tables
from steelyard.experiments.benchmark import Record

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_states_the_costs_as_measured():
    measured = DOCS / "cost.json"
    if not measured.exists():
        pytest.skip("not measured yet: steelyard benchmark docs/cost.json --page docs/cost.md")
    page = (DOCS / "cost.md").read_text()
    assert page == with_tables(page, [Record(**record) for record in json.loads(measured.read_text())])
