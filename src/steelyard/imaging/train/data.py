"""From a preprocessed dataset to the slices of each domain."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch

from steelyard.errors import UserError
from steelyard.imaging.datasets.bids import read_bids
from steelyard.imaging.datasets.domains import assign_domains, contrast_of
from steelyard.imaging.datasets.subjects import Dataset
from steelyard.imaging.runs.slice_settings import SliceChoice
from steelyard.imaging.runs.split import Split
from steelyard.imaging.train.sampling import DomainSlices
from steelyard.imaging.train.slices import SliceSet, SubjectSlices, load_slices


@dataclass(frozen=True)
class LabelledSlices:
    """The slices of a cohort by domain, and a digest of each subject's.

    Args:
        domains: By name.
        digests: Of the voxels and masks, by subject: they tell whether two runs saw the same data.
    """

    domains: dict[str, DomainSlices]
    digests: dict[str, str]

    @property
    def subjects(self) -> tuple[str, ...]:
        """Everyone with a scan of some domain and a lesion mask."""
        return tuple(self.digests)

    def part(self, split: Split, part: str, domains: Sequence[str]) -> dict[str, DomainSlices]:
        """Return the slices of one part of a split; a domain that none of its subjects has is left out.

        What the split withholds is left out of training.

        Raises:
            UserError: No subject to train on has scans of some domain.
        """
        chosen = {name: self.domains[name].of(_learners(split, part, contrast_of(name))) for name in domains}
        empty = [name for name, slices in chosen.items() if not len(slices)]
        if empty and part == "train":
            raise UserError(f"no subject to train on has both a {empty[0]} scan and a lesion mask.")
        return {name: slices for name, slices in chosen.items() if len(slices)}


def read_prepared(root: Path) -> Dataset:
    """Read a preprocessed dataset for training or evaluation.

    Subjects with names that lead to no file are left out, with a warning.

    Raises:
        UserError: A subject is in doubt, or nobody has a lesion mask.
    """
    dataset = read_bids(root)
    for fault in dataset.faults:
        if not fault.bad_name:
            raise UserError(f"{root}: {fault}.")
        logging.getLogger(__name__).warning("%s; the subject is left out.", fault)
    if all(subject.wmh is None for subject in dataset.subjects):
        raise UserError(
            f"{root}: no subject has a lesion mask (…_label-WMH_mask.nii.gz); there is nothing to learn from."
        )
    return dataset


def load_labelled(
    dataset: Dataset, choice: SliceChoice, *, domains: Sequence[str], cache: Path | None = None
) -> LabelledSlices:
    """Cut the slices of every subject with a lesion mask.

    Raises:
        UserError: A domain has no data, a file is unusable, or slices differ in size.
    """
    belongs = assign_domains(dataset, domains)
    chosen = [one for one in load_slices(dataset, choice, cache=cache) if one.wmh is not None]
    found = {}
    for name in domains:
        members = SliceSet(tuple(one for one in chosen if name in belongs[one.key].values()))
        try:
            images, masks, owners = members.stack(contrast_of(name))
        except UserError as error:
            named = "" if name == contrast_of(name) else f"{name}: "
            raise UserError(f"{dataset.root}: {named}{error}") from error
        found[name] = DomainSlices(torch.from_numpy(images), torch.from_numpy(masks), tuple(owners))
    return LabelledSlices(found, {one.key: _digest(one) for one in chosen if belongs[one.key]})


def _learners(split: Split, part: str, contrast: str) -> tuple[str, ...]:
    names: tuple[str, ...] = getattr(split, part)
    lost = split.withheld.get(contrast, ()) if part == "train" else ()
    return tuple(name for name in names if name not in lost)


def _digest(subject: SubjectSlices) -> str:
    held = sha256()
    for name, image in sorted(subject.images.items()):
        held.update(name.encode() + image.tobytes())
    if subject.wmh is not None:
        held.update(subject.wmh.tobytes())
    return held.hexdigest()[:16]
