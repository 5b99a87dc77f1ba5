"""A whole cohort: in parallel, resumable; a failed subject does not stop the others."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from steelyard.errors import UserError
from steelyard.files.ownership import moved_message
from steelyard.imaging.datasets.copies import refuse_copies
from steelyard.imaging.datasets.derivative_records import figure_path, is_up_to_date, rounded_seconds
from steelyard.imaging.datasets.derivatives import lock_derivatives, page_failed, versions, withdraw_outputs, write_top
from steelyard.imaging.datasets.subjects import Dataset, Subject
from steelyard.imaging.preprocess import outputs
from steelyard.imaging.preprocess.mosaic import draw_mosaic
from steelyard.imaging.preprocess.pipeline import prepare
from steelyard.imaging.preprocess.quality import PageEntry, measure_quality, render_page
from steelyard.imaging.preprocess.settings import Settings
from steelyard.imaging.scans.libraries import quiet_libraries
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
    """Preprocess every subject of a dataset and yield each result as it comes.

    A subject whose inputs and settings are those of an earlier run is left unchanged. The outputs of earlier runs are
    withdrawn if their subject fails now, or is no longer in the dataset. After the last subject the cohort's page is
    written.

    Raises:
        UserError: The output folder cannot be used.
    """
    check_workers(workers)
    with lock_derivatives(out, outputs.KIND, sources=[dataset.root], links={"raw": dataset.root}):
        yield from _preprocess(dataset, out, settings, workers)


def _preprocess(dataset: Dataset, out: Path, settings: Settings, workers: int) -> Iterator[JobResult]:
    dataset = refuse_copies(dataset, most_voxels=settings.most_voxels)
    results: list[JobResult] = []
    for result in _refused_subjects(dataset, out):
        results.append(result)
        yield result
    jobs = [_Job(subject, dataset.root, out, settings) for subject in dataset.subjects]
    for result in run_jobs(_prepare_and_write, jobs, workers=workers, prepare=quiet_libraries):
        if result.status == "failed":
            result = _withdraw(result, out)
        results.append(result)
        yield result
    notes = [str(note) for note in dataset.notes]
    notes += _withdraw_missing(out, {result.key for result in results})
    try:
        _write_page(dataset, out, results, notes)
    except (UserError, OSError) as error:
        yield page_failed(error)


def _refused_subjects(dataset: Dataset, out: Path) -> Iterator[JobResult]:
    """Yield a failure for each subject that cannot be processed, and withdraw its earlier outputs.

    Two subjects may have one key, such as `a-1` and `a1`: one of them is refused and the other processed. The outputs
    are the other's then, and stay.
    """
    processed_keys = {subject.key for subject in dataset.subjects}
    for fault in dataset.faults:
        result = JobResult(fault.subject, "failed", str(fault))
        if result.key not in processed_keys:
            result = _withdraw(result, out)
        yield result


def _withdraw_missing(out: Path, keys: set[str]) -> list[str]:
    """Withdraw the outputs of subjects that the dataset no longer has; return a line for each."""
    notes = []
    for key in sorted(outputs.files_by_subject(out).keys() - keys):
        result = _withdraw(JobResult(key, "failed", f"{key}: is no longer in the source"), out)
        logging.getLogger(__name__).warning(result.message)
        notes.append(result.message)
    return notes


def _withdraw(result: JobResult, out: Path) -> JobResult:
    return withdraw_outputs(result, out, outputs.files_of(out, result.key))


def _prepare_and_write(job: _Job) -> JobResult:
    start = perf_counter()
    subject = job.subject
    inputs = outputs.describe_inputs(subject, job.root)
    fingerprint = outputs.fingerprint(inputs, job.settings)
    earlier = outputs.read_record(job.out, subject)
    if is_up_to_date(job.out, outputs.record_path(job.out, subject), earlier, expected=fingerprint):
        return JobResult(subject.key, "unchanged")
    prepared = prepare(subject, job.settings)
    picture = draw_mosaic(prepared, subject.key)
    common = {
        "Fingerprint": fingerprint,
        "Settings": job.settings.as_dict(),
        "Versions": versions(),
        "Inputs": inputs,
        "Measures": measure_quality(prepared),
        "Seconds": rounded_seconds(prepared.seconds, total=perf_counter() - start),
    }
    moved = outputs.write_subject(job.out, subject, prepared, common=common, picture=picture)
    return JobResult(subject.key, "done", moved_message(moved, job.out))


def _write_page(dataset: Dataset, out: Path, results: Sequence[JobResult], notes: Sequence[str]) -> None:
    # By key, not by failures: of two subjects with one key, one may be ready though the other failed.
    ready_keys = {result.key for result in results if result.status != "failed"}
    entries = []
    for subject in dataset.subjects:
        record = outputs.read_record(out, subject)
        if record is not None and subject.key in ready_keys:
            picture = figure_path(out, subject.key).read_bytes()
            entries.append(PageEntry(subject.key, subject.name, record.measures, picture, record.seconds))
    page = render_page(
        entries,
        failures=[result.message for result in results if result.status == "failed"],
        notes=notes,
        facts=f"Written by steelyard {versions()['steelyard']}.",
    )
    write_top(out, "index.html", page)
