"""docs/results.md says what the tables beside it hold."""

import csv
import re
from pathlib import Path

import pytest

from steelyard.report.data.results import read_results
from steelyard.report.statistics.findings import findings_of
from steelyard.report.tables.evidence import findings_text

DOCS = Path(__file__).resolve().parents[2] / "docs"
SECTIONS = [part for part in (DOCS / "results.md").read_text().split("\n## ")[1:] if "](results/" in part]
NUMBER = re.compile(r"\d\.\d{3} ± \d\.\d{3}")


def rows(section):
    """Yield the rows of a section's tables that hold means and deviations: a method and those cells."""
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and (held := [cell for cell in cells if NUMBER.fullmatch(cell)]):
            yield cells[0].partition(",")[0], held


def written(row):
    means = [name for name in row if f"{name}_sd" in row and name.startswith("dsc_")]
    return {f"{float(row[name]):.3f} ± {float(row[f'{name}_sd']):.3f}" for name in means if row[f"{name}_sd"]}


@pytest.mark.parametrize("section", SECTIONS, ids=[section.splitlines()[0] for section in SECTIONS])
def test_every_mean_is_that_of_the_tables(section):
    summaries = []
    for name in re.findall(r"\]\(results/([\w-]+)\)", section):
        with (DOCS / "results" / name / "tables" / "summary.csv").open() as stream:
            summaries += list(csv.DictReader(stream))
    shown = list(rows(section))
    assert shown
    for method, cells in shown:
        of_method = [written(row) for row in summaries if row["method"] == method]
        assert any(set(cells) <= there for there in of_method), (method, cells)


@pytest.mark.parametrize(
    "path", sorted((DOCS / "results").glob("*/tables/verdict.txt")), ids=lambda path: path.parts[-3]
)
def test_verdicts_are_what_the_results_give(path):
    results = read_results(path.parents[1] / "results.csv")
    assert findings_text(findings_of(results)) == path.read_text()
