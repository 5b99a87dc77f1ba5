"""What the cells of our tables may hold."""

from collections.abc import Iterable, Mapping

from steelyard.errors import UserError
from steelyard.files.checks import brief, is_name, parse_number
from steelyard.report.data.kinds import UNBOUNDED


def check_names(where: str, cells: Mapping[str, str], columns: Iterable[str]) -> None:
    """Make sure that cells hold names; a table without one of the columns is fine.

    Raises:
        UserError: One is empty, too long, or cannot be printed.
    """
    for column in columns:
        text = cells.get(column, "unused")
        if not text:
            raise UserError(f"{where}: {column} is empty.")
        if not is_name(text):
            raise UserError(f"{where}: {column} must be of at most 255 printable characters; got {brief(text)}.")


def read_metric(where: str, name: str, text: str) -> float:
    """Return the value of a metric; NaN if the cell is empty.

    Raises:
        UserError: It is no number, or one that the metric cannot have.
    """
    value = parse_number(f"{where}: {name}", text)
    if value < 0 or (value > 1 and name not in UNBOUNDED):
        limits = "at least 0" if name in UNBOUNDED else "within 0 and 1"
        raise UserError(f"{where}: {name} must be {limits}; got {brief(text)}.")
    return value


def read_weight(where: str, name: str, text: str) -> float:
    """Return a domain's weight.

    Raises:
        UserError: It is no number within 0 and 1.
    """
    value = parse_number(f"{where}: {name}", text)
    if not 0 <= value <= _ROUNDED_ONE:
        raise UserError(f"{where}: {name} must be a number within 0 and 1; got {brief(text)}.")
    return value


_ROUNDED_ONE = 1 + 1e-5  # a sum of weights in single precision
