"""Checks of settings and of the cells of a table; a message about a wrong value is short."""

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from steelyard.errors import UserError

LARGEST = 3.4e38
"""The largest number that is read from a file: that of 32-bit floats, so that sums and squares stay finite."""

_LONGEST = 60  # characters of a value in a message


def brief(value: object) -> str:
    """Return a value as a message shows it; a long one is cut.

    >>> brief("9" * 100)[-5:]
    '9999…'
    """
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def did_you_mean(text: str, choices: Iterable[str]) -> str:
    """Return a sentence that names the choice nearest to a text, or nothing if none is near.

    The sentence follows a message that ends with a full stop. The text itself is no advice.

    >>> did_you_mean("STANDARD", ("paper", "standard")), did_you_mean("x", ("paper", "standard"))
    (' Did you mean standard?', '')
    """
    if len(text) > _LONGEST:  # comparing takes time, and a file may hold a text of any length
        return ""
    others = [choice for choice in choices if choice != text]
    nearest = get_close_matches(text, others, n=1)
    if not nearest:
        others_by_folded = {choice.casefold(): choice for choice in others}
        nearest = [others_by_folded[name] for name in get_close_matches(text.casefold(), others_by_folded, n=1)]
    return f" Did you mean {nearest[0]}?" if nearest else ""


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse a value that is not one of some words.

    Raises:
        UserError: It is not; the message names the nearest of them.
    """
    if not isinstance(value, str) or value not in choices:
        advice = did_you_mean(value, choices) if isinstance(value, str) else ""
        raise UserError(f"{name} must be one of {', '.join(choices)}; got {brief(value)}.{advice}")


def check_kind(name: str, value: object, kind: type) -> None:
    """Refuse a value that is not of a type.

    Raises:
        UserError: It is not.
    """
    if not isinstance(value, kind):
        raise UserError(f"{name} must be a {kind.__name__}; got {brief(value)}.")


def check_whole(name: str, value: object, lowest: int, highest: int) -> int:
    """Return a whole number.

    Raises:
        UserError: It is none, or not within the limits.

    >>> check_whole("epochs", 3, 1, 10)
    3
    """
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise UserError(f"{name} must be a whole number within {lowest} to {highest}; got {brief(value)}.")
    return value


def check_number(name: str, value: object, lowest: float, highest: float = LARGEST) -> float:
    """Return a finite number.

    Raises:
        UserError: It is none, or not within the limits.

    >>> check_number("momentum", 0.9, 0, 1)
    0.9
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= highest:
        limits = f"of at least {lowest:g}" if highest == LARGEST else f"within {lowest:g} to {highest:g}"
        raise UserError(f"{name} must be a number {limits}; got {brief(value)}.")
    return value


def is_name(value: object) -> bool:
    """Whether a value is text of 1 to 255 printable characters: it may become a file's name or a label.

    >>> is_name("flair@A"), is_name("")
    (True, False)
    """
    return isinstance(value, str) and value.isprintable() and 1 <= len(value) <= 255


def parse_whole(name: str, text: str) -> int:
    """Return the whole number in a cell of a table.

    Raises:
        UserError: It is none, or has more than nine digits.
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise UserError(f"{name} must be a whole number of at least 0, of at most 9 digits; got {brief(text)}.")
    return int(text)


def parse_number(name: str, text: str) -> float:
    """Return the number in a cell of a table; NaN if it is empty. It may be infinite.

    Raises:
        UserError: It is none, or a finite one beyond `LARGEST`.
    """
    try:
        value = float(text) if text.strip() else math.nan
    except ValueError:
        raise UserError(f"{name} must be a number; got {brief(text)}.") from None
    if math.isfinite(value) and abs(value) > LARGEST:
        raise UserError(f"{name} must be a number of at most {LARGEST:g}; got {brief(text)}.")
    return value
