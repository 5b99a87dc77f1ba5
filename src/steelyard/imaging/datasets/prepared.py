"""Preprocessed datasets: which subjects can be learned from, and the volumes of one subject."""

import logging
from dataclasses import dataclass
from pathlib import Path

from steelyard.errors import UserError
from steelyard.imaging.datasets.bids import read_bids
from steelyard.imaging.datasets.subjects import Dataset, Subject
from steelyard.imaging.scans.background import has_zero_background
from steelyard.imaging.scans.volumes import Volume, read_mask, read_scan

_FIRST = "Run `steelyard preprocess BIDS OUT` first, and name OUT here."  # the advice for raw scans


@dataclass(frozen=True)
class SubjectVolumes:
    """The whole volumes of one preprocessed subject, on one grid.

    Args:
        scans: By contrast, `flair` and `t1`.
        wmh: Lesion mask, if there is one.
        brain: Brain mask.
    """

    scans: dict[str, Volume]
    wmh: Volume | None
    brain: Volume


def read_prepared(root: Path) -> Dataset:
    """Read a preprocessed dataset for training or evaluation.

    Subjects with names that lead to no file are left out, with a warning.

    Raises:
        UserError: A subject is in doubt, or no subject has a lesion mask.
    """
    try:
        dataset = read_bids(root)
    except UserError as error:
        raise UserError(f"{error} {_FIRST}") from error
    for fault in dataset.faults:
        if not fault.bad_name:
            raise UserError(f"{root}: {fault}.")
        logging.getLogger(__name__).warning("%s; the subject is left out.", fault)
    if all(subject.wmh is None for subject in dataset.subjects):
        raise UserError(
            f"{root}: no subject has a lesion mask (…_label-WMH_mask.nii.gz); there is nothing to learn from."
        )
    return dataset


def read_volumes(subject: Subject) -> SubjectVolumes:
    """Read a preprocessed subject.

    Raises:
        UserError: A file is unusable, or scans and masks are on different grids.
    """
    scans = {contrast: read_scan(path) for contrast, path in subject.scan_paths.items()}
    main = next(iter(scans.values()))
    wmh = None
    if subject.wmh is not None:
        wmh = read_mask(subject.wmh, may_be_empty=True)
    if subject.brain is not None:
        brain = read_mask(subject.brain)
    elif has_zero_background(main):
        brain = main.with_voxels(main.voxels != 0)
    else:
        raise UserError(f"{subject.files[0]}: there is no brain mask, and the scan is not stripped. {_FIRST}")
    volumes = [*scans.values(), brain]
    if wmh is not None:
        volumes.append(wmh)
    for volume in volumes:
        if not volume.same_grid(main):
            raise UserError(f"{subject.files[0]}: scans and masks of {subject.key} are not on one grid. {_FIRST}")
    return SubjectVolumes(scans, wmh, brain)
