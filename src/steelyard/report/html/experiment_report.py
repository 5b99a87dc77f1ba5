"""What an experiment ends with: tables, figures and a page from its finished runs alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from steelyard.errors import UserError
from steelyard.files.atomic import write_bytes, write_text
from steelyard.files.destinations import refuse_links
from steelyard.files.records import read_object
from steelyard.imaging.runs.experiment_folder import (
    DESIGN,
    FAILURES,
    FIGURES,
    FIGURES_PAGE,
    REPORT,
    RESULTS,
    TABLES,
    TABLES_PAGE,
)
from steelyard.imaging.runs.method import Method
from steelyard.report.data.recorded_runs import read_experiment_runs
from steelyard.report.data.results import Results, read_results
from steelyard.report.data.runs import RunRecord, by_method, read_runs
from steelyard.report.data.timings import timings_of
from steelyard.report.figures.figure import figures_page
from steelyard.report.html.assembly import Scans, assemble
from steelyard.report.html.page import Report, render_report
from steelyard.report.statistics.findings import SettingFinding, findings_of
from steelyard.report.tables.evidence import (
    comparison_tables,
    result_tables,
    tables_page,
    write_findings,
    write_tables,
)

_CONTINUE = "give the experiment's command again to continue"


@dataclass(frozen=True)
class Evidence:
    """What results show; where there is no baseline to compare with, there are no findings, and `answer` is why."""

    results: Results
    findings: tuple[SettingFinding, ...]
    answer: list[str]


def is_experiment(folder: Path) -> bool:
    """Whether a folder is one that `steelyard experiment` has finished at least once."""
    return (folder / DESIGN).is_file() and (folder / RESULTS).is_file()


def conclude(out: Path, data: Path, *, trusted: Sequence[str] = (), subjects: int = 6) -> list[str]:
    """Write OUT/tables, OUT/figures and OUT/report.html, and return the answer, a sentence or two a setting.

    OUT/tables.md and OUT/figures.png hold all tables and all figures but those of scans, for a repository. Files in
    OUT/tables depend on the results alone, to the byte; timings are on the pages and in the answer only.

    Args:
        out: The experiment's folder, with results.csv and the runs.
        data: The preprocessed dataset, for the scans on the page.
        trusted: Import paths of the user's own networks, from the user.
        subjects: The maximum number of subjects in the page's viewer.
    """
    for name in (TABLES, FIGURES):
        refuse_links(out / name, within=out)
    results = read_results(out / RESULTS)
    write_tables(results, out / TABLES)
    evidence = _evidence(results)
    write_findings(evidence.findings, out / TABLES)
    write_text(out / TABLES_PAGE, tables_page(results, timings_of(out)))
    runs = read_experiment_runs(out)
    report_without_scans = _report(out, runs, evidence, None)
    write_bytes(out / FIGURES_PAGE, figures_page(report_without_scans.figures))
    try:
        report = _report(out, runs, evidence, Scans(data=data, subjects=subjects, trusted=tuple(trusted)))
    except UserError as error:
        # Scans or networks may be gone; everything else can still be shown.
        note = f"No scans here, and no geometry of gradients. {error}"
        report = replace(report_without_scans, subjects_note=note)
    write_text(out / REPORT, render_report(report))
    for figure in report.figures:
        figure.save(out / FIGURES)
    return list(report.answer)


def report_on(out: Path, scans: Scans | None) -> Report:
    """Return the page of an experiment: the answer, the paper's tables, comparisons, figures and subjects.

    Args:
        out: The experiment's folder, with results.csv, and the runs or their curves.
        scans: Which scans may be shown.

    Raises:
        UserError: The folder is damaged, or the scans cannot be shown.
    """
    return _report(out, read_experiment_runs(out), _evidence(read_results(out / RESULTS)), scans)


def report_on_paths(paths: Sequence[Path], scans: Scans | None) -> Report:
    """Return the page of an experiment, or of single runs.

    Args:
        paths: One experiment folder, or run folders and folders that hold some.
        scans: Which scans may be shown.

    Raises:
        UserError: A folder is damaged, or the scans cannot be shown.
    """
    if len(paths) == 1 and is_experiment(paths[0]):
        return report_on(paths[0], scans)
    runs = read_runs(paths)
    methods = by_method(runs)
    lead = f"{_count(len(runs), 'run')} of {_count(len(methods), 'method')}: {', '.join(methods)}."
    return assemble(runs, scans=scans, title="One network for several domains", lead=lead)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _report(out: Path, runs: Sequence[RunRecord], evidence: Evidence, scans: Scans | None) -> Report:
    evaluated = [run for run in runs if run.subjects]
    report = assemble(
        evaluated,
        title="Was learning the weights worth it?",
        lead=f"{len(evaluated)} runs of {', '.join(by_method(evaluated))}.",
        name_settings=True,
        scans=scans,
        design=_design(out),
    )
    timings = timings_of(out)
    costs = []
    for finding in evidence.findings:
        sentence = timings.sentence(finding.setting, _compared_methods(finding))
        if sentence:
            costs.append(sentence)
    methods, *means = report.tables
    evidence_tables = [*result_tables(evidence.results), *comparison_tables(evidence.findings, timings)]
    return replace(
        report,
        answer=[*evidence.answer, *costs],
        tables=[methods, *evidence_tables, *means],
        audits=(),  # a page of dozens of them would bury the comparison
        failures=[*_failures(out), *_unfinished(runs, evidence.results)],
    )


def _evidence(results: Results) -> Evidence:
    try:
        findings = findings_of(results)
    except UserError as error:
        return Evidence(results, (), [str(error)])
    return Evidence(results, findings, [finding.overall for finding in findings])


def _design(out: Path) -> dict[str, Any]:
    """Return the experiment's settings without the lists of subjects."""
    design = read_object(out / DESIGN)
    design.pop("splits", None)
    design.pop("digests", None)
    return design


def _compared_methods(finding: SettingFinding) -> list[tuple[str, str]]:
    """Return the methods that learn their weights, each with the one it is compared with."""
    pairs = []
    for comparison in finding.comparisons:
        if Method.parse_or_unknown(comparison.method).is_learned:
            pairs.append((comparison.method, comparison.against))
    return pairs


def _unfinished(runs: Sequence[RunRecord], results: Results) -> list[str]:
    """Return which runs are missing in tables or figures, because the experiment is under way or was stopped."""
    sentences = []
    evaluated = sum(bool(run.subjects) for run in runs)
    if evaluated < len(runs):
        sentences.append(f"Runs that are not judged yet, and not here: {len(runs) - evaluated}; {_CONTINUE}.")
    absent = evaluated - len({(row.setting, row.run) for row in results.rows})
    if absent > 0:
        sentences.append(
            f"Runs that are not in {RESULTS} yet, and not in its tables and comparisons: {absent}; {_CONTINUE}."
        )
    return sentences


def _failures(out: Path) -> list[str]:
    if not (out / FAILURES).exists():
        return []
    return [f"Some runs failed; {FAILURES} says which and why, and the tables are without them."]
