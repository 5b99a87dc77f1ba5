"""From run directories to the report."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from steelyard.errors import UserError
from steelyard.imaging.datasets.subjects import Dataset, Subject
from steelyard.imaging.train.data import read_prepared
from steelyard.report.data.configuration import configuration_tables
from steelyard.report.data.geometry import measure_geometry
from steelyard.report.data.kinds import weights_that_tell
from steelyard.report.data.predictions import SubjectPredictions, predict_on
from steelyard.report.data.runs import RunRecord, by_method, by_setting
from steelyard.report.figures.geometry import geometry_plate
from steelyard.report.figures.learning import learning_plate
from steelyard.report.figures.plate import Plate, colours
from steelyard.report.figures.scans import scans_plate
from steelyard.report.figures.scores import scores_plate
from steelyard.report.figures.trade_off import trade_off_plate
from steelyard.report.figures.weights import weights_plate
from steelyard.report.html.page import Report
from steelyard.report.html.viewer import pack_subject
from steelyard.report.tables.comparison import answer, baseline_of, best_method, means_table, rivals, subjects_table


@dataclass(frozen=True, kw_only=True)
class Scans:
    """What the report may show of the data.

    Args:
        data: The preprocessed dataset that the runs were tested on.
        subjects: At most so many in the viewer.
        methods: Whose predictions; the baseline's and the best other's if not said.
        trusted: Import paths of networks that are not ours, from the user: needed, because they are code.
    """

    data: Path
    subjects: int = 6
    methods: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()


def assemble(
    runs: Sequence[RunRecord], *, scans: Scans | None = None, title: str, lead: str, marked: bool = False
) -> Report:
    """Return the report on some runs.

    Args:
        runs: As `read_runs` returns them.
        scans: Which scans may be shown; none if not given, and then there is no viewer.
        title: Of the page.
        lead: What it is about, in a sentence.
        marked: Whether titles and file names name the setting even if there is one only, as more may come later.
    """
    settings = by_setting(runs)
    marks = {setting: f", {setting}" if marked or len(settings) > 1 else "" for setting in settings}
    judged = [run for run in runs if run.subjects]
    figures = [plate for setting, held in settings.items() for plate in _plates(held, marks[setting])]
    shown: list[SubjectPredictions] = []
    note = "Without --data there are no scans here, and no geometry of gradients."
    if scans is not None:
        dataset = read_prepared(scans.data)
        shown, note = _shown(judged, dataset, scans)
        figures = [*_pictured(shown), *_measured(runs, dataset, scans), *figures]
    return Report(
        title=title,
        lead=lead,
        answer=answer(runs),
        tables=[
            means_table(held, title=f"Means over the test subjects{marks[setting]}")
            for setting, held in by_setting(judged).items()
        ],
        figures=[plate for plate in figures if plate.panels],
        subjects=[pack_subject(one) for one in shown],
        subjects_note=note,
        scores=[
            subjects_table(held, title=f"Every test subject{marks[setting]}")
            for setting, held in by_setting(judged).items()
        ],
        settings=configuration_tables(runs),
    )


def _plates(runs: Sequence[RunRecord], mark: str) -> Iterator[Plate]:
    """Yield what the tables of one setting's runs can show."""
    tints = colours(by_method(runs))
    domains = runs[0].config.domains
    plates: list[Plate] = []
    if any(run.subjects for run in runs):
        plates += [
            trade_off_plate(runs, pair, tints=tints, name=_named("trade_off", pair, domains))
            for pair in combinations(domains, 2)
        ]
        plates.append(scores_plate(runs, tints=tints))
    plates += [
        weights_plate(runs, domain, tints=tints, name=_named("weights", (domain,), domains))
        for domain in weights_that_tell(domains)
    ]
    for plate in [*plates, learning_plate(runs)]:
        name = f"{plate.name}{mark.replace(', ', '_')}"
        yield replace(plate, name=name, title=f"{plate.title}{mark}") if mark else plate


def _named(name: str, about: Sequence[str], domains: Sequence[str]) -> str:
    """Return a figure's name: with more than two domains there is one for each domain or pair of them."""
    return re.sub(r"[^\w.@-]", "-", "_".join((name, *about))) if len(domains) > 2 else name


def _shown(runs: Sequence[RunRecord], dataset: Dataset, scans: Scans) -> tuple[list[SubjectPredictions], str]:
    """Return the subjects of the viewer, and who is left out."""
    runs = next(iter(by_setting(runs).values()), [])
    tested = {subject for run in runs for subject in run.subjects}
    there = [subject for subject in dataset.subjects if subject.key in tested]
    if not there:
        raise UserError(f"{dataset.root}: holds none of the subjects that the runs were tested on.")
    methods = scans.methods or _interesting(runs)
    chosen = [run for run in runs if run.method in methods]
    if unknown := sorted(set(methods) - {run.method for run in runs}):
        raise UserError(f"no run that was tested is of method {unknown[0]}; there are {', '.join(by_method(runs))}.")
    there = [subject for subject in there if any(subject.key in run.subjects for run in chosen)]
    kept: list[Subject] = there[: scans.subjects]
    note = (
        f"{len(kept)} of {len(there)} test subjects are in the viewer, with what {' and '.join(methods)} find on them."
    )
    return [predict_on(subject, chosen, trusted=scans.trusted) for subject in kept], note


def _interesting(runs: Sequence[RunRecord]) -> tuple[str, ...]:
    methods = list(by_method(runs))
    base = baseline_of(methods)
    others = rivals(runs, base)
    return (base, best_method(runs, others)) if others else (base,)


def _pictured(shown: Sequence[SubjectPredictions]) -> Iterator[Plate]:
    """Yield the picture of the first subject, as the last method in the viewer sees it."""
    for one in shown[:1]:
        method = list(one.masks)[-1]
        yield scans_plate(
            one, method=method, title=f"{one.key}, a test subject: what {method} finds on either contrast"
        )


def _measured(runs: Sequence[RunRecord], dataset: Dataset, scans: Scans) -> Iterator[Plate]:
    """Yield the geometry of the last run that trained on both domains."""
    both = [run for run in runs if len(run.config.trained) > 1 and run.steps.count]
    for run in both[-1:]:
        yield geometry_plate(measure_geometry(run, dataset, trusted=scans.trusted), method=run.method)
