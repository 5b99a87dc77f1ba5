"""How well a trained network does, subject by subject and domain by domain."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from statistics import fmean
from typing import Any

from numpy.typing import NDArray
from torch import nn

from steelyard.errors import UserError
from steelyard.imaging.datasets.domains import assign_domains, contrast_of
from steelyard.imaging.datasets.subjects import Dataset, Subject
from steelyard.imaging.evaluate.metrics import VolumeMetrics, VoxelMetrics, volume_metrics, voxel_metrics
from steelyard.imaging.networks.inference import lesion_mask, segment
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.scans.volumes import Volume, canonical
from steelyard.imaging.train.slices import read_volumes


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a network got from one scan.

    Args:
        subject: Whose scan it is.
        domain: Which domain the scan belongs to.
        part: What the subject was to the run: `train`, `validate`, `test`, or `unseen`.
        slices: Agreement over the slices that the run evaluates.
        volume: Agreement over the whole volume.
    """

    subject: str
    domain: str
    part: str
    slices: VoxelMetrics
    volume: VolumeMetrics

    def row(self) -> dict[str, object]:
        """Return the score as a row of a table."""
        named: dict[str, object] = {"subject": self.subject, "domain": self.domain, "part": self.part}
        return named | asdict(self.slices) | asdict(self.volume)


def evaluate(
    network: nn.Module, dataset: Dataset, *, config: TrainingConfig, parts: Mapping[str, str], threshold: float = 0.5
) -> Iterator[Score]:
    """Yield the scores of some subjects, on their own grid.

    Args:
        network: Ready to predict.
        dataset: The preprocessed dataset.
        config: Of the run: its slices and frame.
        parts: The subjects to evaluate, and what each was to the run; those without a lesion mask are left out.
        threshold: A voxel is a lesion if its probability is greater.
    """
    named = domain_names(dataset, config.domains, parts)
    for subject in dataset.subjects:
        if named.get(subject.key):
            for domain, slices, volume in _agreements(
                network, subject, config, domains=named[subject.key], threshold=threshold
            ):
                yield Score(subject=subject.key, domain=domain, part=parts[subject.key], slices=slices, volume=volume)


def domain_names(dataset: Dataset, domains: Sequence[str], parts: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return what to call each scan that is to be judged: by subject, contrast to domain.

    A scan of a subject that the run has not seen may belong to none of its domains, such as one of a new scanner; it is
    then called by its contrast.
    """
    served = tuple(dict.fromkeys(map(contrast_of, domains)))
    belongs = assign_domains(dataset, domains, table_needed=False)
    named = {}
    for subject in dataset.subjects:
        if subject.key in parts and subject.wmh is not None:
            own = belongs[subject.key]
            if parts[subject.key] == "unseen":
                own = {name: own.get(name, name) for name in served if getattr(subject, name, None) is not None}
            named[subject.key] = {name: own[name] for name in served if name in own}
    return named


def _agreements(
    network: nn.Module, subject: Subject, config: TrainingConfig, *, domains: Mapping[str, str], threshold: float
) -> Iterator[tuple[str, VoxelMetrics, VolumeMetrics]]:
    whole = read_volumes(subject)
    if whole.wmh is None:
        return
    truth = canonical(whole.wmh)
    try:
        indices = config.slices.pick(canonical(whole.brain).voxels)
    except UserError as error:
        raise UserError(f"{subject.files[0]}: {error}.") from error
    for contrast, domain in domains.items():
        found = canonical(segment(network, whole.scans[contrast], whole.brain, frame=config.slices.frame))
        yield (
            domain,
            voxel_metrics(_within(found, indices), _within(truth, indices), threshold=threshold),
            volume_metrics(lesion_mask(found.voxels, threshold), truth.voxels, spacing=truth.spacing),
        )


def _within(volume: Volume, indices: range) -> NDArray[Any]:
    planes: NDArray[Any] = volume.voxels[:, :, indices.start : indices.stop]
    return planes


def summarise(scores: Sequence[Score]) -> list[dict[str, object]]:
    """Return the mean of every metric by domain, over the subjects in whom it is defined and finite.

    A subject without lesions has no AUC, for instance, and one in whom nothing was found has no surface distance.
    """
    rows: list[dict[str, object]] = []
    for domain in dict.fromkeys(score.domain for score in scores):
        held = [asdict(one.slices) | asdict(one.volume) for one in scores if one.domain == domain]
        row: dict[str, object] = {"domain": domain, "subjects": len(held)}
        for name in held[0]:
            finite = [values[name] for values in held if isfinite(values[name])]
            row[name] = fmean(finite) if finite else float("nan")
        rows.append(row)
    return rows
