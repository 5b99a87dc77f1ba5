"""How domains are spoiled: wrong labels, losses in other units, few samples."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from steelyard.experiments.problems.problem import DomainData, Labelled, Spoiling

NOISE = "noise"
"""The fault of a domain with so many wrong labels that an audit should tell."""
SCALE = "scale"
"""The fault of a domain with a loss so large or small that an audit should tell."""
MILD = "mild"
"""The fault of a domain that an audit need not notice."""
STANDARD_NOISE = 0.8
"""The share of wrong labels in the noisy domains of most problems."""

_MUCH_NOISE = 0.5  # share of labels that are replaced
_LARGE_FACTOR = 30.0
_FEWEST = 8  # samples that are left of a small domain


@final
@dataclass(frozen=True)
class Plain(Spoiling):
    """Nothing is spoiled."""

    def apply(self, domains: Mapping[str, DomainData], generator: torch.Generator) -> dict[str, DomainData]:
        """Return the domains as they are."""
        del generator
        return dict(domains)


@final
@dataclass(frozen=True)
class NoisyLabels(Spoiling):
    """Labels for training and validation are replaced by random ones, each class with the same probability.

    Args:
        shares: Of the labels that are replaced, for as many domains; the others keep theirs.
    """

    shares: tuple[float, ...]

    def apply(self, domains: Mapping[str, DomainData], generator: torch.Generator) -> dict[str, DomainData]:
        """Return the domains with wrong labels."""
        classes = max(int(data.test.targets.max()) for data in domains.values()) + 1
        spoiled = {}
        for (name, data), share in zip(domains.items(), _deal(self.shares, 0.0, domains, generator), strict=True):
            spoiled[name] = data
            if share > 0:
                spoiled[name] = replace(
                    data,
                    train=_replace_labels(data.train, share, classes=classes, generator=generator),
                    validation=_replace_labels(data.validation, share, classes=classes, generator=generator),
                    right_validation=data.validation,
                    fault=_noise_fault(share),
                    level=share,
                )
        return spoiled


@final
@dataclass(frozen=True)
class ShuffledTargets(Spoiling):
    """Samples for training and validation get each other's targets: for masks, whose pixels are not classes of samples.

    Args:
        shares: Of the samples whose targets are shuffled, for as many domains; the others keep theirs.
    """

    shares: tuple[float, ...]

    def apply(self, domains: Mapping[str, DomainData], generator: torch.Generator) -> dict[str, DomainData]:
        """Return the domains with targets of other samples."""
        spoiled = {}
        for (name, data), share in zip(domains.items(), _deal(self.shares, 0.0, domains, generator), strict=True):
            spoiled[name] = data
            if share > 0:
                spoiled[name] = replace(
                    data,
                    train=_shuffle_targets(data.train, share, generator),
                    validation=_shuffle_targets(data.validation, share, generator),
                    right_validation=data.validation,
                    fault=_noise_fault(share),
                    level=share,
                )
        return spoiled


@final
@dataclass(frozen=True)
class ScaledLosses(Spoiling):
    """Losses in other units.

    Args:
        factors: Of the losses, for as many domains; the others have 1.
    """

    factors: tuple[float, ...]

    def apply(self, domains: Mapping[str, DomainData], generator: torch.Generator) -> dict[str, DomainData]:
        """Return the domains with the factors of their losses."""
        spoiled = {}
        for (name, data), factor in zip(domains.items(), _deal(self.factors, 1.0, domains, generator), strict=True):
            fault = MILD
            if factor == 1:
                fault = ""
            elif not 1 / _LARGE_FACTOR < factor < _LARGE_FACTOR:
                fault = SCALE
            spoiled[name] = replace(data, loss_factor=factor, fault=fault, level=math.log10(factor))
        return spoiled


@final
@dataclass(frozen=True)
class SmallDomain(Spoiling):
    """One domain has few samples to train on.

    Args:
        share: Of the samples that are left, of at least 8.
        sideways: Whether the images of this domain are rotated by 90°, those for the test too: a domain that is small
            and hard beside large and easy ones.
    """

    share: float = 1 / 20
    sideways: bool = False

    def apply(self, domains: Mapping[str, DomainData], generator: torch.Generator) -> dict[str, DomainData]:
        """Return the domains, one of them small."""
        spoiled = dict(domains)
        name = list(domains)[int(torch.randint(len(domains), (), generator=generator))]
        data = domains[name]
        size = max(_FEWEST, round(self.share * len(data.train.targets)))
        rows = torch.randperm(len(data.train.targets), generator=generator)[:size]
        spoiled[name] = DomainData(
            train=self._rotated(data.train.take(rows)),
            validation=self._rotated(data.validation),
            test=self._rotated(data.test),
            fault=MILD,
            level=1.0,
        )
        return spoiled

    def _rotated(self, samples: Labelled) -> Labelled:
        if not self.sideways:
            return samples
        return Labelled(samples.inputs.rot90(dims=(-2, -1)), samples.targets)


def standard_variants(domains: int) -> dict[str, Spoiling]:
    """Return the variants of a problem whose targets are classes.

    Args:
        domains: Their number; labels are noisy in a quarter of them, at least one.
    """
    return {
        "plain": Plain(),
        "noisy": NoisyLabels((STANDARD_NOISE,) * max(1, domains // 4)),
        "random": NoisyLabels((1.0,)),
        "times-30": ScaledLosses((_LARGE_FACTOR,)),
        "small": SmallDomain(),
    }


def _deal(
    levels: Sequence[float], neutral: float, domains: Mapping[str, DomainData], generator: torch.Generator
) -> list[float]:
    """Return one level for each domain, in random order."""
    dealt = [*levels, *[neutral] * (len(domains) - len(levels))]
    order: Tensor = torch.randperm(len(domains), generator=generator)
    return [dealt[position] for position in order.tolist()]


def _noise_fault(share: float) -> str:
    if share >= _MUCH_NOISE:
        return NOISE
    return MILD


def _replace_labels(samples: Labelled, share: float, *, classes: int, generator: torch.Generator) -> Labelled:
    count = len(samples.targets)
    rows = torch.randperm(count, generator=generator)[: round(share * count)]
    targets = samples.targets.clone()
    targets[rows] = torch.randint(classes, (len(rows),), generator=generator)
    return Labelled(samples.inputs, targets)


def _shuffle_targets(samples: Labelled, share: float, generator: torch.Generator) -> Labelled:
    count = len(samples.targets)
    rows = torch.randperm(count, generator=generator)[: round(share * count)]
    targets = samples.targets.clone()
    targets[rows] = samples.targets[rows.roll(1)]  # each takes the target of the one before it, so none keeps its own
    return Labelled(samples.inputs, targets)
