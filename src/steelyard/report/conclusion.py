"""What an experiment ends with: tables, figures and a page from its finished runs alone."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from steelyard.errors import UserError
from steelyard.imaging.writing import write_text
from steelyard.report.assembly import Scans, assemble
from steelyard.report.cost import Timings, read_timings
from steelyard.report.evidence import write_evidence
from steelyard.report.page import render_report
from steelyard.report.results import read_results
from steelyard.report.runs import by_method, read_runs
from steelyard.report.verdict import judge


def conclude(out: Path, data: Path, *, subjects: int = 6) -> list[str]:
    """Write OUT/tables, OUT/figures and OUT/report.html, and return the answer, a sentence or two a setting.

    Tables depend on the results alone, to the byte; what depends on the clock is on the page only.

    Args:
        out: The experiment's folder, with results.csv and the runs.
        data: The preprocessed dataset, for the scans on the page.
        subjects: At most so many are in the page's viewer.
    """
    results = read_results(out / "results.csv")
    records = read_runs([out / "runs"])
    report = assemble(
        records,
        scans=Scans(data=data, subjects=subjects),
        title="Was learning the weights worth it?",
        lead=f"{len(records)} runs of {', '.join(by_method(records))}.",
    )
    try:
        write_evidence(results, out / "tables")
        verdicts = judge(results, timings=_timings(out))
        answer = [verdict.overall for verdict in verdicts]
        report = replace(report, answer=answer)
    except UserError as error:  # without a baseline there is nothing to compare with
        answer = [str(error)]
    write_text(out / "report.html", render_report(report))
    for plate in report.figures:
        plate.save(out / "figures")
    return answer


def _timings(out: Path) -> Timings | None:
    with suppress(UserError):  # where no run was timed
        return read_timings(out / "timings.csv")
    return None
