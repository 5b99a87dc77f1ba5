"""What an experiment ends with: tables, figures and a page from its finished runs alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from steelyard.errors import UserError
from steelyard.files.atomic import write_text
from steelyard.files.destinations import refuse_links
from steelyard.report.data.kinds import is_learned
from steelyard.report.data.results import RESULTS, RUNS, Results, read_results
from steelyard.report.data.runs import RunRecord, by_method, read_runs
from steelyard.report.html.assembly import Scans, assemble
from steelyard.report.html.page import Report, render_report
from steelyard.report.statistics.verdict import Verdict, judge
from steelyard.report.tables.cost import timings_of
from steelyard.report.tables.evidence import write_tables, write_verdicts
from steelyard.report.tables.evidence_tables import comparison_tables, result_tables

DESIGN = "experiment.json"


@dataclass(frozen=True)
class Evidence:
    """What results show; where there is no baseline to compare with, there are no verdicts, and `said` is why."""

    results: Results
    verdicts: tuple[Verdict, ...]
    said: list[str]


def is_experiment(folder: Path) -> bool:
    """Whether a folder is one that `steelyard experiment` has finished at least once."""
    return (folder / DESIGN).is_file() and (folder / RESULTS).is_file()


def conclude(out: Path, data: Path, *, trusted: Sequence[str] = (), subjects: int = 6) -> list[str]:
    """Write OUT/tables, OUT/figures and OUT/report.html, and return the answer, a sentence or two a setting.

    Tables depend on the results alone, to the byte; what depends on the clock is on the page and in the answer only.

    Args:
        out: The experiment's folder, with results.csv and the runs.
        data: The preprocessed dataset, for the scans on the page.
        trusted: Import paths of networks that are not ours, from the user.
        subjects: At most so many are in the page's viewer.
    """
    for name in ("tables", "figures"):
        refuse_links(out / name, within=out)
    results = read_results(out / RESULTS)
    write_tables(results, out / "tables")
    evidence = _weigh(results)
    write_verdicts(evidence.verdicts, out / "tables")
    records = read_runs([out / RUNS])
    try:
        report = _report(out, records, evidence, Scans(data=data, subjects=subjects, trusted=tuple(trusted)))
    except UserError as error:  # where scans or networks cannot be had, without what is made from them
        note = f"No scans here, and no geometry of gradients. {error}"
        report = replace(_report(out, records, evidence, None), subjects_note=note)
    write_text(out / "report.html", render_report(report))
    for plate in report.figures:
        plate.save(out / "figures")
    return list(report.answer)


def report_on(out: Path, scans: Scans | None) -> Report:
    """Return the page of an experiment: the answer, the paper's tables, comparisons, figures and subjects.

    Args:
        out: The experiment's folder.
        scans: Which scans may be shown.

    Raises:
        UserError: The folder is damaged, or the scans cannot be shown.
    """
    return _report(out, read_runs([out / RUNS]), _weigh(read_results(out / RESULTS)), scans)


def _report(out: Path, records: Sequence[RunRecord], evidence: Evidence, scans: Scans | None) -> Report:
    judged = [run for run in records if run.subjects]
    lead = f"{len(judged)} runs of {', '.join(by_method(judged))}."
    report = assemble(judged, scans=scans, title="Was learning the weights worth it?", lead=lead, marked=True)
    timings = timings_of(out)
    costs = (timings.sentence(verdict.setting, _compared(verdict)) for verdict in evidence.verdicts)
    found = [*result_tables(evidence.results), *comparison_tables(evidence.verdicts, timings)]
    return replace(
        report,
        answer=[*evidence.said, *filter(None, costs)],
        tables=[*found, *report.tables],
        failures=[*_failures(out), *_left_out(records, evidence.results)],
    )


def _weigh(results: Results) -> Evidence:
    try:
        verdicts = judge(results)
    except UserError as error:
        return Evidence(results, (), [str(error)])
    return Evidence(results, verdicts, [verdict.overall for verdict in verdicts])


def _compared(verdict: Verdict) -> list[tuple[str, str]]:
    return [(one.method, one.against) for one in verdict.comparisons if is_learned(one.method)]


def _left_out(records: Sequence[RunRecord], results: Results) -> Iterator[str]:
    """Say which runs are not in everything here: the experiment is under way, or was stopped."""
    again = "give the experiment's command again to go on"
    judged = sum(bool(run.subjects) for run in records)
    if late := len(records) - judged:
        yield f"Runs that are not judged yet, and not here: {late}; {again}."
    if (late := judged - len({(row.setting, row.run) for row in results.rows})) > 0:
        yield f"Runs that are not in {RESULTS} yet, and not in its tables and comparisons: {late}; {again}."


def _failures(out: Path) -> list[str]:
    path = out / "failures.csv"
    return [f"Some runs failed; {path.name} says which and why, and the tables are without them."] * path.exists()
