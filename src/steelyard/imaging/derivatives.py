"""A folder of BIDS derivatives: made ours, kept from other runs, and what is outdated put out of sight."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from steelyard.errors import UserError
from steelyard.imaging.bids import written_by
from steelyard.imaging.provenance import versions
from steelyard.imaging.workers import Outcome, one_line
from steelyard.imaging.writing import LOCK, locked, reason, write_json, write_text

FIGURES = "figures"
"""Where the pictures lie."""

WITHDRAWN = ".withdrawn"
"""Where outputs go that no longer have a source."""


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
def claim(out: Path, kind: Kind, *, sources: Sequence[Path], links: Mapping[str, Path] | None = None) -> Iterator[None]:
    """Make a folder ours and keep other runs out of it, or refuse to touch somebody else's.

    Args:
        out: The folder.
        kind: What it will hold.
        sources: The folders that are read from.
        links: Datasets that files within refer to, by the name they use.

    Raises:
        UserError: It is an input, a file, another's work, in use by another run, or cannot be written.
    """
    # Unlike resolve(), realpath bears links that lead in a circle.
    if os.path.realpath(out) in [os.path.realpath(source) for source in sources]:
        raise UserError(f"{out}: the output must not be the input.")
    try:
        if out.exists() and not out.is_dir():
            raise UserError(f"{out}: is a file; a folder is needed.")
        if out.is_dir() and any(path.name != LOCK for path in out.iterdir()) and not written_by(out, kind.generator):
            raise UserError(f"{out}: is not empty and was not written by {kind.generator}; nothing was written.")
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: {reason(error)}; nothing was written.") from error
    with locked(out):
        try:
            for unfinished in out.rglob(".*.part"):
                unfinished.unlink()
            _describe(out, kind, links or {})
        except OSError as error:
            raise UserError(f"{out}: {reason(error)}; nothing was written.") from error
        except UserError as error:
            raise UserError(f"{str(error).removesuffix('.')}; nothing was written.") from error
        yield


def _describe(out: Path, kind: Kind, links: Mapping[str, Path]) -> None:
    """Write what a BIDS derivative has at its top."""
    linked = {name: _link(out, path) for name, path in links.items()}
    write_json(
        out / "dataset_description.json",
        {
            "Name": kind.title,
            "BIDSVersion": "1.10.0",
            "DatasetType": "derivative",
            "GeneratedBy": [{"Name": kind.generator, "Version": versions()["steelyard"]}],
        }
        | ({"DatasetLinks": linked} if linked else {}),
    )
    write_text(
        out / ".bidsignore", "".join(f"{line}\n" for line in (FIGURES, f"{FIGURES}/**", "index.html", *kind.ignored))
    )
    write_text(out / "README", kind.readme)


def _link(out: Path, source: Path) -> str:
    """Return where the source lies as seen from the derivatives, or its address if no path leads there."""
    try:
        relative = Path(os.path.relpath(source.resolve(), out.resolve())).as_posix()
        return quote(os.fsencode(relative))
    except ValueError:  # another drive
        return source.resolve().as_uri()


def put_away(outcome: Outcome, out: Path, files: Iterable[Path]) -> Outcome:
    """Put what earlier runs wrote of something that failed out of sight, and say so."""
    try:
        if not withdraw(out, files):
            return outcome
        what = f"its earlier outputs were moved to {out / WITHDRAWN}"
    except UserError as error:
        what = f"its earlier outputs are still there: {str(error).removesuffix('.')}"
    return replace(outcome, message=one_line(f"{outcome.message.removesuffix('.')}; {what}."))


def page_failed(error: UserError | OSError) -> Outcome:
    """Return the outcome of a page that could not be written."""
    why = reason(error) if isinstance(error, OSError) else str(error).removesuffix(".")
    return Outcome("index.html", "failed", f"the page of the cohort could not be written: {why}.")


def withdraw(out: Path, files: Iterable[Path]) -> bool:
    """Move files into a hidden folder, in the order given; tell whether there were any.

    Raises:
        UserError: A file cannot be moved.
    """
    moved = False
    listed = list(files)
    for path in listed:
        target = out / WITHDRAWN / path.relative_to(out)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
            moved = True
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UserError(f"{path}: cannot be withdrawn, {reason(error)}.") from error
    for folder in {path.parent for path in listed if path.parent.name == "anat"}:
        _prune(folder, out)
    return moved


def _prune(folder: Path, out: Path) -> None:
    """Remove folders that are empty now."""
    while folder != out:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def remove(path: Path) -> None:
    """Remove a file that may be gone already.

    Raises:
        UserError: The system refuses.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path}: {reason(error)}.") from error
