"""From runs to the report."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from steelyard.errors import UserError
from steelyard.imaging.datasets.prepared import read_prepared
from steelyard.imaging.datasets.subjects import Dataset, Subject
from steelyard.report.data.names import canonical_method, plotted_domains
from steelyard.report.data.predictions import SubjectPredictions, predict_on
from steelyard.report.data.runs import RunRecord, by_method, by_setting
from steelyard.report.figures.curves import learning_figure, weights_figure
from steelyard.report.figures.figure import ReportFigure, method_colours
from steelyard.report.figures.geometry import geometry_figure
from steelyard.report.figures.scans import scans_figure
from steelyard.report.figures.scores import scores_figure, trade_off_figure
from steelyard.report.html.audit_parts import audit_parts
from steelyard.report.html.page import Report
from steelyard.report.html.viewer import pack_subject
from steelyard.report.statistics.gradient_geometry import measure_geometry
from steelyard.report.tables.run_tables import (
    answer,
    baseline_of,
    best_method,
    configuration_tables,
    means_table,
    methods_table,
    rivals,
    subjects_table,
)
from steelyard.report.tables.table import PageTable

_NO_SCANS = "Without --data there are no scans here, and no geometry of gradients."


@dataclass(frozen=True, kw_only=True)
class Scans:
    """What the report may show of the data.

    Args:
        data: The preprocessed dataset that the runs were tested on.
        subjects: The maximum number of subjects in the viewer.
        methods: Whose predictions; by default the baseline's and the best other's.
        trusted: Import paths of the user's own networks, from the user: needed, because they are code.
    """

    data: Path
    subjects: int = 6
    methods: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()


def assemble(
    runs: Sequence[RunRecord],
    *,
    title: str,
    lead: str,
    name_settings: bool = False,
    scans: Scans | None = None,
    design: Mapping[str, Any] | None = None,
) -> Report:
    """Return the report on some runs.

    Args:
        runs: As `read_runs` returns them.
        title: Of the page.
        lead: What it is about, in a sentence.
        name_settings: Whether titles and file names name the setting even if there is only one.
        scans: Which scans may be shown; without them there is no viewer.
        design: The settings of the runs' experiment, if their own may be gone.
    """
    name_settings = name_settings or len(by_setting(runs)) > 1
    means, scores = _score_tables(runs, name_settings=name_settings)
    figures = _figures(runs, name_settings=name_settings)
    subjects: list[SubjectPredictions] = []
    subjects_note = _NO_SCANS
    if scans is not None:
        dataset = read_prepared(scans.data)
        subjects, subjects_note = _viewer_subjects(runs, dataset, scans)
        figures = [*_scan_figures(subjects), *_geometry_figures(runs, dataset, scans.trusted), *figures]
    return Report(
        title=title,
        lead=lead,
        answer=answer(runs),
        tables=[methods_table(runs), *means],
        figures=[figure for figure in figures if figure.panels],
        audits=audit_parts(runs),
        subjects=list(map(pack_subject, subjects)),
        subjects_note=subjects_note,
        scores=scores,
        settings=configuration_tables(runs, design),
    )


def _score_tables(runs: Sequence[RunRecord], *, name_settings: bool) -> tuple[list[PageTable], list[PageTable]]:
    """Return, of every setting with evaluated runs, the table of means and the table of subjects."""
    means, subjects = [], []
    for setting, group in by_setting(run for run in runs if run.subjects).items():
        suffix = f", {setting}" if name_settings else ""
        means.append(means_table(group, title=f"Means over the test subjects{suffix}"))
        subjects.append(subjects_table(group, title=f"Every test subject{suffix}"))
    return means, subjects


def _figures(runs: Sequence[RunRecord], *, name_settings: bool) -> list[ReportFigure]:
    """Return the figures that tables give, of every setting."""
    figures = []
    for setting, group in by_setting(runs).items():
        for figure in _setting_figures(group):
            if name_settings:
                figure = replace(figure, name=f"{figure.name}_{setting}", title=f"{figure.title}, {setting}")
            figures.append(figure)
    return figures


def _setting_figures(runs: Sequence[RunRecord]) -> list[ReportFigure]:
    """Return the figures that the tables of one setting's runs give."""
    tints = method_colours(by_method(runs))
    domains = runs[0].domains
    figures = []
    if any(run.subjects for run in runs):
        for pair in combinations(domains, 2):
            figures.append(trade_off_figure(runs, pair, tints=tints, name=_figure_name("trade_off", pair, domains)))
        figures.append(scores_figure(runs, tints=tints))
    for domain in plotted_domains(domains):
        figures.append(weights_figure(runs, domain, tints=tints, name=_figure_name("weights", (domain,), domains)))
    figures.append(learning_figure(runs))
    return figures


def _figure_name(name: str, shown_domains: Sequence[str], domains: Sequence[str]) -> str:
    """Return a figure's name: with more than two domains there is one for each domain or pair of them."""
    if len(domains) <= 2:
        return name
    return re.sub(r"[^\w.@-]", "-", "_".join((name, *shown_domains)))


def _viewer_subjects(runs: Sequence[RunRecord], dataset: Dataset, scans: Scans) -> tuple[list[SubjectPredictions], str]:
    """Return the subjects of the viewer, and a note on how many of how many they are."""
    candidates = _predicting_runs(runs)
    if not _tested(dataset, candidates):
        raise UserError(f"{dataset.root}: holds none of the subjects that the runs were tested on.")
    methods = tuple(map(canonical_method, scans.methods)) or _default_methods(candidates)
    present = by_method(candidates)
    for method in methods:
        if method not in present:
            raise UserError(f"no run that was tested is of method {method}; there are {', '.join(present)}.")
    chosen_runs = [run for run in candidates if run.method in methods]
    tested = _tested(dataset, chosen_runs)
    predictions = []
    for subject in tested[: scans.subjects]:
        predictions.append(predict_on(subject, chosen_runs, trusted=scans.trusted))
    note = (
        f"{len(predictions)} of {len(tested)} test subjects are in the viewer, with what {' and '.join(methods)} find "
        "on them."
    )
    return predictions, note


def _predicting_runs(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the evaluated runs of the first setting, whose networks are there to predict with.

    Raises:
        UserError: No run has a folder.
    """
    with_folder = [run for run in runs if run.config is not None]
    if not with_folder:
        raise UserError("the run folders are gone, so there are no networks to predict with; leave out --data.")
    settings = by_setting(run for run in with_folder if run.subjects)
    return next(iter(settings.values()), [])


def _tested(dataset: Dataset, runs: Sequence[RunRecord]) -> list[Subject]:
    """Return the subjects of a dataset that some run was tested on."""
    names: set[str] = set()
    for run in runs:
        names.update(run.subjects)
    return [subject for subject in dataset.subjects if subject.key in names]


def _default_methods(runs: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return the baseline and the best other method."""
    base = baseline_of(by_method(runs))
    others = rivals(runs, base)
    if not others:
        return (base,)
    return base, best_method(runs, others)


def _scan_figures(subjects: Sequence[SubjectPredictions]) -> list[ReportFigure]:
    """Return the figure of the first subject, with the predictions of the last method in the viewer; or none."""
    if not subjects:
        return []
    first = subjects[0]
    method = list(first.masks)[-1]
    title = f"{first.key}, a test subject: what {method} finds on either contrast"
    return [scans_figure(first, method=method, title=title)]


def _geometry_figures(runs: Sequence[RunRecord], dataset: Dataset, trusted: Sequence[str]) -> list[ReportFigure]:
    """Return the geometry of the last run that trained on several domains; none without such a run."""
    several_domains = [run for run in runs if len(run.trained) > 1 and run.steps.count > 0]
    if not several_domains:
        return []
    last = several_domains[-1]
    return [geometry_figure(measure_geometry(last, dataset, trusted=trusted), method=last.method)]
