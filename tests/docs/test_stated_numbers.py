"""The pages of costs, trust and results state the numbers of the files beside them, and these are few."""

import csv
import gzip
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fuzz import tally
from fuzz.__main__ import CASES
from steelyard.benchmark.step_costs import read_costs
from steelyard.cli.agreement import MARK as AGREEMENT_MARK
from steelyard.cli.benchmark import with_tables
from steelyard.experiments.experiment import _check_design
from steelyard.experiments.grids import DESIGNS
from steelyard.experiments.regret.page import audit_table, short_table, wide_table
from steelyard.experiments.regret.results import read_results as read_trials
from steelyard.experiments.results import units_to_do
from steelyard.experiments.units import plan
from steelyard.files.marked_page import with_measured
from steelyard.imaging.runs.curves import read_curves
from steelyard.imaging.runs.method import PAPER, Method
from steelyard.imaging.train.data import LabelledSlices
from steelyard.imaging.train.sampling import DomainSlices
from steelyard.report.data.results import read_results
from steelyard.report.data.timings import Timings
from steelyard.report.tables.agreement import as_markdown
from steelyard.report.tables.evidence import tables_page
from steelyard.report.tables.summary import summarise, summary_csv

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = DOCS / "results"
EXPERIMENTS = sorted(path.parent for path in RESULTS.glob("*/experiment.json"))
SECTIONS = [part for part in (DOCS / "results.md").read_text().split("\n## ")[1:] if "](results/" in part]
with_results = pytest.mark.skipif(not RESULTS.is_dir(), reason="the source distribution is without results")
THREE = (0, 1, 2)  # repeats


def test_the_page_states_the_costs_as_measured():
    page = (DOCS / "cost.md").read_text()
    assert page == with_tables(page, read_costs(DOCS / "cost.json"))


def test_the_page_states_what_is_lost_as_measured():
    page = (DOCS / "cost.md").read_text()
    agreement = json.loads((DOCS / "agreement.json").read_text())["rows"]
    assert page == with_measured(page, AGREEMENT_MARK, f"\n{as_markdown(agreement)}")


COMPARED = ("evidence", "evidence-task", "equal@best", "sweep")


def test_the_pages_state_the_trials_as_they_ended(tmp_path):
    page = (DOCS / "does_it_pay.md").read_text()
    table = tmp_path / "results.csv"
    table.write_bytes(gzip.decompress((DOCS / "regret.csv.gz").read_bytes()))
    results = list(read_trials(table).values())
    assert results
    tables = {
        "short": short_table(results, COMPARED),
        "regret": wide_table(results, COMPARED),
        "audit": audit_table(results, "evidence"),
    }
    again = page
    for mark, table in tables.items():
        again = with_measured(again, mark, f"\n{table}\n")
    assert page == again
    readme = (DOCS.parent / "README.md").read_text()
    assert readme == with_measured(readme, "short", f"\n{short_table(results, ('evidence', 'equal@best', 'sweep'))}\n")


@pytest.fixture
def counts():
    return json.loads((DOCS / "trust.json").read_text())


def test_the_page_states_the_campaign_as_counted(counts):
    page = (DOCS / "trust.md").read_text()
    assert page == with_measured(page, tally.MARK, f"\n{tally.as_markdown(counts)}")


def test_what_is_stated_was_a_whole_campaign_without_findings(counts):
    assert counts["parts"].keys() == CASES.keys()
    for name, part in counts["parts"].items():
        assert part["cases"] >= CASES[name]
        assert part["findings"] == 0


def test_every_part_has_a_title():
    assert set(tally.TITLES) == set(CASES)


def rows(section):
    """Yield the rows of a section's tables that state Dice: a method and those cells."""
    columns = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            columns = []
        elif cells[0] == "method":
            columns = [index for index, cell in enumerate(cells) if cell.startswith("DSC")]
        elif columns and not cells[0].startswith("-"):
            yield cells[0].partition(",")[0], [cells[index] for index in columns]


def written(row):
    """Means as a table states them: with the deviation over repeats, unless there is one repeat."""
    texts = set()
    for name in row:
        if name.startswith("dsc_") and f"{name}_sd" in row:
            text = f"{float(row[name]):.3f}"
            if row[f"{name}_sd"]:
                text += f" ± {float(row[f'{name}_sd']):.3f}"
            texts.add(text)
    return texts


@with_results
@pytest.mark.parametrize("section", SECTIONS, ids=[section.splitlines()[0] for section in SECTIONS])
def test_every_mean_is_that_of_the_results(section):
    summaries = []
    for name in re.findall(r"\]\(results/([\w-]+)\)", section):
        results = read_results(RESULTS / name / "results.csv")
        summaries += list(csv.DictReader(io.StringIO(summary_csv(summarise(results)))))
    stated = list(rows(section))
    assert stated
    for method, cells in stated:
        of_method = [written(row) for row in summaries if row["method"] == method]
        assert any(set(cells) <= numbers for numbers in of_method), (method, cells)


def without_times(text):
    """A page of tables without the last column of the comparisons: times are not in results.csv."""
    before, *comparisons = text.split("\n# Gain and cost")
    return [before, *(re.sub(r"\|[^|\n]*\|$", "|", part, flags=re.MULTILINE) for part in comparisons)]


@with_results
@pytest.mark.parametrize("folder", EXPERIMENTS, ids=lambda folder: folder.name)
def test_tables_are_what_the_results_give(folder):
    page = (folder / "tables.md").read_text()
    made = tables_page(read_results(folder / "results.csv"), Timings({}))
    assert without_times(made) == without_times(page)
    assert ("× |" in page) == ("# Gain and cost" in page)


@with_results
@pytest.mark.parametrize("folder", EXPERIMENTS, ids=lambda folder: folder.name)
def test_an_experiment_is_five_files_and_every_run_has_its_curves(folder):
    assert {path.name for path in folder.iterdir()} == {
        *("experiment.json", "results.csv", "curves.csv.gz", "tables.md", "figures.png")
    }
    keys = ("model", "availability", "method", "fold", "repeat")
    curves = {tuple(row[key] for key in keys) for row in read_curves(folder)}
    with (folder / "results.csv").open() as stream:
        results = {tuple(row[key] for key in keys) for row in csv.DictReader(stream)}
    assert curves == results
    assert all(Method.parse(key[2]).name == key[2] for key in results)


@with_results
def test_the_results_are_few_and_small():
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    assert len(files) <= 53
    assert sum(path.stat().st_size for path in files) < 3_000_000


@with_results
@pytest.mark.parametrize(
    ("name", "design", "changes"),
    [
        ("phantom", "desk", {"availability": (8,), "methods": PAPER, "repeats": THREE}),
        ("real", "desk", {"availability": (None,), "models": ("unet",), "folds": 3, "validate": 1, "repeats": THREE}),
        ("glioma", "glioma", {"repeats": (0,), "test_folds": (0, 1)}),
    ],
)
def test_a_committed_experiment_counts_as_done(name, design, changes):
    """With the commands of the page: nothing is left to do but what was not run."""
    folder = RESULTS / name
    design = DESIGNS[design]()
    training = replace(design.training, epochs=json.loads((folder / "experiment.json").read_text())["epochs"])
    models = changes.get("models", design.models)
    grid = replace(design, training=training, single_domain_models=models, **changes)
    digests = json.loads((folder / "experiment.json").read_text())["digests"]
    planes = DomainSlices(torch.zeros(len(digests), 1, 8, 8), torch.zeros(len(digests), 1, 8, 8), tuple(digests))
    slices = LabelledSlices(dict.fromkeys(("flair", "t1"), planes), digests)
    _check_design(folder, grid, slices)
    units = plan(grid, slices, data=Path("data"), out=folder)
    left = {unit.config.method.name for unit in units_to_do(folder, units, slices)}
    assert left == {method.name for method in grid.methods} - {
        row.run.method for row in read_results(folder / "results.csv").rows
    }
