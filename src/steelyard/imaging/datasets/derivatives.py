"""A folder of BIDS derivatives: locked for one run, described for readers, without outdated outputs."""

import logging
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from steelyard.errors import UserError, one_line, reason
from steelyard.files.atomic import is_unfinished
from steelyard.files.destinations import first_link, refuse_links
from steelyard.files.locks import lock_folder
from steelyard.files.ownership import (
    LEDGER,
    WITHDRAWN,
    discard_unfinished,
    moved_message,
    replace_top_file,
    withdraw,
)
from steelyard.files.records import as_json
from steelyard.imaging.datasets.bids import written_by
from steelyard.imaging.datasets.bids_names import BIDS_VERSION
from steelyard.processes.workers import JobResult

FIGURES = "figures"
"""The folder of the pictures."""

_PACKAGES = ("steelyard", "SimpleITK", "deepbet", "nibabel", "numpy", "scipy", "torch")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a folder of derivatives holds.

    Args:
        generator: The command that writes it.
        title: Its name in one line.
        readme: What a person should know who opens it.
        ignored: Patterns of its files that BIDS does not know.
    """

    generator: str
    title: str
    readme: str
    ignored: Sequence[str] = ()


@contextmanager
def lock_derivatives(
    out: Path, kind: Kind, *, sources: Sequence[Path], links: Mapping[str, Path] | None = None
) -> Iterator[None]:
    """Lock a folder of derivatives for one run, and describe it; refuse to touch somebody else's.

    Args:
        out: The folder; it is created if there is none.
        kind: What it will hold.
        sources: The folders that are read from.
        links: Datasets that files within refer to, by the name they use.

    Raises:
        UserError: It is an input, a file, another's work, in use by another run, or cannot be written.
    """
    with lock_folder(out):
        try:
            _check(out, kind, sources)
            discard_unfinished(out)
            _describe(out, kind, links or {})
        except OSError as error:
            raise UserError(f"{out}: {reason(error)}; nothing was written.") from error
        except UserError as error:
            text = str(error).removesuffix(".").removesuffix("; nothing was written")
            raise UserError(f"{text}; nothing was written.") from error
        yield


def _check(out: Path, kind: Kind, sources: Sequence[Path]) -> None:
    """Refuse a folder that is an input or another's work, or whose parts lie elsewhere."""
    # Unlike resolve(), realpath bears links that lead in a circle.
    if os.path.realpath(out) in map(os.path.realpath, sources):
        raise UserError(f"{out}: the output must not be the input.")
    files = [path for path in out.iterdir() if not _may_lie_in_new_folder(path)]
    if files and not written_by(out, kind.generator):
        raise UserError(f"{out}: is not empty and was not written by {kind.generator}.")
    for name in (FIGURES, WITHDRAWN):
        refuse_links(out / name, within=out)


def _may_lie_in_new_folder(path: Path) -> bool:
    """Whether a run that was killed before it described its folder may have left this."""
    return path.name == LEDGER or is_unfinished(path)


def _describe(out: Path, kind: Kind, links: Mapping[str, Path]) -> None:
    """Write the files that a BIDS derivative has at its top."""
    description: dict[str, Any] = {
        "Name": kind.title,
        "BIDSVersion": BIDS_VERSION,
        "DatasetType": "derivative",
        "GeneratedBy": [{"Name": kind.generator, "Version": version("steelyard")}],
    }
    if links:
        description["DatasetLinks"] = {name: _link(out, path) for name, path in links.items()}
    ignored = (FIGURES, f"{FIGURES}/**", "index.html", *kind.ignored)
    write_top(out, "dataset_description.json", as_json(description))
    write_top(out, ".bidsignore", "\n".join(ignored) + "\n")
    write_top(out, "README", kind.readme)


def write_top(out: Path, name: str, text: str) -> None:
    """Write a file about the whole folder; one that somebody changed is withdrawn, with a warning."""
    moved = replace_top_file(out, name, text)
    if moved:
        logging.getLogger(__name__).warning(moved_message(moved, out))


def _link(out: Path, source: Path) -> str:
    """Return where the source lies as seen from the derivatives, or its address if no path leads there."""
    try:
        relative = Path(os.path.relpath(source.resolve(), out.resolve())).as_posix()
        return quote(os.fsencode(relative))
    except ValueError:  # another drive
        return source.resolve().as_uri()


def versions() -> dict[str, str]:
    """Return the versions of the packages that compute derivatives."""
    packages = {name: version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), **packages}


def withdraw_outputs(result: JobResult, out: Path, files: Iterable[Path]) -> JobResult:
    """Withdraw what earlier runs wrote of something that failed; add that to the message of its result."""
    try:
        moved = withdraw(out, files)
        if not moved:
            return result
        remark = f"its earlier outputs were moved to {out / WITHDRAWN}"
        for folder in {path.parent for path in moved if path.parent.name == "anat"}:
            _remove_empty(folder, out)
    except UserError as error:
        remark = f"its earlier outputs are still there: {str(error).removesuffix('.')}"
    return replace(result, message=one_line(f"{result.message.removesuffix('.')}; {remark}."))


def page_failed(error: UserError | OSError) -> JobResult:
    """Return the result of a page that could not be written."""
    why = reason(error) if isinstance(error, OSError) else str(error).removesuffix(".")
    return JobResult("index.html", "failed", f"the page of the cohort could not be written: {why}.")


def anat_folders(out: Path) -> list[Path]:
    """Return the folders that hold results of subjects; those behind links are somebody else's."""
    folders = [*out.glob("sub-*/anat"), *out.glob("sub-*/ses-*/anat")]
    return sorted(folder for folder in folders if first_link(folder, out) is None)


def _remove_empty(folder: Path, out: Path) -> None:
    """Remove a folder that is empty now, and those above that are empty then."""
    while folder != out and first_link(folder, out) is None:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
