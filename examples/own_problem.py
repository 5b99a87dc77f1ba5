"""A problem of one's own for `steelyard regret`: three cameras see the same two kinds of points, each from elsewhere.

For how to run it see docs/regret.md, "A problem of your own".
"""

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from steelyard.experiments.problems.classification import Classification, accuracy, split_stratified
from steelyard.experiments.problems.problem import DomainData, Labelled, Spoiling
from steelyard.experiments.problems.spoiling import standard_variants

SHIFTS = {"left": -0.5, "middle": 0.0, "right": 0.5}
POINTS = 200  # that each camera sees


@final
class Cameras(Classification):
    """Which side of a wave is a point on?

    `Classification` brings loss and judge. Other problems derive from `Problem` and bring their own.
    """

    name = "cameras"
    steps: ClassVar[int] = 200
    batch_size: ClassVar[int] = 16
    learning_rates: ClassVar[Mapping[str, float]] = {"sgd": 0.1, "adamw": 0.01}
    stackable: ClassVar[bool] = True

    @property
    def variants(self) -> Mapping[str, Spoiling]:
        """Plain, and spoiled in the usual ways."""
        return standard_variants(len(SHIFTS))

    def draw(self, generator: torch.Generator) -> dict[str, DomainData]:
        """Draw points, and divide each camera's into parts for training, validation and test."""
        domains = {}
        for name, shift in SHIFTS.items():
            points = torch.randn(POINTS, 2, generator=generator)
            targets = (points[:, 1] > torch.sin(2 * points[:, 0])).long()
            seen = Labelled(points + torch.tensor([shift, 0.0]), targets)
            domains[name] = split_stratified(seen, (0.5, 0.2), generator)
        return domains

    def build_model(self) -> nn.Module:
        """Return a network with one hidden layer."""
        return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))

    def score(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the accuracy."""
        return accuracy(outputs, targets)
