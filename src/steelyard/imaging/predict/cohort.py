"""Many scans: in parallel, resumable; a failed scan does not stop the others."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from time import perf_counter

from steelyard.errors import UserError, one_line, reason
from steelyard.files.ownership import moved_message
from steelyard.files.regular_files import digest
from steelyard.imaging.datasets.derivative_records import is_up_to_date, rounded_seconds
from steelyard.imaging.datasets.derivatives import lock_derivatives, page_failed, versions, withdraw_outputs, write_top
from steelyard.imaging.networks.accelerator import Accelerator
from steelyard.imaging.predict import outputs
from steelyard.imaging.predict.mosaic import draw_mosaic
from steelyard.imaging.predict.options import Options
from steelyard.imaging.predict.page import render_page
from steelyard.imaging.predict.pipeline import predict_scan
from steelyard.imaging.predict.scans import Scan
from steelyard.imaging.predict.table import Row, failed_row, predicted_row, write_table
from steelyard.imaging.predict.trained_network import TrainedNetwork, load_trained_network
from steelyard.imaging.scans.libraries import quiet_libraries
from steelyard.processes.workers import JobResult, check_workers, run_jobs


@dataclass(frozen=True, kw_only=True)
class _Job:
    scan: Scan
    out: Path
    run: Path
    model: str | None
    options: Options

    @property
    def key(self) -> str:
        return self.scan.key


def predict(
    run: Path, scans: Sequence[Scan], out: Path, *, options: Options, model: str | None = None, workers: int = 1
) -> Iterator[JobResult]:
    """Find the lesions of every scan and yield each result as it comes.

    A scan whose content, network and options are those of an earlier run is left unchanged. If a scan fails, the
    outputs that earlier runs wrote of it are withdrawn. So are results that somebody changed and that are written anew.
    The outputs of other scans stay, in the table and on the page too. Both are written after the last scan.

    Args:
        run: The run folder of the trained network.
        scans: From `find_scans`.
        out: The folder for the results.
        options: Which steps run, and what counts as a lesion.
        model: The import path of the network's code, from the user, if it is not one of steelyard's networks.
        workers: Number of scans that are processed at a time.

    Raises:
        UserError: The run or the output folder cannot be used; nothing was written then.
    """
    check_workers(workers)
    _cached_network.cache_clear()  # the run may have been trained further since the last call
    _cached_network(run, model, options.accelerator)  # a run that cannot be used fails here, before anything is written
    jobs = [_Job(scan=scan, out=out, run=run, model=model, options=options) for scan in scans]
    with lock_derivatives(out, outputs.KIND, sources=[run, *(scan.path for scan in scans)]):
        yield from _predict(jobs, out, workers)


def _predict(jobs: Sequence[_Job], out: Path, workers: int) -> Iterator[JobResult]:
    scans = {job.key: job.scan for job in jobs}
    failed: list[Row] = []
    for result in run_jobs(_predict_and_write, jobs, workers=workers, prepare=quiet_libraries):
        if result.status == "failed":
            scan = scans[result.key]
            result = withdraw_outputs(result, out, outputs.files_of(outputs.record_path(out, scan), out))
            failed.append(failed_row(scan, result.message))
        yield result
    try:
        _write_table_and_page(out, failed)
    except (UserError, OSError) as error:
        yield page_failed(error)


@lru_cache(maxsize=1)
def _cached_network(run: Path, model: str | None, accelerator: Accelerator) -> TrainedNetwork:
    """Load a network once per process: each job of a worker uses the same."""
    return load_trained_network(run, model=model, accelerator=accelerator)


def _predict_and_write(job: _Job) -> JobResult:
    start = perf_counter()
    if job.scan.fault is not None:
        raise UserError(job.scan.fault)
    trained = _cached_network(job.run, job.model, job.options.accelerator)
    scan_digest = _digest_of(job.scan)
    fingerprint = outputs.fingerprint(scan_digest, trained.description, job.options)
    record = outputs.record_path(job.out, job.scan)
    if is_up_to_date(job.out, record, outputs.read_record(record, job.out), expected=fingerprint):
        return JobResult(job.key, "unchanged")
    prediction = predict_scan(job.scan.path, trained, job.options)
    row = predicted_row(job.scan, prediction, network=trained.description, options=job.options)
    picture = draw_mosaic(prediction, row)
    common = {
        "Fingerprint": fingerprint,
        "Options": job.options.as_dict(),
        "Steps": prediction.steps,
        "Model": dict(trained.description),
        "Scan": {"Name": one_line(job.scan.path.name), "SHA256": scan_digest},
        "Row": asdict(row),
        "Seconds": rounded_seconds(prediction.seconds, total=perf_counter() - start),
    }
    moved = outputs.write_scan(job.out, job.scan, prediction, common=common, picture=picture)
    return JobResult(job.key, "done", moved_message(moved, job.out))


def _digest_of(scan: Scan) -> str:
    try:
        return digest(scan.path)
    except OSError as error:
        raise UserError(f"{scan.path}: cannot be read, {reason(error)}.") from error


def _write_table_and_page(out: Path, failed: Sequence[Row]) -> None:
    """Write the table and the page of all results in the folder, earlier ones too, and of the scans that failed now."""
    rows: dict[Path, Row] = {}
    for path in outputs.record_paths(out):
        record = outputs.read_record(path, out)
        if record is not None:
            rows[path] = record.row
    write_top(out, outputs.TABLE, write_table([*rows.values(), *failed]))
    pictures = {row.scan: outputs.result_files(path, out).figure.read_bytes() for path, row in rows.items()}
    facts = f"Written by steelyard {versions()['steelyard']}."
    write_top(out, "index.html", render_page([*rows.values()], pictures=pictures, failed=failed, facts=facts))
