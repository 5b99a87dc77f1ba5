"""What steps and epochs did: records, the rows of a run's tables, and TensorBoard logs."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from steelyard.errors import UserError
from steelyard.imaging.runs.config import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """What one step did.

    Args:
        step: Its number within the epoch, from 0.
        losses: By domain, before the step.
        weights: By domain, as the step used them.
        hypothetical: Hypothetical losses by domain; empty if none were measured.
        vote: The domain that was voted for, if any.
        outcome: Whether the weights moved, or why not.
    """

    step: int
    losses: Mapping[str, float]
    weights: Mapping[str, float]
    hypothetical: Mapping[str, float]
    vote: str | None
    outcome: str


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """What one epoch did.

    Args:
        epoch: Its number, from 0.
        learning_rate: Of its first step.
        losses: Mean training loss by domain.
        validation: Validation loss by domain, the mean over subjects; empty without validation subjects.
        better: Whether its weights are the best so far.
        steps: One record per step.
        seconds: What the steps took; validation is not included.
    """

    epoch: int
    learning_rate: float
    losses: Mapping[str, float]
    validation: Mapping[str, float]
    better: bool
    steps: tuple[StepRecord, ...]
    seconds: float = field(default=0.0, compare=False)  # the only value that differs between identical runs


def epoch_row(record: EpochRecord, config: TrainingConfig) -> dict[str, object]:
    """Return one row of epochs.csv: losses, the weights at the last step, validation losses."""
    row: dict[str, object] = {"epoch": record.epoch, "learning_rate": record.learning_rate}
    weights = record.steps[-1].weights
    for domain in config.trained:
        row[f"loss_{domain}"] = record.losses.get(domain, "")
        row[f"weight_{domain}"] = weights[domain]
    for domain in config.domains:
        row[f"validation_{domain}"] = record.validation.get(domain, "")
    row["validation"] = fmean(record.validation.values()) if record.validation else ""
    row["better"] = int(record.better)
    return row


def step_rows(record: EpochRecord, config: TrainingConfig) -> Iterator[dict[str, object]]:
    """Yield the rows of steps.csv: losses, weights, hypothetical losses and the vote of every step."""
    for step in record.steps:
        row: dict[str, object] = {"epoch": record.epoch, "step": step.step}
        for domain in config.trained:
            row[f"loss_{domain}"] = step.losses.get(domain, "")
            row[f"weight_{domain}"] = step.weights[domain]
            row[f"hypothetical_{domain}"] = step.hypothetical.get(domain, "")
        row |= {"vote": step.vote or "", "outcome": step.outcome}
        yield row


def log_to_tensorboard(records: Iterable[EpochRecord], folder: Path) -> Iterator[EpochRecord]:
    """Yield the records unchanged, and write each to a TensorBoard log first.

    Raises:
        UserError: TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError("TensorBoard is not installed: pip install 'steelyard[tensorboard]'.") from error
    writer = None
    for record in records:
        first = record.epoch * len(record.steps)  # step of the whole run, from 0; every epoch has as many steps
        if writer is None:
            writer = SummaryWriter(str(folder), purge_step=first)  # drops what a killed run logged after its checkpoint
        for step in record.steps:
            curves = {"loss": step.losses, "weight": step.weights, "hypothetical": step.hypothetical}
            for curve, values in curves.items():
                for domain, value in values.items():
                    writer.add_scalar(f"{curve}/{domain}", value, first + step.step)
        for domain, value in record.validation.items():
            writer.add_scalar(f"validation/{domain}", value, first + len(record.steps) - 1)
        writer.flush()
        yield record
    if writer is not None:
        writer.close()
