"""Scans that are there under two names."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from steelyard.errors import UserError
from steelyard.files.provenance import digest
from steelyard.imaging.datasets.bids import Dataset, Remark, Subject
from steelyard.imaging.scans.nifti import MOST_VOXELS
from steelyard.imaging.scans.volumes import read_scan


def refuse_copies(dataset: Dataset, *, most_voxels: int = MOST_VOXELS) -> Dataset:
    """Return the dataset without the subjects of whose scans one is, byte for byte, another scan.

    A copy of a file that cannot be read is refused for that instead.
    """
    faults: dict[str, str] = {}
    for same in _same_scans(dataset):
        for subject, path in same:
            try:
                read_scan(path, most_voxels=most_voxels)
                text = next(_copied(subject, path, same))
            except UserError as error:
                text = str(error)
            faults.setdefault(subject.key, text)
    return replace(
        dataset,
        subjects=tuple(subject for subject in dataset.subjects if subject.key not in faults),
        faults=(*dataset.faults, *(Remark(key, text) for key, text in faults.items())),
        notes=tuple(note for note in dataset.notes if note.subject not in faults),
    )


def _copied(subject: Subject, path: Path, same: list[tuple[Subject, Path]]) -> Iterator[str]:
    for other, copy in same:
        if other.key != subject.key:
            yield f"{path} is the same file as {copy} of {other.key}; one head has two names"
    yield f"its FLAIR {subject.flair} and its T1w {subject.t1} are the same file"


def _same_scans(dataset: Dataset) -> Iterator[list[tuple[Subject, Path]]]:
    """Yield the scans that share their bytes; only files of one size are hashed."""
    scans = [(one, path) for one in dataset.subjects for path in (one.flair, one.t1) if path is not None]
    sizes: dict[int, list[tuple[Subject, Path]]] = {}
    digests: dict[str, list[tuple[Subject, Path]]] = {}
    for subject, path in scans:
        with suppress(OSError):
            sizes.setdefault(path.stat().st_size, []).append((subject, path))
    for alike in sizes.values():
        for subject, path in alike if len(alike) > 1 else ():
            with suppress(OSError):
                digests.setdefault(digest(path), []).append((subject, path))
    yield from (same for same in digests.values() if len(same) > 1)
