"""A folder of BIDS derivatives: made ours, kept from other runs, and what is outdated put out of sight."""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from steelyard.errors import UserError, one_line, reason
from steelyard.files.atomic import is_unfinished
from steelyard.files.destinations import first_link, refuse_links
from steelyard.files.locks import lock_folder
from steelyard.files.ownership import LEDGER, WITHDRAWN, discard_unfinished, moved_message, replace_top_file, withdraw
from steelyard.files.provenance import versions
from steelyard.files.records import as_json
from steelyard.imaging.datasets.bids import written_by
from steelyard.processes.workers import JobResult

FIGURES = "figures"
"""Where the pictures lie."""


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
    """Make a folder ours and keep other runs out of it, or refuse to touch somebody else's.

    Args:
        out: The folder.
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
    if os.path.realpath(out) in {os.path.realpath(source) for source in sources}:
        raise UserError(f"{out}: the output must not be the input.")
    files = [path for path in out.iterdir() if path.name != LEDGER and not is_unfinished(path)]
    if files and not written_by(out, kind.generator):
        raise UserError(f"{out}: is not empty and was not written by {kind.generator}.")
    for name in (FIGURES, WITHDRAWN):
        refuse_links(out / name, within=out)


def _describe(out: Path, kind: Kind, links: Mapping[str, Path]) -> None:
    """Write what a BIDS derivative has at its top."""
    description: dict[str, Any] = {
        "Name": kind.title,
        "BIDSVersion": "1.10.0",
        "DatasetType": "derivative",
        "GeneratedBy": [{"Name": kind.generator, "Version": versions()["steelyard"]}],
    }
    if links:
        description["DatasetLinks"] = {name: _link(out, path) for name, path in links.items()}
    ignored = (FIGURES, f"{FIGURES}/**", "index.html", *kind.ignored)
    write_top(out, "dataset_description.json", as_json(description))
    write_top(out, ".bidsignore", "".join(f"{line}\n" for line in ignored))
    write_top(out, "README", kind.readme)


def write_top(out: Path, name: str, text: str) -> None:
    """Write a file about the whole folder; one that somebody changed is moved out of the way, and told."""
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


def withdraw_outputs(outcome: JobResult, out: Path, files: Iterable[Path]) -> JobResult:
    """Put what earlier runs wrote of something that failed out of sight, and say so."""
    try:
        moved = withdraw(out, files)
        if not moved:
            return outcome
        remark = f"its earlier outputs were moved to {out / WITHDRAWN}"
        for folder in {path.parent for path in moved if path.parent.name == "anat"}:
            _prune(folder, out)
    except UserError as error:
        remark = f"its earlier outputs are still there: {str(error).removesuffix('.')}"
    return replace(outcome, message=one_line(f"{outcome.message.removesuffix('.')}; {remark}."))


def page_failed(error: UserError | OSError) -> JobResult:
    """Return the outcome of a page that could not be written."""
    why = reason(error) if isinstance(error, OSError) else str(error).removesuffix(".")
    return JobResult("index.html", "failed", f"the page of the cohort could not be written: {why}.")


def visits(out: Path) -> list[Path]:
    """Return the folders that hold results of subjects; those behind links are not ours."""
    folders = [*out.glob("sub-*/anat"), *out.glob("sub-*/ses-*/anat")]
    return sorted(folder for folder in folders if first_link(folder, out) is None)


def _prune(folder: Path, out: Path) -> None:
    """Remove folders that are empty now."""
    while folder != out and first_link(folder, out) is None:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
