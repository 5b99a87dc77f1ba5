"""The problems by name."""

from collections.abc import Callable
from pathlib import Path

from steelyard.errors import UserError
from steelyard.experiments.problems.digits import Digits
from steelyard.experiments.problems.heart import Heart
from steelyard.experiments.problems.problem import Problem
from steelyard.experiments.problems.reviews import FOUR_KINDS, OTHER_KINDS, Reviews
from steelyard.files.checks import check_choice

EMBEDDED: dict[str, Callable[[], Problem]] = {
    "digits": Digits,
    "digits-norm": lambda: Digits("digits-norm", batch_norm=True),
}
"""Problems whose samples come with scikit-learn."""

FROM_FOLDER: dict[str, Callable[[Path], Problem]] = {
    "reviews-4": lambda data: Reviews("reviews-4", data, FOUR_KINDS),
    "reviews-12": lambda data: Reviews("reviews-12", data, OTHER_KINDS),
    "reviews-16": lambda data: Reviews("reviews-16", data, (*FOUR_KINDS, *OTHER_KINDS)),
    "heart": Heart,
}
"""Problems whose samples are in a folder of data."""

NAMES = (*EMBEDDED, *FROM_FOLDER)


def problem_named(name: str, data: Path | None = None) -> Problem:
    """Return a problem.

    Args:
        name: One of `NAMES`.
        data: The folder of data; problems that come with scikit-learn need none.

    Raises:
        UserError: There is no such problem, or it needs a folder.
    """
    check_choice("problem", name, NAMES)
    if name in EMBEDDED:
        return EMBEDDED[name]()
    if data is None:
        raise UserError(f"the problem {name} needs a folder of data; name it with --data.")
    return FROM_FOLDER[name](data)
