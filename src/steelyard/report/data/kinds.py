"""What a method's or a metric's name says about it, and the order they are shown in."""

import re

from steelyard.imaging.networks.build import NAMES
from steelyard.imaging.runs.method import Method

BASELINES = ("F50-T50", "equal")
"""The methods that others are held against, if there are any of them: the first that was run."""

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

_INITIALS = {"flair": "F", "t1": "T"}


def is_single(method: str) -> bool:
    """Whether a method trains on one domain alone.

    >>> is_single("t1-only"), is_single("F50-T50")
    (True, False)
    """
    return Method.read(method).is_single


def is_fixed(method: str) -> bool:
    """Whether a method weighs all domains, by weights that are settled before training.

    >>> [is_fixed(name) for name in ("F10-T90", "equal", "fixed-0.2-0.8", "t1-only", "Ours-C-25")]
    [True, True, True, False, False]
    """
    return Method.read(method).is_fixed


def is_learned(method: str) -> bool:
    """Whether a method finds its weights while it trains."""
    return Method.read(method).is_learned


def natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Return a key that sorts numbers within names by value.

    >>> sorted(["a-100", "a-25"], key=natural)
    ['a-25', 'a-100']
    """
    parts = re.findall(r"\d+|\D+", name)
    return tuple((not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts)


def method_order(method: str) -> tuple[int, object]:
    """Return a key that sorts methods as the paper's tables do, and others after them by name.

    >>> sorted(["mine", "Ours-C-25", "equal"], key=method_order)
    ['equal', 'Ours-C-25', 'mine']
    """
    place, kind, _, _ = Method.read(method).order
    return (place, (kind, natural(method)))


def model_order(model: str) -> tuple[int, str]:
    """Return a key that sorts networks as the paper's tables do, and others after them by name.

    >>> sorted(["monai:UNet", "lightweight", "unet"], key=model_order)
    ['unet', 'lightweight', 'monai:UNet']
    """
    return (list(NAMES).index(model) if model in NAMES else len(NAMES), model)


def column_suffixes(domains: tuple[str, ...]) -> dict[str, str]:
    """Return what marks a domain in a column's heading: F and T as in the paper, else the name.

    >>> column_suffixes(("flair", "t1")), column_suffixes(("flair", "t2"))
    ({'flair': 'F', 't1': 'T'}, {'flair': 'flair', 't2': 't2'})
    """
    if set(domains) <= set(_INITIALS):
        return {domain: _INITIALS[domain] for domain in domains}
    return {domain: domain for domain in domains}


def weights_that_tell(domains: tuple[str, ...]) -> tuple[str, ...]:
    """Return the domains whose weights tell all of them: of two, one is enough.

    >>> weights_that_tell(("flair", "t1")), weights_that_tell(("a", "b", "c"))
    (('flair',), ('a', 'b', 'c'))
    """
    return domains[:1] if len(domains) == 2 else domains
