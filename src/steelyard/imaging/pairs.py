"""Plain folders of scans, told apart by a pattern of their names; scans that are there under two names."""

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from hashlib import file_digest
from pathlib import Path

from steelyard.errors import UserError
from steelyard.imaging.bids import Dataset, Found, Remark, Subject, ambiguity, assemble, bids_label, settle
from steelyard.imaging.volumes import read_scan
from steelyard.imaging.writing import reason

_NAME = "{subject}"


@dataclass(frozen=True, kw_only=True)
class Patterns:
    """How the files of a plain folder are named, `{subject}` standing for the subject's name.

    Args:
        flair: Such as `{subject}_FLAIR.nii.gz` or `{subject}/flair.nii.gz`; relative to the folder.
        t1: The same for T1w.
        wmh: The same for the lesion mask.
        brain: The same for the brain mask.
    """

    flair: str | None = None
    t1: str | None = None
    wmh: str | None = None
    brain: str | None = None

    def __post_init__(self) -> None:
        given = [getattr(self, field.name) for field in fields(self)]
        if self.flair is None and self.t1 is None:
            raise UserError("a pattern for flair, for t1 or for both is needed.")
        for pattern in given:
            if pattern is not None and pattern.count(_NAME) < 1:
                raise UserError(f"the pattern {pattern!r} must hold {_NAME}.")


def read_pairs(root: Path, patterns: Patterns, *, optional: Collection[str] = ()) -> Dataset:
    """Read a plain folder of scans.

    Args:
        root: The folder.
        patterns: How its files are named.
        optional: Roles, such as `brain`, that are not needed: what is ambiguous about them is a note, no fault.

    Raises:
        UserError: The folder cannot be read, or no file fits the patterns.
    """
    if not root.is_dir():
        raise UserError(f"{root}: there is no such folder.")
    found: dict[str, dict[str, list[Path]]] = {}
    for field in fields(patterns):
        pattern = getattr(patterns, field.name)
        for name, path in _matches(root, pattern) if pattern else ():
            found.setdefault(name, {}).setdefault(field.name, []).append(path)
    if not found:
        raise UserError(f"{root}: no file fits the patterns.")
    return assemble(root, [_subject(name, found[name], optional) for name in sorted(found)])


def refuse_copies(dataset: Dataset) -> Dataset:
    """Return the dataset without the subjects of whose scans one is, byte for byte, another scan.

    A copy of a file that cannot be read is refused for that instead.
    """
    faults: dict[str, str] = {}
    for same in _same_scans(dataset):
        for subject, path in same:
            try:
                read_scan(path)
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
            with suppress(OSError), path.open("rb") as stream:
                digests.setdefault(file_digest(stream, "sha256").hexdigest(), []).append((subject, path))
    yield from (same for same in digests.values() if len(same) > 1)


def _subject(name: str, files: dict[str, list[Path]], optional: Collection[str]) -> Found:
    found = Found(Subject(name=name, label=bids_label(name)))
    chosen: dict[str, Path] = {}
    for role, paths in files.items():
        left = settle(paths)
        if len(left) == 1:
            chosen[role] = left[0]
        else:
            (found.notes if role in optional else found.doubts).append(ambiguity(role, left) + "; keep one of them")
    found.subject = replace(found.subject, **chosen)  # type: ignore[arg-type]
    return found


def _matches(root: Path, pattern: str) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of each file that fits; `.nii` and `.nii.gz` stand for each other."""
    stem = pattern.removesuffix(".gz").removesuffix(".nii")
    first, *rest = (re.escape(part) for part in stem.split(_NAME))
    regex = re.compile(first + "(?P<subject>[^/]+?)" + "(?P=subject)".join(rest) + r"\.nii(\.gz)?")
    try:
        for path in sorted(root.glob("/".join("*" for _ in pattern.split("/")))):
            match = regex.fullmatch(path.relative_to(root).as_posix())
            if match and _may_be_file(path):
                yield match["subject"], path
    except OSError as error:
        raise UserError(f"{root}: cannot be read, {reason(error)}.") from error


def _may_be_file(path: Path) -> bool:
    """Whether this is a file; one that may not be looked at is its subject's fault, said when it is read."""
    try:
        return path.is_file()
    except PermissionError:
        return True
