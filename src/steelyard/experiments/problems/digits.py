"""Handwritten digits: three domains that differ by a rotation. The images come with scikit-learn."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, final

import torch
from scipy import ndimage
from sklearn.datasets import load_digits
from torch import Tensor, nn

from steelyard.experiments.problems.classification import Classification, accuracy, split_stratified
from steelyard.experiments.problems.problem import DomainData, Labelled, Spoiling
from steelyard.experiments.problems.spoiling import NoisyLabels, Plain, ScaledLosses, SmallDomain

_ANGLES = {"left": -30.0, "upright": 0.0, "right": 30.0}  # degrees
_SHARES = (0.5, 0.15)  # of a domain's 599 images, for training and for validation
_HIDDEN = 64
_MEAN, _DEVIATION = 5.0, 6.0  # of the grey levels, 0 to 16; centred images need fewer steps


@final
@dataclass(frozen=True)
class Digits(Classification):
    """1,797 images of 8×8 pixels in three equal parts, each rotated by another angle. The metric is the accuracy."""

    name: str = "digits"
    batch_norm: bool = False
    """Whether the network has batch normalisation."""
    steps: ClassVar[int] = 1500
    batch_size: ClassVar[int] = 16
    learning_rates: ClassVar[Mapping[str, float]] = {"sgd": 0.1, "adamw": 2e-3}
    stackable: ClassVar[bool] = True

    @property
    def variants(self) -> Mapping[str, Spoiling]:
        """How the problem may be spoiled."""
        return {
            "plain": Plain(),
            "noisy": NoisyLabels((0.0, 0.4, 0.8)),
            "random": NoisyLabels((1.0,)),
            "scaled": ScaledLosses((1.0, 10.0, 0.1)),
            "times-30": ScaledLosses((30.0,)),
            "small": SmallDomain(sideways=True),
        }

    def draw(self, generator: torch.Generator) -> dict[str, DomainData]:
        """Return the domains; each image belongs to one of them."""
        rotated = _rotated_images()
        parts = torch.randperm(len(rotated["upright"].targets), generator=generator).chunk(len(_ANGLES))
        domains = {}
        for (name, samples), rows in zip(rotated.items(), parts, strict=True):
            domains[name] = split_stratified(samples.take(rows), _SHARES, generator)
        return domains

    def build_model(self) -> nn.Module:
        """Return a network with one hidden layer."""
        layers: list[nn.Module] = [nn.Flatten(), nn.Linear(64, _HIDDEN)]
        if self.batch_norm:
            layers.append(nn.BatchNorm1d(_HIDDEN))
        return nn.Sequential(*layers, nn.ReLU(), nn.Linear(_HIDDEN, 10))

    def score(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the accuracy."""
        return accuracy(outputs, targets)


@lru_cache(maxsize=1)
def _rotated_images() -> dict[str, Labelled]:
    """Return all images at each angle."""
    bunch = load_digits()
    targets = torch.tensor(bunch.target)
    rotated = {}
    for name, angle in _ANGLES.items():
        pixels = ndimage.rotate(bunch.images, angle, axes=(1, 2), reshape=False, order=1)
        rotated[name] = Labelled(torch.tensor((pixels - _MEAN) / _DEVIATION, dtype=torch.float32), targets)
    return rotated
