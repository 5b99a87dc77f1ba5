"""Files that a record vouches for: of what lies in a folder of results, nothing else is ever replaced or deleted.

A record is a JSON file beside results. It lists them with their digests and holds a digest of itself. A file counts as
ours if a record lists it and it is unchanged since; whatever else is in the way is moved to a hidden folder, and told.
A record is written under the name of its unfinished twin before the first of its files gets its name, so that what a
killed run leaves is known, too.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from steelyard.errors import UserError, reason
from steelyard.files.atomic import discard, is_orphan, is_unfinished, remove, rename, stage, write_bytes
from steelyard.files.destinations import first_link, refuse_links
from steelyard.files.records import read_json, read_object, write_json
from steelyard.files.regular_files import digest

WITHDRAWN = ".withdrawn"
"""Where files go that have lost their source or are in the way."""

LEDGER = ".written.json"
"""Lists the files about the whole folder, each with the digests of its last two versions."""

_OWN, _OUTPUTS, _SEAL = "Steelyard", "Outputs", "RecordSHA256"
_TWIN = ".unfinished"

Pack = Callable[[], bytes]
"""Makes the content of a file when its turn comes, so that only one is in memory."""


def read_sealed(record: Path) -> dict[str, Any] | None:
    """Return what a record says of its results, if it is as it was written."""
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
    """Write results and their record in place of those that an earlier run wrote; return what was moved away.

    Args:
        out: The folder of results.
        record: The record; what it holds is a JSON object with the entry `Steelyard`.
        plan: The results.
        content: What the record holds besides.

    Raises:
        UserError: A file cannot be written, or a folder on the way is a link.
    """
    settle(out, record)
    staged: dict[Path, Path] = {}
    digests: dict[str, str] = {}
    try:
        for path, pack in plan.items():
            packed = pack()
            digests[path.relative_to(out).as_posix()] = sha256(packed).hexdigest()
            staged[path] = stage(path, packed, within=out)
        earlier = _listed(out, record)
        moved = withdraw(out, _strangers(out, record, {*plan, *earlier}))
        twin = _twin(record)
        # Not before everything is staged: a failure until here leaves the earlier results whole. Not after the first
        # rename: a killed run's new files would have no record, and count as somebody else's.
        write_json(twin, _sealed(content, digests), within=out)
        for path, unfinished in staged.items():
            rename(unfinished, path, within=out)
        for path in earlier.keys() - plan.keys():
            remove(path, within=out)
        rename(twin, record, within=out)
    finally:
        for unfinished in staged.values():
            discard(unfinished)
    return moved


def delete_results(out: Path, record: Path) -> list[Path]:
    """Delete a record and its results; return what was changed since and therefore moved."""
    settle(out, record)
    earlier = _listed(out, record)
    moved = withdraw(out, _strangers(out, record, earlier))
    for path in (*earlier, record):
        remove(path, within=out)
    return moved


def settle(out: Path, record: Path) -> None:
    """Delete what a killed run left of results that it had not finished; what was changed since stays."""
    twin = _twin(record)
    unfinished = _listed(out, twin)
    if not unfinished:
        return
    if not is_intact(out, record):
        earlier = _listed(out, record)
        for path in {*earlier, *unfinished}:
            if _is_unchanged(out, path, {earlier.get(path), unfinished.get(path)}):
                remove(path, within=out)
        if earlier:
            remove(record, within=out)
    remove(twin, within=out)


def discard_unfinished(out: Path) -> None:
    """Remove everything that killed runs left unfinished.

    Raises:
        UserError: A file cannot be removed.
    """
    for folder, folders, names in os.walk(out):  # links to folders are not followed
        folders[:] = [name for name in folders if name != WITHDRAWN]
        for path in (Path(folder, name) for name in names):
            if path.name.endswith(_TWIN) and is_unfinished(path):
                settle(out, path.with_name(path.name.removeprefix(".").removesuffix(_TWIN)))
            elif is_orphan(path):
                remove(path, within=out)


def replace_top_file(out: Path, name: str, text: str) -> list[Path]:
    """Write a file about the whole folder anew; return it if somebody changed it, and it was therefore moved."""
    path, packed = out / name, text.encode()
    ledger = _read_ledger(out)
    moved: list[Path] = []
    now = sha256(packed).hexdigest()
    if path.is_file() and not _is_unchanged(out, path, {*ledger.get(name, ()), now}):
        moved = withdraw(out, [path])
    # A new file comes before its entry, so that a start that fails on it leaves no ledger. An earlier file comes after
    # the entry: after a kill, a new version without its entry would be taken for somebody's change.
    is_new = not path.is_file()
    if is_new:
        write_bytes(path, packed)
    if ledger.get(name, [])[-1:] != [now]:
        ledger[name] = [*ledger.get(name, [])[-1:], now]  # a kill leaves the old file or the new one
        write_json(out / LEDGER, ledger)
    if not is_new:
        write_bytes(path, packed)
    return moved


def withdraw(out: Path, files: Iterable[Path]) -> list[Path]:
    """Move files into a hidden folder, in the order given, beside what is there already; return those there were.

    Raises:
        UserError: A file cannot be moved.
    """
    listed = [path for path in files if path.is_symlink() or path.is_file()]
    for path in listed:
        target = _free(out / WITHDRAWN / path.relative_to(out))
        try:
            refuse_links(target.parent, within=out)
            target.parent.mkdir(parents=True, exist_ok=True)
            rename(path, target, within=out)
        except OSError as error:
            raise UserError(f"{path}: cannot be withdrawn, {reason(error)}.") from error
        except UserError as error:
            raise UserError(f"{path}: cannot be withdrawn, {error}") from error
    return listed


def moved_message(moved: Iterable[Path], out: Path) -> str:
    """Say in one line what was moved away; nothing if nothing was."""
    names = ", ".join(path.name for path in moved)
    return f"{names}: changed by somebody else, moved to {out / WITHDRAWN}." if names else ""


def _free(target: Path) -> Path:
    """Return a name that nothing has yet: the target's, or that with a number."""
    free, number = target, 1
    while os.path.lexists(free):
        number += 1
        free = target.with_name(f"{target.name}.{number}")
    return free


def _listed(out: Path, record: Path) -> dict[Path, str]:
    """Return the files that a record lists, all within the folder, and their digests."""
    if first_link(record.parent, out) is not None:
        return {}
    own = read_sealed(record) or {_OUTPUTS: {}}
    files = {}
    for name, expected in own[_OUTPUTS].items():
        relative = PurePosixPath(name)
        if not relative.is_absolute() and ".." not in relative.parts and "\0" not in name:
            files[out / relative] = str(expected)
    return files


def _strangers(out: Path, record: Path, files: Iterable[Path]) -> list[Path]:
    """Return those of the files, the record included, that it does not vouch for."""
    listed = _listed(out, record)
    strangers = [path for path in sorted(files) if not _is_unchanged(out, path, {listed.get(path)})]
    if read_sealed(record) is None:
        strangers.append(record)
    return strangers


def _is_unchanged(out: Path, path: Path, digests: Iterable[str | None]) -> bool:
    """Whether a file of ours is there as it was written."""
    try:
        if first_link(path.parent, out) is not None or path.is_symlink() or not path.is_file():
            return False
        return digest(path) in digests
    except (OSError, ValueError):
        return False


def _twin(record: Path) -> Path:
    return record.with_name(f".{record.name}{_TWIN}")


def _sealed(content: Mapping[str, Any], digests: Mapping[str, str]) -> dict[str, Any]:
    """Return what a record holds, with the digests of its results and of itself."""
    own = {**content[_OWN], _OUTPUTS: dict(digests)}
    seal = _seal({**content, _OWN: own})
    return {**content, _OWN: {**own, _SEAL: seal}}


def _seal(content: Mapping[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_ledger(out: Path) -> dict[str, list[str]]:
    content = read_object(out / LEDGER)
    return {name: list(map(str, digests)) for name, digests in content.items() if isinstance(digests, list)}
