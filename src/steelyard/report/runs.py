"""What run directories say."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean, stdev

from steelyard.errors import UserError
from steelyard.imaging.segmentation.config import TrainingConfig
from steelyard.imaging.segmentation.run import EPOCHS, METRICS, STEPS, RunDirectory

Row = dict[str, str]


@dataclass(frozen=True)
class RunRecord:
    """One run, read.

    Args:
        path: Its folder.
        config: What it is.
        epochs: The rows of epochs.csv.
        steps: The rows of steps.csv.
        metrics: The rows of metrics.csv; none if the run was not evaluated.
    """

    path: Path
    config: TrainingConfig
    epochs: list[Row]
    steps: list[Row]
    metrics: list[Row]

    @property
    def method(self) -> str:
        """How the run weighed its domains."""
        return self.config.method

    def scores(self, domain: str, metric: str = "dsc") -> list[float]:
        """Return a metric of every test subject, in one domain."""
        return [float(row[metric]) for row in self.metrics if row["domain"] == domain and row["part"] == "test"]

    def weights(self, domain: str) -> list[float]:
        """Return a domain's weight after every step; none for a domain that was not trained on."""
        return [float(row[f"weight_{domain}"]) for row in self.steps if f"weight_{domain}" in row]

    def validation(self, domain: str) -> list[float]:
        """Return a domain's validation loss after every epoch."""
        return [float(row[f"validation_{domain}"]) for row in self.epochs if row.get(f"validation_{domain}")]


def read_run(path: Path) -> RunRecord:
    """Read a run directory.

    Raises:
        UserError: It is none, or a file in it is damaged.
    """
    config = RunDirectory(path).config
    record = RunRecord(path, config, *(_rows(path / name) for name in (EPOCHS, STEPS, METRICS)))
    try:
        for domain in config.domains:
            _ = record.scores(domain), record.weights(domain), record.validation(domain)
    except (KeyError, ValueError) as error:
        raise UserError(f"{path}: its tables are damaged ({error}).") from error
    return record


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and s.d. over the subjects in whom a metric is defined; NaN where there are too few.

    >>> mean_and_spread([0.5, 0.7])[0]
    0.6
    """
    finite = [value for value in values if isfinite(value)]
    mean = fmean(finite) if finite else float("nan")
    return mean, stdev(finite) if len(finite) > 1 else float("nan")


def _rows(path: Path) -> list[Row]:
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            return list(csv.DictReader(stream))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read as CSV.") from error
