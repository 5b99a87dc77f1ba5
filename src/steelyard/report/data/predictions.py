"""The lesions that runs find on their test subjects."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import UserError
from steelyard.imaging.datasets.domains import contrast_of
from steelyard.imaging.datasets.prepared import SubjectVolumes, read_volumes
from steelyard.imaging.datasets.subjects import Subject
from steelyard.imaging.networks.inference import lesion_mask, segment
from steelyard.imaging.scans.masks import Box, Mask, box_around
from steelyard.imaging.scans.volumes import canonical
from steelyard.report.data.runs import RunRecord, by_method

_MARGIN_MM = 4.0  # around the brain
_THRESHOLD = 0.5


@dataclass(frozen=True, kw_only=True)
class SubjectPredictions:
    """A subject's scans and masks, and the lesions that some runs find on them.

    Args:
        key: The subject's name.
        volumes: Its scans and masks.
        runs: By method, the run that was tested on it.
        masks: By method and domain, the lesions that the run finds, right-anterior-superior.
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
        """Where the brain is, with a margin within a slice but none of further slices."""
        right, anterior, _ = (round(_MARGIN_MM / edge) for edge in self.spacing)
        return box_around(self.brain, margin=(right, anterior, 0))

    def grey(self, contrast: str) -> NDArray[np.uint8]:
        """Return a scan in 256 greys about the brain; what is not brain is black."""
        voxels = canonical(self.volumes.scans[contrast]).voxels
        low, high = np.percentile(voxels[self.brain], [0.5, 99.7])
        scaled = np.clip((voxels[self.box] - low) / max(float(high - low), 1e-9), 0, 1)
        # Dark tissue stays a little above black, so that the brain has an edge.
        grey: NDArray[np.uint8] = np.where(self.brain[self.box], 16 + 239 * scaled, 0).astype(np.uint8)
        return grey


def predict_on(subject: Subject, runs: Sequence[RunRecord], *, trusted: Collection[str] = ()) -> SubjectPredictions:
    """Let each method's first run that was tested on a subject predict on its scans.

    Args:
        subject: Of the preprocessed dataset.
        runs: Of any methods and folds.
        trusted: Import paths of the user's own networks, from the user: needed, because they are code.
    """
    volumes = read_volumes(subject)
    run_of_method = {}
    for method, tested in by_method(run for run in runs if subject.key in run.subjects).items():
        run_of_method[method] = tested[0]
    masks = {method: _predict(run, subject.key, volumes, trusted) for method, run in run_of_method.items()}
    return SubjectPredictions(key=subject.key, volumes=volumes, runs=run_of_method, masks=masks)


def _predict(run: RunRecord, subject: str, volumes: SubjectVolumes, trusted: Collection[str]) -> dict[str, Mask]:
    """Return the lesions that one run finds, by domain, right-anterior-superior."""
    network = run.network(trusted)
    if run.config is None:
        raise UserError(f"{run.path}: there is no such run, so it cannot predict.")
    masks = {}
    for domain in run.domains_of(subject):
        scan = volumes.scans.get(contrast_of(domain))
        if scan is not None:
            probabilities = segment(network, scan, volumes.brain, frame=run.config.slices.frame)
            masks[domain] = lesion_mask(canonical(probabilities).voxels, _THRESHOLD)
    return masks
