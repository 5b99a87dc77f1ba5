"""From a preprocessed dataset to the slices of each domain."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch

from steelyard.errors import UserError
from steelyard.imaging.datasets.domains import assign_domains, contrast_of
from steelyard.imaging.datasets.subjects import Dataset
from steelyard.imaging.runs.slice_settings import SliceChoice
from steelyard.imaging.runs.split import Split
from steelyard.imaging.train.sampling import DomainSlices
from steelyard.imaging.train.slices import SliceSet, SubjectSlices, load_slices


@dataclass(frozen=True)
class LabelledSlices:
    """The slices of a cohort by domain, and a digest of each subject's slices.

    Args:
        domains: The slices by domain.
        digests: Of images and masks, by subject; they show whether two runs saw the same data.
    """

    domains: dict[str, DomainSlices]
    digests: dict[str, str]

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subjects with a scan of some domain and a lesion mask."""
        return tuple(self.digests)

    def part(self, split: Split, part: str, domains: Sequence[str]) -> dict[str, DomainSlices]:
        """Return the slices of one part of a split by domain; a domain without any is left out.

        Scans that the split withholds are left out of training.

        Raises:
            UserError: No training subject has scans of some domain.
        """
        slices_by_domain = {}
        for domain in domains:
            slices = self.domains[domain].of(_subjects(split, part, contrast_of(domain)))
            if len(slices):
                slices_by_domain[domain] = slices
            elif part == "train":
                raise UserError(f"no subject to train on has both a {domain} scan and a lesion mask.")
        return slices_by_domain


def load_labelled(
    dataset: Dataset, choice: SliceChoice, *, domains: Sequence[str], cache: Path | None = None
) -> LabelledSlices:
    """Cut the slices of every subject with a lesion mask.

    Raises:
        UserError: A domain has no data, a file is unusable, or slices differ in size.
    """
    assigned = assign_domains(dataset, domains)
    labelled = [subject for subject in load_slices(dataset, choice, cache=cache) if subject.wmh is not None]
    slices_by_domain = {}
    for domain in domains:
        members = SliceSet(tuple(subject for subject in labelled if domain in assigned[subject.key].values()))
        try:
            images, masks, owners = members.stack(contrast_of(domain))
        except UserError as error:
            label = "" if domain == contrast_of(domain) else f"{domain}: "
            raise UserError(f"{dataset.root}: {label}{error}") from error
        slices_by_domain[domain] = DomainSlices(torch.from_numpy(images), torch.from_numpy(masks), tuple(owners))
    digests = {subject.key: _digest(subject) for subject in labelled if assigned[subject.key]}
    return LabelledSlices(slices_by_domain, digests)


def digest_subjects(dataset: Dataset, choice: SliceChoice, *, domains: Sequence[str]) -> dict[str, str]:
    """Return the digest of each subject with a scan of the domains' contrasts, whatever its scanner.

    Raises:
        UserError: No subject has such a scan and a lesion mask, or a file is unusable.
    """
    contrasts = []
    for contrast in dict.fromkeys(map(contrast_of, domains)):
        if any(contrast in subject.scan_paths and subject.wmh for subject in dataset.subjects):
            contrasts.append(contrast)
    return load_labelled(dataset, choice, domains=contrasts).digests


def _subjects(split: Split, part: str, contrast: str) -> tuple[str, ...]:
    """Return the subjects of a part; for training, without those whose scans of the contrast are withheld."""
    subjects: tuple[str, ...] = getattr(split, part)
    if part != "train":
        return subjects
    withheld = split.withheld.get(contrast, ())
    return tuple(subject for subject in subjects if subject not in withheld)


def _digest(subject: SubjectSlices) -> str:
    digest = sha256()
    for contrast, image in sorted(subject.images.items()):
        digest.update(contrast.encode() + image.tobytes())
    if subject.wmh is not None:
        digest.update(subject.wmh.tobytes())
    return digest.hexdigest()[:16]
