"""The problems by name; one of the user's own by its import path."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from steelyard.errors import UserError, one_line
from steelyard.experiments.problems.curves import Curves
from steelyard.experiments.problems.digits import Digits
from steelyard.experiments.problems.heart import Heart
from steelyard.experiments.problems.phantoms import Phantoms
from steelyard.experiments.problems.problem import NO_FOLDERS, Folders, Problem
from steelyard.experiments.problems.reviews import FOUR_KINDS, OTHER_KINDS, Reviews
from steelyard.experiments.problems.wine import Wine
from steelyard.files.checks import check_choice

EMBEDDED: dict[str, Callable[[Folders], Problem]] = {
    "digits": lambda _: Digits(),
    "digits-norm": lambda _: Digits("digits-norm", batch_norm=True),
    "wine": lambda _: Wine(),
    "curves": lambda _: Curves(),
    "phantoms": lambda folders: Phantoms(folders.cache),
}
"""Problems whose samples come with scikit-learn, or are simulated."""

FROM_FOLDER: dict[str, Callable[[Path], Problem]] = {
    "reviews-4": lambda data: Reviews("reviews-4", data, FOUR_KINDS),
    "reviews-12": lambda data: Reviews("reviews-12", data, OTHER_KINDS),
    "reviews-16": lambda data: Reviews("reviews-16", data, (*FOUR_KINDS, *OTHER_KINDS)),
    "heart": Heart,
}
"""Problems whose samples are in a folder of data."""

NAMES = (*EMBEDDED, *FROM_FOLDER)
_BEFORE_CLASS = ":"


def problem_named(name: str, folders: Folders = NO_FOLDERS) -> Problem:
    """Return a problem.

    Args:
        name: One of `NAMES`, or `package.module:Class`: a subclass of `Problem`, which is called without arguments.
        folders: Where files are; most problems that come with the package need none.

    Raises:
        UserError: There is no such problem, or it needs a folder.
    """
    if _BEFORE_CLASS in name:
        return _imported(name)
    check_choice("problem", name, (*NAMES, "package.module:Class"))
    if name in EMBEDDED:
        return EMBEDDED[name](folders)
    if folders.data is None:
        raise UserError(f"the problem {name} needs a folder of data; name it with --data.")
    return FROM_FOLDER[name](folders.data)


def _imported(path: str) -> Problem:
    """Import and call a class of the user's own."""
    module_name, _, name = path.partition(_BEFORE_CLASS)
    try:
        module = import_module(module_name)
    except Exception as error:  # whatever the module raises
        reason = one_line(str(error))
        raise UserError(f"problem {path}: cannot be imported, {reason}; is its folder in PYTHONPATH?") from error
    problem_class = getattr(module, name, None)
    if problem_class is None:
        raise UserError(f"problem {path}: {module_name} has no {name}.")
    try:
        problem = problem_class()
    except Exception as error:
        raise UserError(f"problem {path}: cannot be made, {one_line(str(error))}") from error
    if not isinstance(problem, Problem):
        raise UserError(f"problem {path}: must be a subclass of Problem; got {type(problem).__name__}.")
    for attribute in ("name", "steps", "batch_size", "learning_rates", "variants"):
        if getattr(problem, attribute, None) is None:
            raise UserError(f"problem {path}: must have the attribute {attribute}.")
    if "plain" not in problem.variants:
        raise UserError(f"problem {path}: must have the variant plain; it has {', '.join(problem.variants)}.")
    return problem
