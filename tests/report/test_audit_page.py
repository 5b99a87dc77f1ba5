"""The part of the page that tells who helped whom."""

import json
import shutil
from dataclasses import replace
from math import nan

import pytest

from audits import audit_of, harmful
from steelyard.cli import main
from steelyard.errors import UserError
from steelyard.report.data.runs import read_run, read_runs
from steelyard.report.html.assembly import assemble
from steelyard.report.html.page import render_report

HOSTILE = "</script><script>alert(1)</script>"
MATRIX = [[-4e-3, 1e-3], [2e-3, -1e-3]]


@pytest.fixture(scope="module")
def records(run_folder):
    return read_runs([run_folder])


def page_of(run, audit):
    report = assemble([replace(run, audit=audit)], title="T", lead="L")
    return report, render_report(report)


def test_a_run_that_voted_has_an_audit_on_its_page(records):
    report = assemble(records, title="T", lead="L")
    (part,) = report.audits  # two runs of one method voted
    first = next(run for run in records if run.audit is not None)
    assert part.title == "conservative-25, unet, seed 0"
    assert first.method == "conservative-25"
    assert [row[0] for row in part.table.rows] == ["FLAIR", "T1"]
    assert [float(row[1]) for row in part.table.rows] == pytest.approx(
        [first.final_weight(domain) for domain in ("flair", "t1")], abs=1e-3
    )
    page = render_report(report)
    assert '<section id="audit"><h2>Audit: who helps whom</h2>' in page
    assert 'id="figure-transfer"' in page
    assert "fewer than 30 votes, too few to judge transfer by" in page
    plain = assemble([run for run in records if run.audit is None], title="T", lead="L")
    assert plain.audits == []
    assert "Audit" not in render_report(plain)


def test_the_table_and_the_flags_say_what_was_measured(records):
    audit = audit_of(("flair", "t1"), MATRIX, flags=[harmful("t1")])
    report, page = page_of(records[0], audit)
    (part,) = report.audits
    assert list(part.table.headings[:8]) == [
        *("domain", "weight", "share", "loss scale", "loss left", "own", "to others", "from others")
    ]
    assert part.table.rows[1][1:8] == ["0.500", "0.500", "1.00", "50%", "−1.00e−03", "+2.00e−04", "–"]
    assert "<strong>T1: harms others.</strong> Its steps make the others worse" in page
    assert "No domain is flagged" not in page
    _, without = page_of(records[0], audit_of(("flair", "t1"), MATRIX))
    assert "<p>No domain is flagged.</p>" in without


def test_names_in_an_audit_are_text(records):
    audit = audit_of((HOSTILE, "b"), [[nan] * 2] * 2, flags=[harmful(HOSTILE)])
    _, page = page_of(records[0], audit)
    assert "alert(1)</script" not in page


def test_several_methods_are_told_apart(records):
    voted = [run for run in records if run.audit is not None]
    runs = [voted[0], replace(voted[0], method="evidence")]
    report = assemble(runs, title="T", lead="L")
    page = render_report(report)
    for part in report.audits:
        assert f"<h3>{part.title}</h3>" in page
    names = [figure.name for figure in report.all_figures]
    assert len(set(names)) == len(names)
    assert {"transfer_unet-3F_conservative-25", "transfer_unet-3F_evidence"} <= set(names)


@pytest.fixture
def run(run_folder, tmp_path):
    return shutil.copytree(run_folder / "conservative-25" / "fold-0_repeat-0", tmp_path / "run")


def test_the_heat_map_is_among_the_figures_files(run, tmp_path):
    page, figures = tmp_path / "page.html", tmp_path / "figures"
    assert main(["report", str(run), "--out", str(page), "--figures", str(figures)]) == 0
    assert (figures / "transfer.png").read_bytes().startswith(b"\x89PNG")
    assert "who helps whom" in page.read_text()


def test_a_damaged_audit_is_named(run, tmp_path, capsys):
    content = json.loads((run / "audit.json").read_text())
    content["transfer"][0][0] = "x"
    (run / "audit.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"its tables are damaged \(audit.json: transfer must be a number"):
        read_run(run)
    (run / "audit.json").write_text("{")
    assert main(["report", str(run), "--out", str(tmp_path / "page.html")]) == 2
    assert "audit.json: cannot be read as JSON" in capsys.readouterr().err
