"""The metrics of a table of results, and what its cells may hold."""

from collections.abc import Iterable, Mapping

from steelyard.errors import UserError
from steelyard.files.checks import brief, is_name, parse_number

METRICS = {
    "dsc": "DSC",
    "auc": "AUC",
    "average_precision": "AP",
    "ppv": "PPV",
    "tpr": "TPR",
    "fpr": "FPR",
    "accuracy": "accuracy",
    "brier": "Brier",
    "hd95": "HD95",
    "volume_difference": "volume difference",
    "lesion_recall": "lesion recall",
    "lesion_precision": "lesion precision",
    "lesion_f1": "lesion F1",
}
"""The metrics that a table of results may hold, and their titles."""

LOWER_IS_BETTER = frozenset({"fpr", "brier", "hd95", "volume_difference"})
UNBOUNDED = frozenset({"hd95", "volume_difference"})
"""The metrics that may exceed 1, or be infinite."""

_ROUNDED_ONE = 1 + 1e-5  # a sum of weights in single precision


def check_names(where: str, cells: Mapping[str, str], columns: Iterable[str]) -> None:
    """Check that cells hold names; a table without one of the columns is fine.

    Raises:
        UserError: A cell is empty, too long, or cannot be printed.
    """
    for column in columns:
        if column not in cells:
            continue
        text = cells[column]
        if not text:
            raise UserError(f"{where}: {column} is empty.")
        if not is_name(text):
            raise UserError(f"{where}: {column} must be of at most 255 printable characters; got {brief(text)}.")


def read_metric(where: str, name: str, text: str) -> float:
    """Return the value of a metric; NaN if the cell is empty.

    Raises:
        UserError: It is not a number, or one that the metric cannot have.
    """
    value = parse_number(f"{where}: {name}", text)
    if value < 0 and name in UNBOUNDED:
        raise UserError(f"{where}: {name} must be at least 0; got {brief(text)}.")
    if name not in UNBOUNDED and (value < 0 or value > 1):
        raise UserError(f"{where}: {name} must be within 0 and 1; got {brief(text)}.")
    return value


def read_weight(where: str, name: str, text: str) -> float:
    """Return a domain's weight.

    Raises:
        UserError: It is not a number within 0 and 1.
    """
    value = parse_number(f"{where}: {name}", text)
    if not 0 <= value <= _ROUNDED_ONE:
        raise UserError(f"{where}: {name} must be a number within 0 and 1; got {brief(text)}.")
    return value
