"""The evaluation of one run on one dataset: check, judge, write the table of scores."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from steelyard.errors import UserError
from steelyard.files.destinations import check_file
from steelyard.imaging.datasets.prepared import read_prepared
from steelyard.imaging.datasets.subjects import Dataset
from steelyard.imaging.evaluate.evaluation import (
    SCORES_START,
    Score,
    count_scans,
    evaluate,
    metrics_name,
    select_subjects,
    write_scores,
)
from steelyard.imaging.networks.accelerator import Accelerator, choose_accelerator
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.runs.run_folder import RunFolder
from steelyard.imaging.train.data import digest_subjects


@dataclass(frozen=True, kw_only=True)
class RunEvaluation:
    """An evaluation that is ready to start.

    Args:
        network: In evaluation mode.
        config: Of its run.
        dataset: The preprocessed dataset.
        parts: The subjects to evaluate, and what each was to the run.
        threshold: A voxel is a lesion if its probability is greater.
        out: The table to write.
    """

    network: nn.Module
    config: TrainingConfig
    dataset: Dataset
    parts: Mapping[str, str]
    threshold: float
    out: Path

    @property
    def scans(self) -> int:
        """The number of scans to judge."""
        return count_scans(self.config, self.dataset, self.parts)

    def run(self) -> Iterator[Score]:
        """Yield the score of each scan; after the last one, write the table.

        Raises:
            UserError: There was no scan to judge.
        """
        scores = []
        for score in evaluate(
            self.network, self.dataset, config=self.config, parts=self.parts, threshold=self.threshold
        ):
            scores.append(score)
            yield score
        if not scores:
            raise UserError(f"{self.dataset.root}: no subject with a lesion mask is left to judge.")
        write_scores(self.out, scores)


@dataclass(frozen=True, kw_only=True)
class Judging:
    """How a network is judged.

    Args:
        part: `train`, `validate`, `test` or `all`; of a dataset that is not the run's own, everyone is judged.
        threshold: A voxel is a lesion if its probability is greater.
        accelerator: What the network runs on.
    """

    part: str = "test"
    threshold: float = 0.5
    accelerator: Accelerator = "auto"


def prepare_evaluation(
    run_folder: Path, data: Path, judging: Judging, *, out: Path | None, model: str | None
) -> RunEvaluation:
    """Check everything that can fail before a scan is judged; write nothing.

    Args:
        run_folder: The run folder of a trained network.
        data: The preprocessed dataset.
        judging: Whose scans are judged, and how.
        out: The table to write; by default one in the run folder, named after the part or the dataset.
        model: The import path of the network's code, from the user, if it is not one of steelyard's networks.

    Raises:
        UserError: The run, the dataset or the table cannot be used.
    """
    if not 0 <= judging.threshold < 1:
        raise UserError(f"threshold must be at least 0 and below 1; got {judging.threshold}.")
    device = choose_accelerator(judging.accelerator)
    if out is not None:
        check_file(out, mark=SCORES_START)
    run = RunFolder(run_folder)
    config = run.config
    network = run.network(model=model).to(device)
    dataset = read_prepared(data)
    digests = digest_subjects(dataset, config.slices, domains=config.domains)
    selection = select_subjects(run, dataset, digests, part=judging.part)
    if out is None:
        own_part = judging.part if selection.is_own else None
        out = run_folder / metrics_name(data, part=own_part)
        check_file(out, mark=SCORES_START)
    return RunEvaluation(
        network=network, config=config, dataset=dataset, parts=selection.parts, threshold=judging.threshold, out=out
    )
