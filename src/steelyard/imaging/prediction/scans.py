"""Which scans there are, and how their results will be called."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from steelyard.errors import UserError
from steelyard.imaging.bids import SUFFIX, bids_label, settle
from steelyard.imaging.writing import reason

Contrast = Literal["flair", "t1", "both"]

_ENDINGS = (".nii", ".nii.gz")
# What BIDS allows between subject and space, in its order; the space and the description of the scan are replaced.
_ENTITIES = ("acq", "ce", "trc", "rec", "dir", "run", "echo", "flip", "inv", "mt", "part", "proc")
_REPLACED = ("space", "desc", "res")
_WORDS = {"flair": "flair", "t1": "t1", "t1w": "t1"}


@dataclass(frozen=True, kw_only=True)
class Scan:
    """One scan and the name of its results.

    Args:
        path: The file.
        label: Of the subject, in the letters and digits that BIDS allows.
        session: Of the subject, if the name tells.
        entities: What else tells it from other scans, such as `run-2`.
        contrast: `flair` or `t1`, or none if nothing tells.
    """

    path: Path
    label: str
    session: str | None = None
    entities: tuple[str, ...] = ()
    contrast: str | None = None

    @property
    def key(self) -> str:
        """The start of every file name of its results."""
        space = SUFFIX[self.contrast] if self.contrast else "orig"
        return "_".join([*self._visit, *self.entities, f"space-{space}"])

    @property
    def folder(self) -> Path:
        """Where its results lie within the derivatives."""
        return Path(*self._visit, "anat")

    @property
    def _visit(self) -> list[str]:
        return [f"sub-{self.label}", *([f"ses-{self.session}"] if self.session else [])]


def find_scans(paths: Sequence[Path], *, contrast: Contrast = "both") -> tuple[Scan, ...]:
    """List the scans in files and folders, by the names of their results.

    Args:
        paths: NIfTI files, and folders or BIDS datasets, of which everything named `…_FLAIR` or `…_T1w` is taken,
            but for what lies in `derivatives`.
        contrast: Which scans of a folder are taken; also what a file shows whose name does not tell.

    Raises:
        UserError: There is no such file, a folder holds no scan, or the results of two scans would have one name.
    """
    files = dict.fromkeys(file for path in paths for file in _files(path, contrast))
    scans = [_described(file, contrast) for file in files]
    seen: dict[str, Scan] = {}
    for scan in scans:
        first = seen.setdefault(scan.key.casefold(), scan)
        if first.path.resolve() != scan.path.resolve():
            raise UserError(
                f"{first.path} and {scan.path}: the results of both would be called {scan.key}; rename one of them."
            )
    return tuple(sorted(seen.values(), key=lambda scan: scan.key))


def _files(path: Path, contrast: Contrast) -> list[Path]:
    if not path.is_dir():
        if not path.name.endswith(_ENDINGS):
            raise UserError(f"{path}: a NIfTI file (.nii, .nii.gz) or a folder is needed.")
        if not path.exists():
            raise UserError(f"{path}: there is no such file.")
        return [path]
    suffixes = [suffix for name, suffix in SUFFIX.items() if contrast in (name, "both")]
    wanted = tuple(f"_{suffix}{ending}" for suffix in suffixes for ending in _ENDINGS)
    found = settle([file for file in _walk(path) if file.name.endswith(wanted) and _is_scan(file)])
    if not found:
        raise UserError(f"{path}: there is no {' or '.join(f'…_{one}.nii.gz' for one in suffixes)} in it.")
    return found


def _walk(root: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be read, {reason(error)}.") from error

    for place, folders, files in os.walk(root, onerror=refuse):
        folders[:] = sorted(name for name in folders if name[0] != "." and name != "derivatives")
        yield from (Path(place, name) for name in sorted(files) if name[0] != ".")


def _is_scan(file: Path) -> bool:
    return not re.search(r"_desc-(?!preproc_)", file.name)


def _described(path: Path, contrast: Contrast) -> Scan:
    stem = path.name.removesuffix(".gz").removesuffix(".nii")
    shows = _contrast(stem)
    if shows is None and contrast != "both":
        shows = contrast
    if contrast not in ("both", shows):
        raise UserError(f"{path}: is a {SUFFIX[shows or 'flair']} by its name; --contrast {contrast} says otherwise.")
    parts = stem.split("_")
    if parts[-1] in SUFFIX.values():
        parts.pop()
    held = [part.partition("-") for part in parts]
    entities = {key: value for key, dash, value in held if dash and value}
    known = {"sub", "ses", *_ENTITIES, *_REPLACED}
    if len(entities) < len(parts) or "sub" not in entities or not known.issuperset(entities):
        return Scan(path=path, label=bids_label(_plain_name(path, parts)), contrast=shows)
    return Scan(
        path=path,
        label=bids_label(entities["sub"]),
        session=bids_label(entities["ses"]) if "ses" in entities else None,
        entities=tuple(f"{key}-{bids_label(entities[key])}" for key in _ENTITIES if key in entities),
        contrast=shows,
    )


def _contrast(stem: str) -> str | None:
    """The contrast that a name tells, if it tells one."""
    told = {_WORDS[word] for word in re.split(r"[^0-9a-z]+", stem.lower()) if word in _WORDS}
    last = stem.rsplit("_", 1)[-1]
    if last in SUFFIX.values():
        return _WORDS[last.lower()]
    return told.pop() if len(told) == 1 else None


def _plain_name(path: Path, parts: Iterable[str]) -> str:
    """The name of a scan that BIDS would not name so; that of its folder where it is called after its contrast."""
    name = "_".join(parts).removeprefix("sub-")
    return path.resolve().parent.name if name.lower() in {"", *_WORDS} else name
