"""Scans that are in a dataset under two names."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from steelyard.errors import UserError
from steelyard.files.regular_files import digest
from steelyard.imaging.datasets.subjects import Dataset, Remark, Subject
from steelyard.imaging.scans.nifti import MOST_VOXELS
from steelyard.imaging.scans.volumes import read_scan


@dataclass(frozen=True)
class _Scan:
    subject: Subject
    path: Path


def refuse_copies(dataset: Dataset, *, most_voxels: int = MOST_VOXELS) -> Dataset:
    """Return the dataset without the subjects of whose scans one is, byte for byte, another scan.

    A copy of a file that cannot be read is refused for that instead.
    """
    faults: dict[str, str] = {}
    for copies in _identical_scans(dataset):
        for scan in copies:
            try:
                read_scan(scan.path, most_voxels=most_voxels)
                text = _describe_copy(scan, copies)
            except UserError as error:
                text = str(error)
            faults.setdefault(scan.subject.key, text)
    return replace(
        dataset,
        subjects=tuple(subject for subject in dataset.subjects if subject.key not in faults),
        faults=(*dataset.faults, *(Remark(key, text) for key, text in faults.items())),
        notes=tuple(note for note in dataset.notes if note.subject not in faults),
    )


def _describe_copy(scan: _Scan, copies: Sequence[_Scan]) -> str:
    for other in copies:
        if other.subject.key != scan.subject.key:
            return f"{scan.path} is the same file as {other.path} of {other.subject.key}; one head has two names"
    return f"its FLAIR {scan.subject.flair} and its T1w {scan.subject.t1} are the same file"


def _identical_scans(dataset: Dataset) -> Iterator[list[_Scan]]:
    """Yield the groups of scans that share their bytes; a file that cannot be read is in none."""
    # Only files of one size are hashed: hashing a cohort takes minutes.
    scans_of_size: dict[int, list[_Scan]] = {}
    for subject in dataset.subjects:
        for path in (subject.flair, subject.t1):
            if path is not None:
                with suppress(OSError):
                    scans_of_size.setdefault(path.stat().st_size, []).append(_Scan(subject, path))
    scans_of_digest: dict[str, list[_Scan]] = {}
    for scans in scans_of_size.values():
        if len(scans) == 1:
            continue
        for scan in scans:
            with suppress(OSError):
                scans_of_digest.setdefault(digest(scan.path), []).append(scan)
    for scans in scans_of_digest.values():
        if len(scans) > 1:
            yield scans
