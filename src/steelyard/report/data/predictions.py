"""What runs find on the subjects that they were tested on."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from steelyard.imaging.datasets.domains import contrast_of
from steelyard.imaging.datasets.subjects import Subject
from steelyard.imaging.networks.inference import segment
from steelyard.imaging.scans.volumes import canonical
from steelyard.imaging.train.slices import SubjectVolumes, read_volumes
from steelyard.report.data.runs import RunRecord, by_method

Mask = NDArray[np.bool_]
Box = tuple[slice, slice, slice]

_MARGIN_MM = 4.0  # around the brain
_THRESHOLD = 0.5


@dataclass(frozen=True, kw_only=True)
class SubjectPredictions:
    """A subject's scans and masks, and what some runs find on them.

    Args:
        key: Its name.
        volumes: Its scans and masks.
        runs: By method, the run that was tested on it.
        masks: By method and domain, what that run finds, right-anterior-superior.
    """

    key: str
    volumes: SubjectVolumes
    runs: Mapping[str, RunRecord]
    masks: Mapping[str, Mapping[str, Mask]]

    @cached_property
    def brain(self) -> Mask:
        """The brain, right-anterior-superior."""
        return canonical(self.volumes.brain).voxels.astype(bool)

    @property
    def spacing(self) -> tuple[float, float, float]:
        """The edges of a voxel in mm, right-anterior-superior."""
        return canonical(self.volumes.brain).spacing

    @cached_property
    def box(self) -> Box:
        """Where the brain is."""
        return _span(self.brain, 0, self.spacing), _span(self.brain, 1, self.spacing), _span(self.brain, 2, None)

    def grey(self, contrast: str) -> NDArray[np.uint8]:
        """Return a scan in 256 greys about the brain; what is not brain is black."""
        voxels = canonical(self.volumes.scans[contrast]).voxels
        low, high = np.percentile(voxels[self.brain], [0.5, 99.7])
        scaled = np.clip((voxels[self.box] - low) / max(float(high - low), 1e-9), 0, 1)
        # Dark tissue stays a little above black, so that the brain has an edge.
        grey: NDArray[np.uint8] = np.where(self.brain[self.box], 16 + 239 * scaled, 0).astype(np.uint8)
        return grey


def predict_on(subject: Subject, runs: Sequence[RunRecord], *, trusted: Collection[str] = ()) -> SubjectPredictions:
    """Let each method's first run that was tested on a subject look at its scans.

    Args:
        subject: Of the preprocessed dataset.
        runs: Of any methods and folds.
        trusted: Import paths of networks that are not ours, from the user: needed, because they are code.
    """
    volumes = read_volumes(subject)
    chosen = {method: held[0] for method, held in by_method(run for run in runs if subject.key in run.subjects).items()}
    masks = {}
    for method, run in chosen.items():
        network = run.network(trusted)
        frame = run.config.slices.frame
        masks[method] = {
            domain: canonical(segment(network, scan, volumes.brain, frame=frame)).voxels > _THRESHOLD
            for domain in run.domains_of(subject.key)
            if (scan := volumes.scans.get(contrast_of(domain))) is not None
        }
    return SubjectPredictions(key=subject.key, volumes=volumes, runs=chosen, masks=masks)


def _span(mask: Mask, axis: int, spacing: tuple[float, float, float] | None) -> slice:
    hit = np.flatnonzero(mask.any(axis=tuple({0, 1, 2} - {axis})))
    margin = round(_MARGIN_MM / spacing[axis]) if spacing is not None else 0
    return slice(max(0, int(hit[0]) - margin), min(mask.shape[axis], int(hit[-1]) + margin + 1))
