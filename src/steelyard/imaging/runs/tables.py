"""The rows a run writes."""

from collections.abc import Iterator
from statistics import fmean

from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.train.training import EpochRecord


def epoch_row(record: EpochRecord, config: TrainingConfig) -> dict[str, object]:
    """Return one row of epochs.csv."""
    row: dict[str, object] = {"epoch": record.epoch, "learning_rate": record.learning_rate}
    last = record.steps[-1].weights
    for name in config.trained:
        row[f"loss_{name}"] = record.losses.get(name, "")
        row[f"weight_{name}"] = last[name]
    for name in config.domains:
        row[f"validation_{name}"] = record.validation.get(name, "")
    row["validation"] = fmean(record.validation.values()) if record.validation else ""
    row["better"] = int(record.better)
    return row


def step_rows(record: EpochRecord, config: TrainingConfig) -> Iterator[dict[str, object]]:
    """Yield the rows of steps.csv: λ, hypothetical losses and the vote at every step."""
    for step in record.steps:
        row: dict[str, object] = {"epoch": record.epoch, "step": step.step}
        for name in config.trained:
            row[f"loss_{name}"] = step.losses.get(name, "")
            row[f"weight_{name}"] = step.weights[name]
            row[f"hypothetical_{name}"] = step.hypothetical.get(name, "")
        row |= {"vote": step.vote or "", "outcome": step.outcome}
        yield row
