"""Plain folders of scans, whose names follow a pattern."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

from steelyard.errors import UserError, reason
from steelyard.imaging.datasets.bids import describe_ambiguity, without_twins
from steelyard.imaging.datasets.subjects import Dataset, Subject, SubjectDraft, bids_label, build_dataset, is_folder

_NAME = "{subject}"
_ENDING = r"\.nii(\.gz)?"


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
        if self.flair is None and self.t1 is None:
            raise UserError("a pattern for flair, for t1 or for both is needed.")
        for pattern in self.by_role().values():
            if _NAME not in pattern:
                raise UserError(f"the pattern {pattern!r} must hold {_NAME}.")

    def by_role(self) -> dict[str, str]:
        """Return the patterns that are set, by the role of their files in a `Subject`."""
        patterns = {}
        for role in fields(self):
            pattern = getattr(self, role.name)
            if pattern is not None:
                patterns[role.name] = pattern
        return patterns


def read_pairs(root: Path, patterns: Patterns, *, optional: Collection[str] = ()) -> Dataset:
    """Read a plain folder of scans.

    Args:
        root: The folder.
        patterns: How its files are named.
        optional: Roles, such as `brain`, that are not needed: an ambiguity about them is a note, not a fault.

    Raises:
        UserError: The folder cannot be read, or no file fits the patterns.
    """
    if not is_folder(root):
        raise UserError(f"{root}: there is no such folder.")
    files: dict[str, dict[str, list[Path]]] = {}  # by subject, then by role
    for role, pattern in patterns.by_role().items():
        for name, path in _matches(root, pattern):
            files.setdefault(name, {}).setdefault(role, []).append(path)
    if not files:
        raise UserError(f"{root}: no file fits the patterns.")
    return build_dataset(root, [_draft_subject(name, files[name], optional) for name in sorted(files)])


def _draft_subject(name: str, files: dict[str, list[Path]], optional: Collection[str]) -> SubjectDraft:
    """Pick the file for each role, or say what is ambiguous."""
    draft = SubjectDraft(Subject(name=name, label=bids_label(name)))
    chosen: dict[str, Path] = {}
    for role, paths in files.items():
        candidates = without_twins(paths)
        if len(candidates) == 1:
            chosen[role] = candidates[0]
        else:
            remarks = draft.notes if role in optional else draft.problems
            remarks.append(describe_ambiguity(role, candidates) + "; keep one of them")
    draft.subject = replace(draft.subject, **chosen)  # type: ignore[arg-type]
    return draft


def _matches(root: Path, pattern: str) -> Iterator[tuple[str, Path]]:
    """Yield the subject and path of each file that fits; `.nii` and `.nii.gz` stand for each other."""
    stem = pattern.removesuffix(".gz").removesuffix(".nii")
    regex = re.compile(_regex(stem) + _ENDING)
    parts = pattern.split("/")
    try:
        for path in _at_depth(root, len(parts)):
            match = regex.fullmatch(path.relative_to(root).as_posix())
            if match and not _is_readable_folder(path):
                yield match["subject"], path
        for depth in range(1, len(parts)):
            yield from _lost_folders(root, parts, depth)
    except OSError as error:
        raise UserError(f"{root}: cannot be read, {reason(error)}.") from error


def _regex(pattern: str) -> str:
    """Return the regular expression of a pattern; wherever the subject's name stands, it must be the same."""
    first, *rest = map(re.escape, pattern.split(_NAME))
    return first + "(?P<subject>[^/]+?)" + "(?P=subject)".join(rest)


def _at_depth(root: Path, depth: int) -> list[Path]:
    return sorted(root.glob("/".join(["*"] * depth)))


def _lost_folders(root: Path, parts: list[str], depth: int) -> Iterator[tuple[str, Path]]:
    """Yield the subject and path of each file whose folder is a link that leads nowhere, for its subject to fail."""
    upper = "/".join(parts[:depth])
    if _NAME not in upper:
        return
    regex = re.compile(_regex(upper))
    for path in _at_depth(root, depth):
        match = regex.fullmatch(path.relative_to(root).as_posix())
        if match and path.is_symlink() and not path.exists():
            yield match["subject"], root / "/".join(parts).replace(_NAME, match["subject"])


def _is_readable_folder(path: Path) -> bool:
    """Whether this is a folder; what may not be looked at, and what is no file, fails when it is read."""
    try:
        return path.is_dir()
    except OSError:
        return False
