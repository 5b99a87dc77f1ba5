"""Which scans are predicted, and the names of their results."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

from steelyard.errors import UserError, reason
from steelyard.imaging.datasets.bids import SUFFIX, without_twins
from steelyard.imaging.datasets.bids_names import NIFTI_ENDINGS, last_part, stem, strict_entities
from steelyard.imaging.datasets.subjects import bids_label, is_folder, leads_in_circle

Contrast = Literal["flair", "t1", "both"]

# The entities that BIDS allows between subject and space, in its order. A result keeps them.
_KEPT_ENTITIES = ("acq", "ce", "trc", "rec", "dir", "run", "echo", "flip", "inv", "mt", "part", "proc")
_REPLACED_ENTITIES = ("space", "desc", "res")  # a result has its own
_KNOWN_ENTITIES = {"sub", "ses", *_KEPT_ENTITIES, *_REPLACED_ENTITIES}
_CIRCLE = "is a link that leads in a circle."
_CONTRAST_WORDS = {"flair": "flair", "t1": "t1", "t1w": "t1"}  # in the name of a file, and what they mean


@dataclass(frozen=True, kw_only=True)
class Scan:
    """One scan and the name of its results.

    Args:
        path: The file.
        label: Of the subject, in the letters and digits that BIDS allows.
        session: Of the subject, if the name tells.
        entities: What else distinguishes it from other scans, such as `run-2`.
        contrast: `flair` or `t1`; None if nothing tells.
        fault: What is wrong with its links or its folder, if anything. The scan fails then, and the others go on.
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
        space = "orig" if self.contrast is None else SUFFIX[self.contrast]
        return "_".join([*self._visit, *self.entities, f"space-{space}"])

    @property
    def folder(self) -> Path:
        """Where its results lie within the derivatives."""
        return Path(*self._visit, "anat")

    @property
    def _visit(self) -> list[str]:
        if self.session is None:
            return [f"sub-{self.label}"]
        return [f"sub-{self.label}", f"ses-{self.session}"]


def find_scans(paths: Sequence[Path], *, contrast: Contrast = "both") -> tuple[Scan, ...]:
    """List the scans in files and folders, sorted by the names of their results.

    Args:
        paths: NIfTI files, folders or BIDS datasets. Of a folder everything named `…_FLAIR` or `…_T1w` is taken, except
            what lies in `derivatives`.
        contrast: Which scans of a folder are taken. It is also the contrast of a file whose name does not tell.

    What cannot be read in a folder, or is a link that leads in a circle, is listed with its fault.

    Raises:
        UserError: There is no such file, a folder holds no scan, or the results of two scans would have one name.
    """
    scans: dict[Path, Scan] = {}
    for path in paths:
        for scan in _scans_at(path, contrast):
            scans.setdefault(scan.path, scan)
    scans_by_key: dict[str, Scan] = {}
    for scan in scans.values():
        # Keys that differ in case only would be one file on some systems.
        first = scans_by_key.setdefault(scan.key.casefold(), scan)
        if os.path.realpath(first.path) != os.path.realpath(scan.path):  # unlike resolve(), it bears links in a circle
            raise UserError(
                f"{first.path} and {scan.path}: the results of both would be called {scan.key}; rename one of them."
            )
    return tuple(sorted(scans_by_key.values(), key=lambda scan: scan.key))


def _scans_at(path: Path, contrast: Contrast) -> list[Scan]:
    if is_folder(path):
        return _scans_in_folder(path, contrast)
    if not path.name.endswith(NIFTI_ENDINGS):
        raise UserError(f"{path}: a NIfTI file (.nii, .nii.gz) or a folder is needed.")
    if not os.path.lexists(path):  # a link that leads nowhere exists: it fails later, as its scan's fault
        raise UserError(f"{path}: there is no such file.")
    return [_scan_of_file(path, contrast)]


def _scans_in_folder(folder: Path, contrast: Contrast) -> list[Scan]:
    suffixes = [suffix for name, suffix in SUFFIX.items() if contrast in (name, "both")]
    unreadable: list[Scan] = []
    files = [path for path in _walk(folder, unreadable) if _is_scan(path.name, suffixes)]
    scans = [_scan_of_file(path, contrast) for path in without_twins(files)]
    if not scans and not unreadable:
        names = " or ".join(f"…_{suffix}.nii.gz" for suffix in suffixes)
        raise UserError(f"{folder}: there is no {names} in it.")
    return scans + unreadable


def _walk(root: Path, unreadable: list[Scan]) -> Iterator[Path]:
    """Yield the files in a folder; add to `unreadable` the folders and links in it that cannot be read."""

    def add_unreadable(error: OSError) -> None:
        folder = Path(error.filename)
        fault = f"{folder}: cannot be read, {reason(error)}."
        if folder == root:
            raise UserError(fault) from error
        unreadable.append(_unreadable_folder(folder, root, fault))

    for top, folders, files in os.walk(root, onerror=add_unreadable):
        # In place: os.walk goes on with the folders that are left here.
        folders[:] = sorted(name for name in folders if name[0] != "." and name != "derivatives")
        for name in sorted(files):
            path = Path(top, name)
            # A link to itself may have been a subject's folder.
            if name.startswith("sub-") and not path.suffix and leads_in_circle(path):
                unreadable.append(_unreadable_folder(path, root, f"{path}: {_CIRCLE}"))
            elif name[0] != ".":
                yield path


def _unreadable_folder(folder: Path, root: Path, fault: str) -> Scan:
    """Return one entry for all scans of a folder that cannot be read; no scan gets the same label."""
    relative = str(folder.relative_to(root))
    suffix = sha256(os.fsencode(relative)).hexdigest()[:6]
    return Scan(path=folder, label=bids_label(relative) + suffix, fault=fault)


def _is_scan(name: str, suffixes: Sequence[str]) -> bool:
    """Whether a file's name is that of a raw or preprocessed scan, such as `…_FLAIR.nii.gz`.

    >>> _is_scan("sub-1_FLAIR.nii", ["FLAIR"]), _is_scan("sub-1_desc-brain_FLAIR.nii", ["FLAIR"])
    (True, False)
    """
    is_nifti = name.endswith(NIFTI_ENDINGS)
    has_suffix = any(stem(name).endswith(f"_{suffix}") for suffix in suffixes)
    is_other_derivative = re.search(r"_desc-(?!preproc_)", name) is not None
    return is_nifti and has_suffix and not is_other_derivative


def _scan_of_file(path: Path, contrast: Contrast) -> Scan:
    """Return what the name of a file tells about its scan, and whether it is a link in a circle."""
    scan = _named_scan(path, _contrast_of(path, contrast))
    if leads_in_circle(path):
        return replace(scan, fault=f"{path}: {_CIRCLE}")
    return scan


def _contrast_of(path: Path, option: Contrast) -> str | None:
    """Return the contrast that a name or else the option tells; None if neither does.

    Raises:
        UserError: They contradict each other.
    """
    named = _named_contrast(path.name)
    if option == "both" or option == named:
        return named
    if named is not None:
        raise UserError(f"{path}: is a {SUFFIX[named]} by its name; --contrast {option} says otherwise.")
    return option


def _named_contrast(name: str) -> str | None:
    """Return the contrast that a name tells: its BIDS suffix, or the only contrast among its words.

    >>> _named_contrast("sub-1_T1w"), _named_contrast("patient7-flair"), _named_contrast("flair-to-t1")
    ('t1', 'flair', None)
    """
    last = last_part(name)
    if last in SUFFIX.values():
        return _CONTRAST_WORDS[last.lower()]
    words = re.split(r"[^0-9a-z]+", stem(name).lower())
    contrasts = {_CONTRAST_WORDS[word] for word in words if word in _CONTRAST_WORDS}
    return contrasts.pop() if len(contrasts) == 1 else None


def _named_scan(path: Path, contrast: str | None) -> Scan:
    """Return a scan with the labels that its file's name tells; any name will do."""
    parts = stem(path.name).split("_")
    if parts[-1] in SUFFIX.values():
        parts.pop()
    entities = strict_entities(parts)
    if "sub" not in entities or not _KNOWN_ENTITIES.issuperset(entities):
        return Scan(path=path, label=bids_label(_plain_name(path, parts)), contrast=contrast)
    session = None
    if "ses" in entities:
        session = bids_label(entities["ses"])
    return Scan(
        path=path,
        label=bids_label(entities["sub"]),
        session=session,
        entities=tuple(f"{key}-{bids_label(entities[key])}" for key in _KEPT_ENTITIES if key in entities),
        contrast=contrast,
    )


def _plain_name(path: Path, parts: Iterable[str]) -> str:
    """Return the name of a scan that is not named the BIDS way: its folder's if it is called after its contrast."""
    name = "_".join(parts).removeprefix("sub-")
    if name.lower() in {"", *_CONTRAST_WORDS}:
        return Path(os.path.realpath(path)).parent.name
    return name
