import json
from pathlib import Path

from steelyard.benchmark.step_costs import read_costs
from steelyard.cli.agreement import MARK
from steelyard.cli.benchmark import with_tables
from steelyard.files.marked_page import with_measured
from steelyard.report.tables.agreement import as_markdown

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_states_the_costs_as_measured():
    page = (DOCS / "cost.md").read_text()
    assert page == with_tables(page, read_costs(DOCS / "cost.json"))


def test_the_page_states_what_is_lost_as_measured():
    page = (DOCS / "cost.md").read_text()
    rows = json.loads((DOCS / "agreement.json").read_text())["rows"]
    assert page == with_measured(page, MARK, f"\n{as_markdown(rows)}")
