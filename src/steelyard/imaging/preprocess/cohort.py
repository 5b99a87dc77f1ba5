"""A whole cohort: in parallel, resumable, one subject's failure no other's."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from time import perf_counter

from steelyard.errors import UserError
from steelyard.files.destinations import refuse_links
from steelyard.files.ownership import is_intact, moved_message
from steelyard.imaging.datasets.copies import refuse_copies
from steelyard.imaging.datasets.derivatives import lock_derivatives, page_failed, versions, withdraw_outputs, write_top
from steelyard.imaging.datasets.subjects import Dataset, Subject
from steelyard.imaging.preprocess import outputs, record
from steelyard.imaging.preprocess.mosaic import draw_mosaic
from steelyard.imaging.preprocess.page import Entry, render_page
from steelyard.imaging.preprocess.pipeline import prepare
from steelyard.imaging.preprocess.settings import Settings
from steelyard.processes.workers import JobResult, check_workers, run_jobs


@dataclass(frozen=True)
class _Job:
    subject: Subject
    root: Path
    out: Path
    settings: Settings

    @property
    def key(self) -> str:
        return self.subject.key


def preprocess(dataset: Dataset, out: Path, *, settings: Settings, workers: int = 1) -> Iterator[JobResult]:
    """Preprocess every subject of a dataset and yield each outcome as it comes.

    A subject whose inputs and settings are those of an earlier run is left as it is. What earlier runs wrote of a
    subject that fails now, or that the dataset no longer has, is moved out of sight. After the last subject the
    cohort's page is written.

    Raises:
        UserError: The output folder cannot be used.
    """
    check_workers(workers)
    with lock_derivatives(out, outputs.KIND, sources=[dataset.root], links={"raw": dataset.root}):
        yield from _preprocess(dataset, out, settings, workers)


def _preprocess(dataset: Dataset, out: Path, settings: Settings, workers: int) -> Iterator[JobResult]:
    dataset = refuse_copies(dataset, most_voxels=settings.most_voxels)
    jobs = [_Job(subject, dataset.root, out, settings) for subject in dataset.subjects]
    refused = [JobResult(remark.subject, "failed", str(remark)) for remark in dataset.faults]
    outcomes: list[JobResult] = []
    for outcome in chain(refused, run_jobs(_prepare_and_write, jobs, workers=workers)):
        namesake = len(outcomes) < len(refused) and outcome.key in {job.subject.key for job in jobs}
        outcomes.append(outcome if namesake or outcome.status != "failed" else _withdrawn(outcome, out))
        yield outcomes[-1]
    notes = [str(note) for note in dataset.notes]
    for key in sorted(outputs.written_files(out).keys() - {outcome.key for outcome in outcomes}):
        gone = _withdrawn(JobResult(key, "failed", f"{key}: is no longer in the source"), out)
        logging.getLogger(__name__).warning(gone.message)
        notes.append(gone.message)
    try:
        _write_page(dataset, out, outcomes, notes)
    except (UserError, OSError) as error:
        yield page_failed(error)


def _withdrawn(outcome: JobResult, out: Path) -> JobResult:
    return withdraw_outputs(outcome, out, outputs.files_of(out, outcome.key))


def _prepare_and_write(job: _Job) -> JobResult:
    start = perf_counter()
    subject = job.subject
    inputs = record.inputs_of(subject, job.root)
    mark = record.fingerprint(inputs, job.settings)
    refuse_links(job.out / subject.folder, within=job.out)
    earlier = outputs.read_record(job.out, subject)
    path = outputs.record_path(job.out, subject)
    if earlier is not None and earlier.fingerprint == mark and is_intact(job.out, path):
        return JobResult(subject.key, "unchanged")
    done = prepare(subject, job.settings)
    picture = draw_mosaic(done, f"{subject.key}")
    seconds = {step: round(spent, 2) for step, spent in done.seconds.items()}
    common = {
        "Fingerprint": mark,
        "Settings": job.settings.as_dict(),
        "Versions": versions(),
        "Inputs": inputs,
        "Measures": record.measures(done),
        "Seconds": seconds | {"total": round(perf_counter() - start, 2)},
    }
    moved = outputs.write_subject(job.out, subject, done, common=common, picture=picture)
    return JobResult(subject.key, "done", moved_message(moved, job.out))


def _write_page(dataset: Dataset, out: Path, outcomes: Sequence[JobResult], notes: Sequence[str]) -> None:
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    ready = {outcome.key for outcome in outcomes if outcome.status != "failed"}  # its namesake may have failed
    entries = []
    for subject in dataset.subjects:
        found = outputs.read_record(out, subject) if subject.key in ready else None
        if found is not None:
            picture = (out / outputs.figure_path(subject)).read_bytes()
            entries.append(Entry(subject.key, subject.name, found.measures, picture, found.seconds))
    page = render_page(
        entries,
        failures=[outcome.message for outcome in failed],
        notes=notes,
        facts=f"Written by steelyard {versions()['steelyard']}.",
    )
    write_top(out, "index.html", page)
