"""Wines at three laboratories that measure differently. The wines come with scikit-learn."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, final

import torch
from sklearn.datasets import load_wine
from torch import Tensor, nn

from steelyard.experiments.problems.classification import Classification, accuracy, split_stratified
from steelyard.experiments.problems.problem import DomainData, Labelled, Spoiling
from steelyard.experiments.problems.spoiling import standard_variants

LABORATORIES = ("reference", "uncalibrated", "sparse")
_MEASUREMENTS, _CULTIVARS = 13, 3
_SHARES = (0.5, 0.15)  # of a laboratory's 59 or 60 wines, for training and for validation
_HIDDEN = 16
# The laboratories' own faults do not depend on the seed of a trial.
_LABORATORY_SEED = 0
_LARGEST_OFFSET = 1.5  # standard deviations of a measurement
_MEASURED = slice(0, _MEASUREMENTS, 2)  # the sparse laboratory makes every second of the measurements
_BLUR = 0.5  # s.d. of the sparse laboratory's errors, in standard deviations of a measurement


@final
@dataclass(frozen=True)
class Wine(Classification):
    """Which of three cultivars is a wine from? 178 wines in three equal parts, each of them seen by one laboratory.

    Measurements have mean 0 and deviation 1 over all wines. `reference` reports them as they are. `uncalibrated` has a
    gain of 0.5 to 2, of either sign, and an offset for each measurement. `sparse` makes seven of the thirteen, with
    errors; the others are 0. The metric is the accuracy.
    """

    name: str = "wine"
    steps: ClassVar[int] = 600
    batch_size: ClassVar[int] = 16
    learning_rates: ClassVar[Mapping[str, float]] = {"sgd": 0.1, "adamw": 3e-3}
    stackable: ClassVar[bool] = True

    @property
    def variants(self) -> Mapping[str, Spoiling]:
        """How the problem may be spoiled."""
        return standard_variants(len(LABORATORIES))

    def draw(self, generator: torch.Generator) -> dict[str, DomainData]:
        """Return the laboratories; each wine belongs to one of them."""
        measured = _measured_wines()
        parts = torch.randperm(len(measured["reference"].targets), generator=generator).chunk(len(LABORATORIES))
        domains = {}
        for (name, wines), rows in zip(measured.items(), parts, strict=True):
            domains[name] = split_stratified(wines.take(rows), _SHARES, generator)
        return domains

    def build_model(self) -> nn.Module:
        """Return a network with one hidden layer."""
        return nn.Sequential(nn.Linear(_MEASUREMENTS, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, _CULTIVARS))

    def score(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the accuracy."""
        return accuracy(outputs, targets)


@lru_cache(maxsize=1)
def _measured_wines() -> dict[str, Labelled]:
    """Return all wines as each laboratory sees them."""
    bunch = load_wine()
    targets = torch.tensor(bunch.target)
    measurements = torch.tensor(bunch.data)
    measurements = ((measurements - measurements.mean(0)) / measurements.std(0)).float()
    generator = torch.Generator().manual_seed(_LABORATORY_SEED)
    gains = 2 ** (2 * torch.rand(_MEASUREMENTS, generator=generator) - 1)
    signs = 2 * torch.randint(2, (_MEASUREMENTS,), generator=generator) - 1
    offsets = _LARGEST_OFFSET * (2 * torch.rand(_MEASUREMENTS, generator=generator) - 1)
    sparse = torch.zeros_like(measurements)
    sparse[:, _MEASURED] = measurements[:, _MEASURED]
    sparse[:, _MEASURED] += _BLUR * torch.randn(sparse[:, _MEASURED].shape, generator=generator)
    views = (measurements, signs * gains * measurements + offsets, sparse)
    return {name: Labelled(view, targets) for name, view in zip(LABORATORIES, views, strict=True)}
