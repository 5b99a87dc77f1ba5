"""Plain folders of scans, told apart by a pattern of their names."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

from steelyard.errors import UserError, reason
from steelyard.imaging.datasets.bids import Dataset, Found, Subject, ambiguity, assemble, bids_label, is_folder, settle

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
    if not is_folder(root):
        raise UserError(f"{root}: there is no such folder.")
    found: dict[str, dict[str, list[Path]]] = {}
    for field in fields(patterns):
        pattern = getattr(patterns, field.name)
        for name, path in _matches(root, pattern) if pattern else ():
            found.setdefault(name, {}).setdefault(field.name, []).append(path)
    if not found:
        raise UserError(f"{root}: no file fits the patterns.")
    return assemble(root, [_subject(name, found[name], optional) for name in sorted(found)])


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
    regex = _regex(pattern.removesuffix(".gz").removesuffix(".nii"), ending=r"\.nii(\.gz)?")
    parts = pattern.split("/")
    try:
        for path in _at_depth(root, len(parts)):
            match = regex.fullmatch(path.relative_to(root).as_posix())
            if match and not _is_folder(path):
                yield match["subject"], path
        for depth in range(1, len(parts)):
            yield from _lost_folders(root, parts, depth)
    except OSError as error:
        raise UserError(f"{root}: cannot be read, {reason(error)}.") from error


def _regex(pattern: str, *, ending: str = "") -> re.Pattern[str]:
    first, *rest = (re.escape(part) for part in pattern.split(_NAME))
    return re.compile(first + "(?P<subject>[^/]+?)" + "(?P=subject)".join(rest) + ending)


def _at_depth(root: Path, depth: int) -> list[Path]:
    return sorted(root.glob("/".join(["*"] * depth)))


def _lost_folders(root: Path, parts: list[str], depth: int) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of each file whose folder is a link that leads nowhere, for its subject to fail."""
    upper = "/".join(parts[:depth])
    if _NAME not in upper:
        return
    regex = _regex(upper)
    for path in _at_depth(root, depth):
        match = regex.fullmatch(path.relative_to(root).as_posix())
        if match and path.is_symlink() and not path.exists():
            yield match["subject"], root / "/".join(parts).replace(_NAME, match["subject"])


def _is_folder(path: Path) -> bool:
    """Whether this is a folder; what may not be looked at, and what is no file, is said when it is read."""
    try:
        return path.is_dir()
    except OSError:
        return False
