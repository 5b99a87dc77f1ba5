import json
from pathlib import Path

from steelyard.cli.agreement import MARK
from steelyard.cli.benchmark import with_tables
from steelyard.cli.marked_page import with_measured
from steelyard.experiments.benchmark import Record
from steelyard.report.agreement_table import as_markdown

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_states_the_costs_as_measured():
    page = (DOCS / "cost.md").read_text()
    records = [Record(**record) for record in json.loads((DOCS / "cost.json").read_text())]
    assert page == with_tables(page, records)


def test_the_page_states_how_far_a_second_run_differs():
    first, second = (json.loads((DOCS / name).read_text()) for name in ("cost.json", "cost_again.json"))
    pairs = list(zip(first, second, strict=True))
    assert all(a[key] == b[key] for a, b in pairs for key in ("network", "domains", "method", "every"))
    apart = sorted(abs(a["time_ratio"] - b["time_ratio"]) / a["time_ratio"] for a, b in pairs)
    median, tenth, most = (round(100 * apart[int(share * (len(apart) - 1))]) for share in (0.5, 0.9, 1))
    stated = f"by {median} % in the median row, by {tenth} % in one of ten or more, by {most} % at most"
    assert stated in (DOCS / "cost.md").read_text()


def test_the_page_states_what_is_lost_as_measured():
    page = (DOCS / "cost.md").read_text()
    rows = json.loads((DOCS / "agreement.json").read_text())["rows"]
    assert page == with_measured(page, MARK, f"\n{as_markdown(rows)}")
