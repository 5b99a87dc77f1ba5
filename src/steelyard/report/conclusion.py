"""What an experiment ends with: tables, figures and a page from its finished runs alone."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from steelyard.errors import UserError
from steelyard.imaging.writing import write_text
from steelyard.report.assembly import Scans, assemble
from steelyard.report.cost import Timings, read_timings
from steelyard.report.evidence import write_tables, write_verdicts
from steelyard.report.evidence_tables import comparison_tables, result_tables
from steelyard.report.kinds import is_learned
from steelyard.report.page import Report, render_report
from steelyard.report.results import Results, read_results
from steelyard.report.runs import RunRecord, by_method, read_runs
from steelyard.report.verdict import Verdict, judge


def conclude(out: Path, data: Path, *, trusted: Sequence[str] = (), subjects: int = 6) -> list[str]:
    """Write OUT/tables, OUT/figures and OUT/report.html, and return the answer, a sentence or two a setting.

    Tables depend on the results alone, to the byte; what depends on the clock is on the page and in the answer only.

    Args:
        out: The experiment's folder, with results.csv and the runs.
        data: The preprocessed dataset, for the scans on the page.
        trusted: Import paths of networks that are not ours, from the user.
        subjects: At most so many are in the page's viewer.
    """
    results = read_results(out / "results.csv")
    write_tables(results, out / "tables")
    verdicts, answer = _judged(results)
    write_verdicts(verdicts, out / "tables")
    timings = _timings(out)
    answer += filter(None, (timings.sentence(verdict.setting, _compared(verdict)) for verdict in verdicts))
    records = [run for run in read_runs([out / "runs"]) if run.subjects]
    report = _assembled(records, Scans(data=data, subjects=subjects, trusted=tuple(trusted)))
    report = _with_evidence(report, results, verdicts, timings)
    write_text(out / "report.html", render_report(replace(report, answer=answer, failures=_failures(out))))
    for plate in report.figures:
        plate.save(out / "figures")
    return answer


def _judged(results: Results) -> tuple[tuple[Verdict, ...], list[str]]:
    try:
        verdicts = judge(results)
    except UserError as error:  # without a baseline there is nothing to compare with
        return (), [str(error)]
    return verdicts, [verdict.overall for verdict in verdicts]


def _assembled(records: Sequence[RunRecord], scans: Scans) -> Report:
    """Return the report; where scans or networks cannot be had, without what is made from them."""
    title = "Was learning the weights worth it?"
    lead = f"{len(records)} runs of {', '.join(by_method(records))}."
    try:
        return assemble(records, scans=scans, title=title, lead=lead, marked=True)
    except UserError as error:
        report = assemble(records, title=title, lead=lead, marked=True)
        return replace(report, subjects_note=f"No scans here, and no geometry of gradients. {error}")


def _with_evidence(report: Report, results: Results, verdicts: Sequence[Verdict], timings: Timings) -> Report:
    return replace(report, tables=[*result_tables(results), *comparison_tables(verdicts, timings), *report.tables])


def _compared(verdict: Verdict) -> list[tuple[str, str]]:
    return [(one.method, one.against) for one in verdict.comparisons if is_learned(one.method)]


def _failures(out: Path) -> list[str]:
    path = out / "failures.csv"
    return [f"Some runs failed; {path.name} says which and why, and the tables are without them."] * path.exists()


def _timings(out: Path) -> Timings:
    with suppress(UserError):  # where no run was timed
        return read_timings(out / "timings.csv")
    return Timings({})
