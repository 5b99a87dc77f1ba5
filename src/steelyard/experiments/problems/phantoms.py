"""Lesions on slices of simulated heads: FLAIR and T1 are the domains."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from steelyard.errors import UserError
from steelyard.experiments.problems.problem import DomainData, Labelled, Problem, Spoiling
from steelyard.experiments.problems.spoiling import STANDARD_NOISE, Plain, ScaledLosses, ShuffledTargets, SmallDomain
from steelyard.files.atomic import write_bytes
from steelyard.imaging.phantom import scanner_named, simulate

CONTRASTS = ("flair", "t1")
SUBJECTS = 12
_PARTS = (6, 2)  # subjects for training and for validation; the other four are for the test
_COHORT = 4242  # the cohort's seed: the heads are the same in every trial
_SCANNER = "standard-3t"
_SLICES = slice(18, 38)  # the planes through the ventricles, where the lesions are
_WINDOW = (slice(40, 168), slice(48, 208))  # voxels of 1 mm about the white matter
_SHRINK = 2  # voxels become pixels of 2 mm
_WIDTH = 6  # features at the network's first level
_CACHE = f"phantoms-{_COHORT}.pt"


class Slices(NamedTuple):
    """Slices of a cohort: (subjects, contrasts, slices, rows, columns), and masks without the contrasts."""

    images: Tensor
    masks: Tensor


@final
@dataclass(frozen=True)
class Phantoms(Problem):
    """Which pixels of a slice are lesion? The metric is the Dice over all test slices of a contrast.

    Twelve simulated subjects, 20 slices each. Both contrasts of a subject are in the same part.

    Args:
        cache: The folder that keeps the slices, which take two minutes to simulate; `None` keeps nothing.
    """

    cache: Path | None = None
    name: str = "phantoms"
    steps: ClassVar[int] = 300
    batch_size: ClassVar[int] = 4
    learning_rates: ClassVar[Mapping[str, float]] = {"sgd": 0.1, "adamw": 1e-2}

    @property
    def variants(self) -> Mapping[str, Spoiling]:
        """How the problem may be spoiled: wrong masks are those of other slices."""
        return {
            "plain": Plain(),
            "noisy": ShuffledTargets((STANDARD_NOISE,)),
            "random": ShuffledTargets((1.0,)),
            "times-30": ScaledLosses((30.0,)),
            "small": SmallDomain(),
        }

    def draw(self, generator: torch.Generator) -> dict[str, DomainData]:
        """Return the contrasts; the generator divides the subjects."""
        cohort = _cohort(self.cache)
        order = torch.randperm(SUBJECTS, generator=generator)
        train, validation, test = torch.tensor_split(order, (_PARTS[0], sum(_PARTS)))
        domains = {}
        for number, contrast in enumerate(CONTRASTS):
            domains[contrast] = DomainData(
                train=_samples(cohort, train, number),
                validation=_samples(cohort, validation, number),
                test=_samples(cohort, test, number),
            )
        return domains

    def build_model(self) -> nn.Module:
        """Return a small U-Net with instance normalisation."""
        return _SmallUNet(_WIDTH)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy of pixels plus 1 − Dice."""
        return functional.binary_cross_entropy_with_logits(outputs, targets) + self.judge(outputs, targets)

    def judge(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return 1 − Dice of probabilities, over all pixels of a batch."""
        probabilities = outputs.sigmoid()
        return 1 - (2 * (probabilities * targets).sum() + 1) / (probabilities.sum() + targets.sum() + 1)

    def score(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the Dice over all pixels; outputs that are not finite find no lesion."""
        predicted = (outputs > 0).double()
        return float(2 * (predicted * targets).sum() / (predicted.sum() + targets.sum()).clamp(min=1))


class _SmallUNet(nn.Module):
    """Three levels; samples are processed independently."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([_block(1, width), _block(width, 2 * width), _block(2 * width, 4 * width)])
        self.up = nn.ModuleList([_block(6 * width, 2 * width), _block(3 * width, width)])
        self.output = nn.Conv2d(width, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return one logit for each pixel."""
        first = self.down[0](images)
        second = self.down[1](functional.max_pool2d(first, 2))
        lowest = self.down[2](functional.max_pool2d(second, 2))
        features = self.up[0](torch.cat([second, functional.interpolate(lowest, scale_factor=2)], dim=1))
        features = self.up[1](torch.cat([first, functional.interpolate(features, scale_factor=2)], dim=1))
        logits: Tensor = self.output(features)
        return logits


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.InstanceNorm2d(outputs, affine=True), nn.LeakyReLU(0.1)
    )


def _samples(cohort: Slices, subjects: Tensor, contrast: int) -> Labelled:
    """Return the slices of some subjects as images of one channel."""
    images = cohort.images[subjects, contrast].flatten(0, 1)[:, None]
    return Labelled(images, cohort.masks[subjects].flatten(0, 1)[:, None])


@lru_cache(maxsize=1)
def _cohort(cache: Path | None) -> Slices:
    """Return the slices of all subjects, from the cache if it has them.

    Raises:
        UserError: The file in the cache is damaged.
    """
    if cache is None:
        return _simulate_cohort()
    path = cache / _CACHE
    if not path.exists():
        cohort = _simulate_cohort()
        content = io.BytesIO()
        torch.save(tuple(cohort), content)
        write_bytes(path, content.getvalue())
        return cohort
    try:
        return Slices(*torch.load(path, weights_only=True))
    except Exception as error:
        raise UserError(f"{path}: is damaged; remove it, and it is made again.") from error


def _simulate_cohort() -> Slices:
    images, masks = [], []
    for number in range(SUBJECTS):
        subject = simulate(_COHORT, number, scanner_named(_SCANNER))
        contrasts = (torch.tensor(subject.ideal_flair), torch.tensor(subject.ideal_t1w))
        images.append(torch.stack([_shrink(volume) for volume in contrasts]))
        masks.append((_shrink(torch.tensor(subject.wmh, dtype=torch.float32)) >= 0.5).float())
    return Slices(torch.stack(images), torch.stack(masks))


def _shrink(volume: Tensor) -> Tensor:
    """Return the slices of a volume, slices first, in coarser pixels."""
    window = volume[*_WINDOW, _SLICES].permute(2, 0, 1)
    return functional.avg_pool2d(window[:, None], _SHRINK)[:, 0]
