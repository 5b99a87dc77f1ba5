"""JSON and CSV files: the one place that reads them, checked, because anybody may have written or changed them.

Whatever a file holds, its reader gets plain values of bounded depth and size, or one line that names the file.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steelyard.errors import UserError
from steelyard.files.atomic import write_text
from steelyard.files.checks import brief
from steelyard.files.regular_files import NotAFileError, open_regular

Cells = dict[str, str]

_LARGEST_JSON = 64_000_000  # bytes; what steelyard writes is a thousandth of that
_DEEPEST = 50  # objects within objects; more than this would exhaust the stack of whoever walks through it
_LARGEST_INTEGER = 2**63


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        UserError: There is none, in one line that names the file.
    """
    try:
        with open_regular(path) as stream:
            if path.stat().st_size > _LARGEST_JSON:
                raise UserError(f"{path}: is larger than {_LARGEST_JSON // 1_000_000} MB; this is not a record.")
            content = parse_json(stream.read().decode())
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file.") from None
    except NotAFileError:
        raise UserError(f"{path}: is not a file.") from None
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as JSON.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: a JSON object is needed.")
    return content


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object that is useful but not needed; an empty one where it cannot be read."""
    try:
        return read_json(path)
    except UserError:
        return {}


def parse_json(text: str) -> Any:
    """Return the content of a JSON text.

    Raises:
        ValueError: It is no JSON, is nested too deeply, or holds an integer or text that cannot be handled.

    >>> parse_json('{"epochs": 3}')
    {'epochs': 3}
    """
    try:
        content = json.loads(text, parse_int=_parse_integer)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    _check_content(content, depth=0)
    return content


def _parse_integer(text: str) -> int:
    number = int(text)
    if abs(number) >= _LARGEST_INTEGER:
        raise ValueError("an integer of more than 64 bits")
    return number


def _check_content(content: object, *, depth: int) -> None:
    """Refuse what would exhaust the stack, and half characters (lone surrogates), which no file or page can hold."""
    if depth > _DEEPEST:
        raise ValueError("nested too deeply")
    if isinstance(content, str):
        content.encode()
    elif isinstance(content, list):
        for item in content:
            _check_content(item, depth=depth + 1)
    elif isinstance(content, dict):
        for name, item in content.items():
            name.encode()
            _check_content(item, depth=depth + 1)


def read_header(path: Path) -> list[str]:
    """Return the names of a table's columns.

    Raises:
        UserError: The file cannot be read.
    """
    with _opened(path, ",") as reader:
        return list(reader.fieldnames or ())


def read_rows(path: Path, columns: Iterable[str] = ()) -> Iterator[tuple[str, Cells]]:
    """Yield the rows of a CSV file, each with its position, `FILE, line n`; one at a time, as some tables are long.

    Args:
        path: The file.
        columns: Those that it must have.

    Raises:
        UserError: It cannot be read, lacks a column, or a row has too few or too many cells.
    """
    with _opened(path, ",") as reader:
        header = list(reader.fieldnames or ())
        for name in columns:
            if header.count(name) != 1:
                names = brief(", ".join(header)) if header else "none"
                raise UserError(f"{path}: must have one column {name!r}; it has {names}.")
        for cells in reader:
            position = f"{path}, line {reader.line_num}"
            # DictReader puts surplus cells under None, and None into missing ones.
            if None in cells or None in cells.values():
                raise UserError(f"{position}: must have {len(header)} cells.")
            yield position, cells


def read_loose_rows(path: Path, *, delimiter: str = ",") -> list[Cells]:
    """Return the rows of a table whose rows may be of unequal length: cells that are missing are empty.

    Raises:
        UserError: It cannot be read.
    """
    rows = []
    with _opened(path, delimiter) as reader:
        for cells in reader:
            cells.pop(None, None)  # DictReader puts surplus cells under None
            rows.append({name: text or "" for name, text in cells.items()})
    return rows


@contextmanager
def _opened(path: Path, delimiter: str) -> "Iterator[csv.DictReader[str]]":
    """Open a table; a fault while it is read becomes one line."""
    try:
        with (
            open_regular(path) as file,
            # A spreadsheet may begin its file with a byte-order mark, which `utf-8-sig` leaves out.
            io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as stream,
        ):
            yield csv.DictReader(_without_nul(stream), delimiter=delimiter)
    except UserError:
        raise
    except NotAFileError:
        raise UserError(f"{path}: is not a file.") from None
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read as CSV.") from error


def _without_nul(lines: Iterable[str]) -> Iterator[str]:
    """Pass lines on, up to one that is binary."""
    for line in lines:
        if "\0" in line:
            raise ValueError("a NUL character")
        yield line


def as_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows of one kind as a table."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(content: Mapping[str, Any]) -> str:
    """Return a JSON object, indented, keys in the order given."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def write_json(path: Path, content: Mapping[str, Any], *, within: Path | None = None) -> None:
    """Write a JSON file."""
    write_text(path, as_json(content), within=within)
