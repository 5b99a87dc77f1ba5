"""Files that a record vouches for: nothing else in a folder of results is ever replaced or deleted.

A record is a JSON file beside results. It lists them with their digests and holds a digest of itself. A file is the
program's own if a record lists it and it is unchanged since. Any other file that is in the way is withdrawn: moved to
a hidden folder, and reported. Before the first of its files gets its name, a record is written under a pending name.
So the files that a killed run leaves are on record, too.
"""

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from steelyard.errors import UserError, reason
from steelyard.files.atomic import discard, is_orphan, is_unfinished, remove, rename, stage, write_bytes
from steelyard.files.destinations import first_link, refuse_links
from steelyard.files.records import read_json, read_object, write_json
from steelyard.files.regular_files import digest

WITHDRAWN = ".withdrawn"
"""The folder of files that have lost their source or were in the way."""

LEDGER = ".written.json"
"""Lists the files about the whole folder, each with the digests of its last two versions."""

# Entries of a record: the program's own part, the digests of the results within it, and the digest of the record.
_OWN, _OUTPUTS, _SEAL = "Steelyard", "Outputs", "RecordSHA256"
_PENDING = ".unfinished"  # ending of a pending record

Pack = Callable[[], bytes]
"""Computes the content of a file when its turn comes, so that only one is in memory."""


def read_sealed(record: Path) -> dict[str, Any] | None:
    """Return the program's own part of a record; None if there is no record or it was changed."""
    try:
        content = read_json(record)
        own: dict[str, Any] = content[_OWN]
        seal = own.pop(_SEAL)
        if seal == _seal(content) and isinstance(own[_OUTPUTS], dict):
            return own
    except (UserError, KeyError, TypeError, AttributeError):
        return None
    return None


def is_intact(out: Path, record: Path) -> bool:
    """Whether a record is as it was written, and so is every file that it lists."""
    files = _listed(out, record)
    return bool(files) and all(_is_unchanged(out, path, {expected}) for path, expected in files.items())


def write_results(out: Path, record: Path, plan: Mapping[Path, Pack], content: Mapping[str, Any]) -> list[Path]:
    """Write results and their record in place of those of an earlier run; return the files that were withdrawn.

    Args:
        out: The folder of results.
        record: The record; it holds a JSON object with the entry `Steelyard`.
        plan: The results.
        content: What the record holds besides.

    Raises:
        UserError: A file cannot be written, or a folder on the way is a link.
    """
    _discard_pending(out, record)
    staged: dict[Path, Path] = {}
    digests: dict[str, str] = {}
    try:
        for path, pack in plan.items():
            packed = pack()
            digests[path.relative_to(out).as_posix()] = sha256(packed).hexdigest()
            staged[path] = stage(path, packed, within=out)
        earlier = _listed(out, record)
        moved = withdraw(out, _foreign(out, record, {*plan, *earlier}))
        pending = _pending(record)
        # Not before everything is staged: a failure until here leaves the earlier results whole. Not after the first
        # rename: a killed run's new files would have no record, and count as somebody else's.
        write_json(pending, _sealed(content, digests), within=out)
        for path, unfinished in staged.items():
            rename(unfinished, path, within=out)
        for path in earlier.keys() - plan.keys():
            remove(path, within=out)
        rename(pending, record, within=out)
    finally:
        for unfinished in staged.values():
            discard(unfinished)
    return moved


def delete_results(out: Path, record: Path) -> list[Path]:
    """Delete a record and its results; return those that were changed and therefore withdrawn."""
    _discard_pending(out, record)
    earlier = _listed(out, record)
    moved = withdraw(out, _foreign(out, record, earlier))
    for path in (*earlier, record):
        remove(path, within=out)
    return moved


def discard_unfinished(out: Path) -> None:
    """Remove everything that killed runs left unfinished.

    Raises:
        UserError: A file cannot be removed.
    """
    for folder, folders, names in os.walk(out):  # links to folders are not followed
        if WITHDRAWN in folders:
            folders.remove(WITHDRAWN)  # what is removed from this list, os.walk does not enter
        for name in names:
            path = Path(folder, name)
            if name.endswith(_PENDING) and is_unfinished(path):
                _discard_pending(out, path.with_name(name.removeprefix(".").removesuffix(_PENDING)))
            elif is_orphan(path):
                remove(path, within=out)


def _discard_pending(out: Path, record: Path) -> None:
    """Delete the results that a killed run had not finished; a file that was changed since stays."""
    pending = _pending(record)
    unfinished = _listed(out, pending)
    if not unfinished:
        return
    # With intact earlier results, the run was killed before it renamed anything.
    if not is_intact(out, record):
        earlier = _listed(out, record)
        for path in {*earlier, *unfinished}:
            if _is_unchanged(out, path, {earlier.get(path), unfinished.get(path)}):
                remove(path, within=out)
        if earlier:
            remove(record, within=out)
    remove(pending, within=out)


def replace_top_file(out: Path, name: str, text: str) -> list[Path]:
    """Write a file about the whole folder anew; return it if somebody changed it, and it was therefore withdrawn."""
    path, packed = out / name, text.encode()
    ledger = _read_ledger(out)
    versions = ledger.get(name, [])
    newest = sha256(packed).hexdigest()
    moved: list[Path] = []
    if path.is_file() and not _is_unchanged(out, path, {*versions, newest}):
        moved = withdraw(out, [path])
    # A new file comes before its entry, so that a start that fails on it leaves no ledger. An earlier file comes after
    # the entry: after a kill, a new version without its entry would be taken for somebody's change.
    is_new = not path.is_file()
    if is_new:
        write_bytes(path, packed)
    if versions[-1:] != [newest]:
        ledger[name] = [*versions[-1:], newest]  # a kill leaves the old file or the new one
        write_json(out / LEDGER, ledger)
    if not is_new:
        write_bytes(path, packed)
    return moved


def withdraw(out: Path, files: Iterable[Path]) -> list[Path]:
    """Move files into a hidden folder, in the given order; return those that existed.

    What was withdrawn before stays: a second file of one name gets a number.

    Raises:
        UserError: A file cannot be moved.
    """
    existing = [path for path in files if path.is_symlink() or path.is_file()]
    for path in existing:
        target = _unused_name(out / WITHDRAWN / path.relative_to(out))
        try:
            refuse_links(target.parent, within=out)
            target.parent.mkdir(parents=True, exist_ok=True)
            rename(path, target, within=out)
        except OSError as error:
            raise UserError(f"{path}: cannot be withdrawn, {reason(error)}.") from error
        except UserError as error:
            raise UserError(f"{path}: cannot be withdrawn, {error}") from error
    return existing


def moved_message(moved: Collection[Path], out: Path) -> str:
    """Say in one line which files were withdrawn; nothing if none was."""
    if not moved:
        return ""
    names = ", ".join(path.name for path in moved)
    return f"{names}: changed by somebody else, moved to {out / WITHDRAWN}."


def _unused_name(target: Path) -> Path:
    """Return a name that nothing has yet: the target's, or that with a number."""
    unused, number = target, 1
    while os.path.lexists(unused):
        number += 1
        unused = target.with_name(f"{target.name}.{number}")
    return unused


def _listed(out: Path, record: Path) -> dict[Path, str]:
    """Return the files that a record lists, all within the folder, and their digests."""
    if first_link(record.parent, out) is not None:
        return {}
    own = read_sealed(record)
    if own is None:
        return {}
    files = {}
    for name, expected in own[_OUTPUTS].items():
        # Somebody may have sealed a record that lists files elsewhere.
        relative = PurePosixPath(name)
        if not relative.is_absolute() and ".." not in relative.parts and "\0" not in name:
            files[out / relative] = str(expected)
    return files


def _foreign(out: Path, record: Path, files: Iterable[Path]) -> list[Path]:
    """Return those of the files, the record included, that the record does not vouch for."""
    listed = _listed(out, record)
    foreign = [path for path in sorted(files) if not _is_unchanged(out, path, {listed.get(path)})]
    if read_sealed(record) is None:
        foreign.append(record)
    return foreign


def _is_unchanged(out: Path, path: Path, digests: Collection[str | None]) -> bool:
    """Whether there is a file with one of these digests, and no link on the way to it."""
    try:
        if first_link(path.parent, out) is not None or path.is_symlink():
            return False
        return digest(path) in digests
    except (OSError, ValueError):
        return False


def _pending(record: Path) -> Path:
    return record.with_name(f".{record.name}{_PENDING}")


def _sealed(content: Mapping[str, Any], digests: Mapping[str, str]) -> dict[str, Any]:
    """Return what a record holds, with the digests of its results and of itself."""
    own = {**content[_OWN], _OUTPUTS: dict(digests)}
    seal = _seal({**content, _OWN: own})
    return {**content, _OWN: {**own, _SEAL: seal}}


def _seal(content: Mapping[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_ledger(out: Path) -> dict[str, list[str]]:
    ledger = {}
    for name, digests in read_object(out / LEDGER).items():
        if isinstance(digests, list):
            ledger[name] = [str(entry) for entry in digests]
    return ledger
