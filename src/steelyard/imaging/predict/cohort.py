"""Many scans: in parallel, resumable, one scan's failure no other's."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import perf_counter

from steelyard.errors import UserError, one_line, reason
from steelyard.files.destinations import refuse_links
from steelyard.files.ownership import is_intact, moved_message
from steelyard.files.regular_files import digest
from steelyard.imaging.datasets.derivatives import lock_derivatives, page_failed, versions, withdraw_outputs, write_top
from steelyard.imaging.predict import outputs
from steelyard.imaging.predict.mosaic import draw_mosaic
from steelyard.imaging.predict.options import Options
from steelyard.imaging.predict.page import render_page
from steelyard.imaging.predict.pipeline import predict_scan
from steelyard.imaging.predict.scans import Scan
from steelyard.imaging.predict.table import Row, write_table
from steelyard.imaging.predict.trained_network import Model, load_model
from steelyard.processes.workers import JobResult, check_workers, run_jobs


@dataclass(frozen=True, kw_only=True)
class Network:
    """Which network is to be used.

    Args:
        run: Its run directory.
        model: Its import path, from the user, if it is no network of ours.
    """

    run: Path
    model: str | None = None


@dataclass(frozen=True)
class _Job:
    scan: Scan
    out: Path
    network: Network
    options: Options

    @property
    def key(self) -> str:
        return self.scan.key


def predict(
    network: Network, scans: Sequence[Scan], out: Path, *, options: Options, workers: int = 1
) -> Iterator[JobResult]:
    """Find the lesions of every scan and yield each outcome as it comes.

    A scan whose content, model and options are those of an earlier run is left as it is. What earlier runs wrote of
    a scan that fails now is moved out of sight, and so are results that somebody changed and that are written anew;
    what they wrote of other scans stays, in the table and on the page too. Both are written after the last scan.

    Raises:
        UserError: The run or the output folder cannot be used; nothing was written then.
    """
    check_workers(workers)
    _loaded.cache_clear()
    _loaded(network)
    with lock_derivatives(out, outputs.KIND, sources=[network.run, *(scan.path for scan in scans)]):
        yield from _predict([_Job(scan, out, network, options) for scan in scans], out, workers)


def _predict(jobs: Sequence[_Job], out: Path, workers: int) -> Iterator[JobResult]:
    scans = {job.key: job.scan for job in jobs}
    failures: dict[str, str] = {}
    for outcome in run_jobs(_work, jobs, workers=workers):
        told = outcome
        if outcome.status == "failed":
            record = outputs.record_path(out, scans[outcome.key])
            told = withdraw_outputs(outcome, out, outputs.files_of(record, out))
            failures[outcome.key] = told.message
        yield told
    try:
        _write_cohort(out, [_failed(scans[key], message) for key, message in failures.items()])
    except (UserError, OSError) as error:
        yield page_failed(error)


@lru_cache(maxsize=1)
def _loaded(network: Network) -> Model:
    return load_model(network.run, model=network.model)


def _work(job: _Job) -> JobResult:
    if job.scan.fault is not None:
        raise UserError(job.scan.fault)
    start = perf_counter()
    model = _loaded(job.network)
    try:
        scan_digest = digest(job.scan.path)
    except OSError as error:
        raise UserError(f"{job.scan.path}: cannot be read, {reason(error)}.") from error
    mark = outputs.fingerprint(scan_digest, model.about, job.options)
    record = outputs.record_path(job.out, job.scan)
    refuse_links(record.parent, within=job.out)
    earlier = outputs.read_record(record, job.out)
    if earlier is not None and earlier[0] == mark and is_intact(job.out, record):
        return JobResult(job.key, "unchanged")
    found = predict_scan(job.scan.path, model, job.options)
    row = outputs.describe(job.scan, found, about=model.about, options=job.options)
    picture = draw_mosaic(found, row)
    seconds = {step: round(spent, 2) for step, spent in found.seconds.items()}
    common = {
        "Fingerprint": mark,
        "Options": job.options.as_dict(),
        "Steps": found.steps,
        "Model": dict(model.about),
        "Scan": {"Name": one_line(job.scan.path.name), "SHA256": scan_digest},
        "Row": outputs.as_record(row),
        "Seconds": seconds | {"total": round(perf_counter() - start, 2)},
    }
    moved = outputs.write_scan(job.out, job.scan, found, common=common, picture=picture)
    return JobResult(job.key, "done", moved_message(moved, job.out))


def _failed(scan: Scan, message: str) -> Row:
    problem = message.removeprefix(f"{scan.key}: ")
    return Row(
        scan=scan.key, source=one_line(scan.path.name), contrast=scan.contrast or "", status="failed", problem=problem
    )


def _write_cohort(out: Path, failed: Sequence[Row]) -> None:
    """Write the table and the page of everything that is there."""
    done: dict[Path, Row] = {}
    for record in outputs.records(out):
        found = outputs.read_record(record, out)
        if found is not None:
            done[record] = found[1]
    write_top(out, outputs.TABLE, write_table([*done.values(), *failed]))
    pictures = {row.scan: outputs.figure_path(record, out).read_bytes() for record, row in done.items()}
    facts = f"Written by steelyard {versions()['steelyard']}."
    write_top(out, "index.html", render_page([*done.values()], pictures=pictures, failed=failed, facts=facts))
