"""Which subjects train, which validate and which test."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from steelyard.errors import UserError
from steelyard.files.checks import brief, is_name

PARTS = ("train", "validate", "test")
"""The parts of a split."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """The subjects for training, validation and test; no subject is in two parts.

    Args:
        train: Those the network learns from.
        validate: Those that decide when to stop and which weights to keep.
        test: Those that nothing is decided by.
        withheld: By contrast, the training subjects whose scans of it are not learned from.
    """

    train: tuple[str, ...]
    validate: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    withheld: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = Counter((*self.train, *self.validate, *self.test))
        for subject in sorted(counts):
            if counts[subject] > 1:
                raise UserError(f"{subject} is on two sides of the split.")
        if not self.train:
            raise UserError("the split leaves no subject to train on.")
        for subjects in self.withheld.values():
            for subject in subjects:
                if subject not in self.train:
                    raise UserError(f"scans of {subject} are withheld, which is no training subject.")

    def as_dict(self) -> dict[str, Any]:
        """Return the split as split.json stores it; `read_split` reads it back."""
        content: dict[str, Any] = {part: list(getattr(self, part)) for part in PARTS}
        if self.withheld:
            content["withheld"] = {contrast: list(subjects) for contrast, subjects in self.withheld.items()}
        return content

    def part_of(self, subject: str) -> str | None:
        """Return `train`, `validate` or `test`; `None` for a subject that is not in the split."""
        for part in PARTS:
            if subject in getattr(self, part):
                return part
        return None


def read_split(content: object) -> Split:
    """Return the split that split.json stores.

    Raises:
        UserError: It stores none.
    """
    if not isinstance(content, dict) or not isinstance(content.get("withheld", {}), dict):
        raise UserError("objects are needed.")
    withheld = {contrast: _read_names(names) for contrast, names in content.get("withheld", {}).items()}
    parts = {part: _read_names(content.get(part)) for part in PARTS}
    return Split(withheld=withheld, **parts)


def _read_names(content: object) -> tuple[str, ...]:
    if not isinstance(content, list) or not all(map(is_name, content)):
        raise UserError(f"subjects must be a list of names; got {brief(content)}.")
    return tuple(content)


def split_subjects(
    subjects: Sequence[str], *, folds: int = 5, fold: int = 0, validate: int | None = None, seed: int = 0
) -> Split:
    """Deal subjects into folds at random; the result depends on the seed and not on the order of the subjects.

    Args:
        subjects: Their names.
        folds: Into how many folds subjects are dealt; with 1, there are no test subjects.
        fold: The test fold, from 0.
        validate: How many of the other subjects validate; default: as many as test.
        seed: Settles who is in which fold.

    >>> split_subjects(["a", "b", "c", "d", "e"], folds=5, fold=1).test == split_subjects(list("edcba"), fold=1).test
    True
    """
    names = sorted(subjects)
    _check_folds(len(names), folds=folds, fold=fold, seed=seed)
    shuffled = _shuffle(names, seed)
    parts = [shuffled[start::folds] for start in range(folds)]
    test: list[str] = []
    if folds > 1:
        test = parts.pop(fold)
    # The folds after the test fold come first, then those before it: the next fold is the first to validate.
    rest: list[str] = []
    for part in (*parts[fold:], *parts[:fold]):
        rest += part
    count = len(test) if validate is None else validate
    if not 0 <= count < len(rest):
        raise UserError(
            f"{count} subjects to validate, of the {len(rest)} that are not for the test, leave none to train on; "
            "give fewer folds or fewer to validate."
        )
    return Split(train=tuple(sorted(rest[count:])), validate=tuple(sorted(rest[:count])), test=tuple(sorted(test)))


def withhold(split: Split, contrast: str, *, keep: int, owners: Sequence[str], seed: int = 0) -> Split:
    """Return the split with a contrast made scarce: only some training subjects, drawn at random, keep their scan.

    Args:
        split: The subjects.
        contrast: Which scans become scarce.
        keep: How many training subjects keep their scan.
        owners: The subjects who have such a scan.
        seed: Settles whose are kept.

    >>> whole = Split(train=("a", "b", "c"))
    >>> len(withhold(whole, "flair", keep=1, owners=("a", "b", "c")).withheld["flair"])
    2
    """
    names = sorted(set(split.train) & set(owners))
    if not 1 <= keep < len(names):
        raise UserError(
            f"{keep} of the training subjects are to keep their {contrast} scan; "
            f"it must be at least 1 and fewer than the {len(names)} that have one."
        )
    lost = sorted(_shuffle(names, seed)[keep:])
    return replace(split, withheld={**split.withheld, contrast: tuple(lost)})


def _check_folds(subjects: int, *, folds: int, fold: int, seed: int) -> None:
    if subjects < 2:
        raise UserError(f"at least 2 subjects are needed to train and test; there are {subjects}.")
    if folds > subjects:
        raise UserError(f"{folds} folds need at least as many subjects with lesion masks; there are {subjects}.")
    if folds < 1 or not 0 <= fold < folds:
        raise UserError(f"fold must lie within 0 to {folds - 1}, of at least 1 fold; got {fold}.")
    if not 0 <= seed < 2**31:
        raise UserError(f"the seed of the split must lie within 0 to {2**31 - 1}; got {seed}.")


def _shuffle(names: Sequence[str], seed: int) -> list[str]:
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed)).tolist()
    return [names[index] for index in order]
