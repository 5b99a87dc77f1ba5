"""Which scans there are, and how their results will be called."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

from steelyard.errors import UserError, reason
from steelyard.imaging.datasets.bids import SUFFIX, without_twins
from steelyard.imaging.datasets.subjects import bids_label, is_folder, leads_in_circle

Contrast = Literal["flair", "t1", "both"]

_ENDINGS = (".nii", ".nii.gz")
# What BIDS allows between subject and space, in its order; the space and the description of the scan are replaced.
_ENTITIES = ("acq", "ce", "trc", "rec", "dir", "run", "echo", "flip", "inv", "mt", "part", "proc")
_REPLACED = ("space", "desc", "res")
_CIRCLE = "is a link that leads in a circle."
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
        fault: What is wrong with its links or folder, if anything is; it fails then, and the others go on.
    """

    path: Path
    label: str
    session: str | None = None
    entities: tuple[str, ...] = ()
    contrast: str | None = None
    fault: str | None = None

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

    What cannot be read in a folder, or is a link that leads in a circle, is listed with its fault.

    Raises:
        UserError: There is no such file, a folder holds no scan, or the results of two scans would have one name.
    """
    scans: dict[Path, Scan] = {}
    for path in paths:
        for scan in _scans(path, contrast):
            scans.setdefault(scan.path, scan)
    seen: dict[str, Scan] = {}
    for scan in scans.values():
        first = seen.setdefault(scan.key.casefold(), scan)
        if os.path.realpath(first.path) != os.path.realpath(scan.path):  # unlike resolve(), it bears links in a circle
            raise UserError(
                f"{first.path} and {scan.path}: the results of both would be called {scan.key}; rename one of them."
            )
    return tuple(sorted(seen.values(), key=lambda scan: scan.key))


def _scans(path: Path, contrast: Contrast) -> list[Scan]:
    if not is_folder(path):
        return [_file(path, contrast)]
    suffixes = [suffix for name, suffix in SUFFIX.items() if contrast in (name, "both")]
    endings = tuple(f"_{suffix}{ending}" for suffix in suffixes for ending in _ENDINGS)
    lost: list[Scan] = []
    files = [file for file in _walk(path, lost) if file.name.endswith(endings) and _is_scan(file)]
    scans = [_with_fault(_described(file, contrast)) for file in without_twins(files)]
    if not scans and not lost:
        raise UserError(f"{path}: there is no {' or '.join(f'…_{suffix}.nii.gz' for suffix in suffixes)} in it.")
    return scans + lost


def _file(path: Path, contrast: Contrast) -> Scan:
    if not path.name.endswith(_ENDINGS):
        raise UserError(f"{path}: a NIfTI file (.nii, .nii.gz) or a folder is needed.")
    if not os.path.lexists(path):  # a link that leads nowhere is its scan's fault
        raise UserError(f"{path}: there is no such file.")
    return _with_fault(_described(path, contrast))


def _with_fault(scan: Scan) -> Scan:
    return replace(scan, fault=f"{scan.path}: {_CIRCLE}") if leads_in_circle(scan.path) else scan


def _walk(root: Path, lost: list[Scan]) -> Iterator[Path]:
    """Yield the files in a folder; add to `lost` what cannot be read of it."""

    def note(error: OSError) -> None:
        folder = Path(error.filename)
        fault = f"{folder}: cannot be read, {reason(error)}."
        if folder == root:
            raise UserError(fault) from error
        lost.append(_lost(folder, root, fault))

    for top, folders, files in os.walk(root, onerror=note):
        folders[:] = sorted(name for name in folders if name[0] != "." and name != "derivatives")
        for name in sorted(files):
            path = Path(top, name)
            if name.startswith("sub-") and not path.suffix and leads_in_circle(path):
                lost.append(_lost(path, root, f"{path}: {_CIRCLE}"))
            elif name[0] != ".":
                yield path


def _lost(folder: Path, root: Path, fault: str) -> Scan:
    """Stand for the scans of a folder that cannot be read; no scan gets the same label."""
    relative = str(folder.relative_to(root))
    mark = sha256(os.fsencode(relative)).hexdigest()[:6]
    return Scan(path=folder, label=bids_label(relative) + mark, fault=fault)


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
    return Path(os.path.realpath(path)).parent.name if name.lower() in {"", *_WORDS} else name
