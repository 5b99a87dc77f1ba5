"""Checks of the files that real problems read."""

from collections.abc import Sequence
from pathlib import Path

from steelyard.errors import UserError


def require_file(path: Path) -> None:
    """Refuse to go on without a file.

    Raises:
        UserError: It is missing.
    """
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; the problem needs it.")


def require_two_classes(path: Path, labels: Sequence[int], *, samples: str) -> None:
    """Refuse a file all of whose samples have the same label.

    Args:
        path: The file.
        labels: Of its samples.
        samples: What a message calls them, such as "good and bad reviews".

    Raises:
        UserError: A class is missing.
    """
    if len(set(labels)) != 2:
        raise UserError(f"{path}: there must be {samples}.")
