"""Right labels, unequally hard: a line, a circle and a chequerboard to be told from points in a plane."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from steelyard.experiments.problems.classification import Classification, accuracy
from steelyard.experiments.problems.problem import DomainData, Labelled, Spoiling
from steelyard.experiments.problems.spoiling import standard_variants

SHAPES = ("line", "circle", "chequers")
_SIZES = (300, 90, 600)  # points of each domain for training, for validation and for the test
_NOISE_FEATURES = 6  # that say nothing, so that wrong labels cost something
_RADIUS = 1.18  # of the circle that half of all points are inside of
_HIDDEN = 32


@final
@dataclass(frozen=True)
class Curves(Classification):
    """Which side of a curve is a point on? Each domain has another curve, and a network must know which domain it is.

    A line is learned at once. A chequerboard of four fields takes long, and until then its loss falls as little as if
    its labels were random. A weighting that takes hard for noisy starves it. The metric is the accuracy.
    """

    name: str = "curves"
    steps: ClassVar[int] = 2000
    batch_size: ClassVar[int] = 16
    learning_rates: ClassVar[Mapping[str, float]] = {"sgd": 0.2, "adamw": 3e-3}
    stackable: ClassVar[bool] = True

    @property
    def variants(self) -> Mapping[str, Spoiling]:
        """How the problem may be spoiled."""
        return standard_variants(len(SHAPES))

    def draw(self, generator: torch.Generator) -> dict[str, DomainData]:
        """Return the domains."""
        domains = {}
        for number, name in enumerate(SHAPES):
            train, validation, test = (_points(number, size, generator) for size in _SIZES)
            domains[name] = DomainData(train=train, validation=validation, test=test)
        return domains

    def build_model(self) -> nn.Module:
        """Return a network with one hidden layer."""
        features = 2 + _NOISE_FEATURES + len(SHAPES)
        return nn.Sequential(nn.Linear(features, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, 2))

    def score(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the accuracy."""
        return accuracy(outputs, targets)


def _points(number: int, size: int, generator: torch.Generator) -> Labelled:
    """Draw points of the domain with this number."""
    points = torch.randn(size, 2 + _NOISE_FEATURES, generator=generator)
    x, y = points[:, 0], points[:, 1]
    sides = (x + y > 0, x.square() + y.square() > _RADIUS**2, x * y > 0)
    domain = torch.zeros(size, len(SHAPES))
    domain[:, number] = 1
    return Labelled(torch.cat([points, domain], dim=1), sides[number].long())
