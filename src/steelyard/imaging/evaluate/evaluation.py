"""How well a trained network does, subject by subject and domain by domain."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite, nan
from pathlib import Path
from statistics import fmean
from typing import Any

from numpy.typing import NDArray
from torch import nn

from steelyard.errors import UserError
from steelyard.files.atomic import write_text
from steelyard.files.records import as_csv
from steelyard.imaging.datasets.domains import assign_domains, contrast_of
from steelyard.imaging.datasets.prepared import read_volumes
from steelyard.imaging.datasets.subjects import Dataset, Subject
from steelyard.imaging.evaluate.metrics import VolumeMetrics, VoxelMetrics, volume_metrics, voxel_metrics
from steelyard.imaging.networks.inference import lesion_mask, segment
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.runs.run_folder import METRICS, RunFolder
from steelyard.imaging.scans.volumes import Volume, canonical

SCORES_START = "subject,domain,part,dsc,"
"""The start of every table of scores, by which its file is recognised."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """How well a network did on one scan.

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

    @property
    def metrics(self) -> dict[str, float]:
        """Every metric by name."""
        return asdict(self.slices) | asdict(self.volume)

    def row(self) -> dict[str, object]:
        """Return the score as a row of a table."""
        return {"subject": self.subject, "domain": self.domain, "part": self.part, **self.metrics}


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The subjects to evaluate.

    Args:
        parts: What each subject was to the run: `train`, `validate`, `test`, or `unseen`.
        is_own: Whether the dataset is the one that the run was trained on.
    """

    parts: Mapping[str, str]
    is_own: bool


def select_subjects(run: RunFolder, dataset: Dataset, digests: Mapping[str, str], *, part: str = "test") -> Selection:
    """Select one part of the dataset that a run was trained on, or all subjects of another dataset.

    Subjects are recognised by the digest of their slices, not by their names.

    Args:
        run: A trained run.
        dataset: The preprocessed dataset.
        digests: Of the slices of its subjects, cut as the run does (`train.data.digest_subjects`).
        part: `train`, `validate`, `test` or `all`.

    Raises:
        UserError: The run has no such subjects.
    """
    split = run.split
    names_by_digest = {digest: name for name, digest in run.digests.items()}
    parts = {}
    for subject in dataset.subjects:
        if subject.wmh is not None:
            name_in_run = names_by_digest.get(digests.get(subject.key, ""), "")
            parts[subject.key] = split.part_of(name_in_run) or "unseen"
    if set(parts.values()) == {"unseen"}:
        return Selection(parts=parts, is_own=False)
    if part != "all":
        parts = {name: own_part for name, own_part in parts.items() if own_part == part}
    if not parts:
        raise _no_subjects(run, dataset, part)
    return Selection(parts=parts, is_own=True)


def _no_subjects(run: RunFolder, dataset: Dataset, part: str) -> UserError:
    expected = getattr(run.split, part)
    if not expected:
        return UserError(f"{run.path}: the run has no subjects to {part}; --subjects all takes everyone.")
    return UserError(
        f"{dataset.root}: its scans of {expected[0]}, which {run.path} has to {part}, are not those of the split; "
        "--subjects all takes everyone."
    )


def evaluate(
    network: nn.Module, dataset: Dataset, *, config: TrainingConfig, parts: Mapping[str, str], threshold: float = 0.5
) -> Iterator[Score]:
    """Yield the scores of some subjects, each on its own grid.

    Args:
        network: In evaluation mode.
        dataset: The preprocessed dataset.
        config: Of the run: its slices and frame.
        parts: The subjects to evaluate, and what each was to the run; those without a lesion mask are left out.
        threshold: A voxel is a lesion if its probability is greater.
    """
    domains_by_subject = scan_domains(dataset, config.domains, parts)
    for subject in dataset.subjects:
        domains = domains_by_subject.get(subject.key)
        if domains:
            agreements = _agreements(network, subject, config, domains=domains, threshold=threshold)
            for domain, slices, volume in agreements:
                yield Score(subject=subject.key, domain=domain, part=parts[subject.key], slices=slices, volume=volume)


def scan_domains(dataset: Dataset, domains: Sequence[str], parts: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the domain of each scan to evaluate: by subject, contrast to domain.

    A scan of an unseen subject may belong to none of the run's domains, such as one of a new scanner. Its domain is
    then called by its contrast.
    """
    contrasts = dict.fromkeys(map(contrast_of, domains))
    assigned = assign_domains(dataset, domains, table_needed=False)
    domains_by_subject = {}
    for subject in dataset.subjects:
        if subject.key not in parts or subject.wmh is None:
            continue
        own_domains = dict(assigned[subject.key])
        if parts[subject.key] == "unseen":
            for contrast in contrasts:
                if getattr(subject, contrast, None) is not None:
                    own_domains.setdefault(contrast, contrast)
        served = {contrast: own_domains[contrast] for contrast in contrasts if contrast in own_domains}
        domains_by_subject[subject.key] = served
    return domains_by_subject


def count_scans(config: TrainingConfig, dataset: Dataset, parts: Mapping[str, str]) -> int:
    """Return how many scans there are to evaluate."""
    return sum(len(domains) for domains in scan_domains(dataset, config.domains, parts).values())


def _agreements(
    network: nn.Module, subject: Subject, config: TrainingConfig, *, domains: Mapping[str, str], threshold: float
) -> Iterator[tuple[str, VoxelMetrics, VolumeMetrics]]:
    """Yield the metrics of each scan of a subject, by domain."""
    volumes = read_volumes(subject)
    if volumes.wmh is None:
        return
    truth = canonical(volumes.wmh)
    try:
        indices = config.slices.pick(canonical(volumes.brain).voxels)
    except UserError as error:
        raise UserError(f"{subject.files[0]}: {error}.") from error
    for contrast, domain in domains.items():
        scan = volumes.scans[contrast]
        probabilities = canonical(segment(network, scan, volumes.brain, frame=config.slices.frame))
        predicted = lesion_mask(probabilities.voxels, threshold)
        yield (
            domain,
            voxel_metrics(_planes(probabilities, indices), _planes(truth, indices), threshold=threshold),
            volume_metrics(predicted, truth.voxels, spacing=truth.spacing),
        )


def _planes(volume: Volume, indices: range) -> NDArray[Any]:
    """Return some axial planes; the third axis of a canonical volume goes upwards."""
    planes: NDArray[Any] = volume.voxels[:, :, indices.start : indices.stop]
    return planes


def evaluate_test_subjects(run: RunFolder, dataset: Dataset, *, model: str | None = None) -> None:
    """Write metrics.csv of a run on its own dataset, without checking again that the dataset is its own.

    Raises:
        UserError: No test subject has a scan and a lesion mask.
    """
    parts = dict.fromkeys(run.split.test, "test")
    scores = list(evaluate(run.network(model=model), dataset, config=run.config, parts=parts))
    if not scores:
        raise UserError(f"{dataset.root}: no test subject has a scan and a lesion mask.")
    write_scores(run.path / METRICS, scores)


def write_scores(path: Path, scores: Sequence[Score]) -> None:
    """Write scores as a table, one row per scan."""
    write_text(path, as_csv([score.row() for score in scores]))


def metrics_name(data: Path, *, part: str | None) -> str:
    """Return the name of the table of scores in a run folder; no two datasets or parts share a name.

    Args:
        data: The dataset's folder. Folders often share a name, so a digest of the path is added for other datasets.
        part: The part of the run's own dataset that was evaluated; `None` for another dataset.

    >>> metrics_name(Path("data"), part="test"), metrics_name(Path("data"), part="all")
    ('metrics.csv', 'metrics-all.csv')
    """
    if part == "test":
        return METRICS
    if part is not None:
        return f"metrics-{part}.csv"
    folder = data.resolve()
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
    return f"metrics-{folder.name}-{digest}.csv"


def summarise(scores: Sequence[Score]) -> list[dict[str, object]]:
    """Return the mean of every metric by domain, over the subjects for whom it is defined and finite.

    A subject without lesions has no AUC, for instance, and one without a predicted lesion has no surface distance.
    """
    by_domain: dict[str, list[Score]] = {}
    for score in scores:
        by_domain.setdefault(score.domain, []).append(score)
    rows: list[dict[str, object]] = []
    for domain, domain_scores in by_domain.items():
        row: dict[str, object] = {"domain": domain, "subjects": len(domain_scores)}
        for name in domain_scores[0].metrics:
            values = [score.metrics[name] for score in domain_scores]
            finite = [value for value in values if isfinite(value)]
            row[name] = fmean(finite) if finite else nan
        rows.append(row)
    return rows
