"""Which subjects train, which validate and which test."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from steelyard.errors import UserError
from steelyard.files.checks import brief, is_name

PARTS = ("train", "validate", "test")
"""What a subject may be for."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """Subjects by what they are for; no subject is for two things.

    Args:
        train: Those the network learns from.
        validate: Those that settle when to stop and which weights to keep.
        test: Those that nothing is settled by.
        withheld: By contrast, the training subjects whose scans of it are not learned from.
    """

    train: tuple[str, ...]
    validate: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    withheld: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        everyone = (*self.train, *self.validate, *self.test)
        twice = sorted(name for name, times in Counter(everyone).items() if times > 1)
        if twice:
            raise UserError(f"{twice[0]} is on two sides of the split.")
        if not self.train:
            raise UserError("the split leaves no subject to train on.")
        strangers = sorted({name for names in self.withheld.values() for name in names} - set(self.train))
        if strangers:
            raise UserError(f"scans of {strangers[0]} are withheld, which is no training subject.")

    def as_dict(self) -> dict[str, Any]:
        """Return the split as split.json stores it; `read_split` reads it back."""
        content: dict[str, Any] = {part: list(getattr(self, part)) for part in PARTS}
        if self.withheld:
            content["withheld"] = {contrast: list(names) for contrast, names in self.withheld.items()}
        return content

    def part_of(self, subject: str) -> str | None:
        """Return `train`, `validate` or `test`, or nothing for a stranger."""
        return next((part for part in PARTS if subject in getattr(self, part)), None)


def read_split(content: object) -> Split:
    """Return the split that split.json holds.

    Raises:
        UserError: It holds none.
    """
    if not isinstance(content, dict) or not isinstance(content.get("withheld", {}), dict):
        raise UserError("objects are needed.")
    withheld = {contrast: _names(names) for contrast, names in content.get("withheld", {}).items()}
    parts = {part: _names(content.get(part)) for part in PARTS}
    return Split(withheld=withheld, **parts)


def _names(content: object) -> tuple[str, ...]:
    if not isinstance(content, list) or not all(is_name(name) for name in content):
        raise UserError(f"subjects must be a list of names; got {brief(content)}.")
    return tuple(content)


def split_subjects(
    subjects: Sequence[str], *, folds: int = 5, fold: int = 0, validate: int | None = None, seed: int = 0
) -> Split:
    """Deal subjects into folds at random, the same for the same seed whatever their order.

    Args:
        subjects: Their names.
        folds: How many parts take turns as the test subjects; 1 tests on none.
        fold: Whose turn it is, from 0.
        validate: How many of the others validate; as many as test if not given.
        seed: Settles who is in which fold.

    >>> split_subjects(["a", "b", "c", "d", "e"], folds=5, fold=1).test == split_subjects(list("edcba"), fold=1).test
    True
    """
    names = sorted(subjects)
    if len(names) < 2:
        raise UserError(f"at least 2 subjects are needed to train and test; there are {len(names)}.")
    if folds > len(names):
        raise UserError(f"{folds} folds need at least as many subjects with lesion masks; there are {len(names)}.")
    if folds < 1 or not 0 <= fold < folds:
        raise UserError(f"fold must lie within 0 to {folds - 1}, of at least 1 fold; got {fold}.")
    if not 0 <= seed < 2**31:
        raise UserError(f"the seed of the split must lie within 0 to {2**31 - 1}; got {seed}.")
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed)).tolist()
    parts = [[names[index] for index in order[start::folds]] for start in range(folds)]
    test = parts[fold] if folds > 1 else []
    rest = [name for turn in range(1, folds) for name in parts[(fold + turn) % folds]] if folds > 1 else parts[0]
    wanted = len(test) if validate is None else validate
    if not 0 <= wanted < len(rest):
        raise UserError(
            f"{wanted} subjects to validate, of the {len(rest)} that are not for the test, leave none to train on; "
            "give fewer folds or fewer to validate."
        )
    return Split(train=tuple(sorted(rest[wanted:])), validate=tuple(sorted(rest[:wanted])), test=tuple(sorted(test)))


def withhold(split: Split, contrast: str, *, keep: int, owners: Sequence[str], seed: int = 0) -> Split:
    """Return the split with a contrast's scans of only some training subjects, drawn at random, left to learn from.

    Args:
        split: Who trains.
        contrast: Which scans become scarce.
        keep: How many training subjects' are kept.
        owners: Subjects who have such a scan.
        seed: Settles whose.

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
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed)).tolist()
    lost = tuple(sorted(names[index] for index in order[keep:]))
    return replace(split, withheld={**split.withheld, contrast: lost})
