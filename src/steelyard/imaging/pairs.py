"""Plain folders of scans, told apart by a pattern of their names."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from steelyard.errors import UserError
from steelyard.imaging.bids import Dataset, Subject, assemble, bids_label
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


def read_pairs(root: Path, patterns: Patterns) -> Dataset:
    """Read a plain folder of scans.

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
    return assemble(root, [_subject(name, found[name]) for name in sorted(found)])


def _subject(name: str, files: dict[str, list[Path]]) -> tuple[Subject, list[str]]:
    doubts = [
        f"{len(paths)} files could be its {role}: {', '.join(path.name for path in paths)}"
        for role, paths in files.items()
        if len(paths) > 1
    ]
    chosen = {role: paths[0] for role, paths in files.items()}
    return Subject(name=name, label=bids_label(name), **chosen), doubts  # type: ignore[arg-type]


def _matches(root: Path, pattern: str) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of each file that fits; `.nii` and `.nii.gz` stand for each other."""
    stem = pattern.removesuffix(".gz").removesuffix(".nii")
    first, *rest = (re.escape(part) for part in stem.split(_NAME))
    regex = re.compile(first + "(?P<subject>[^/]+?)" + "(?P=subject)".join(rest) + r"\.nii(\.gz)?")
    try:
        for path in sorted(root.glob("/".join("*" for _ in pattern.split("/")))):
            match = regex.fullmatch(path.relative_to(root).as_posix())
            if match and path.is_file():
                yield match["subject"], path
    except OSError as error:
        raise UserError(f"{root}: cannot be read, {reason(error)}.") from error
