"""How domains are spoiled: wrong labels, losses in other units, few samples."""

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
                    fault=NOISE if share >= _MUCH_NOISE else MILD,
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
            spoiled[name] = replace(data, loss_factor=factor, fault=fault)
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
        )
        return spoiled

    def _rotated(self, samples: Labelled) -> Labelled:
        if not self.sideways:
            return samples
        return Labelled(samples.inputs.rot90(dims=(-2, -1)), samples.targets)


def _deal(
    levels: Sequence[float], neutral: float, domains: Mapping[str, DomainData], generator: torch.Generator
) -> list[float]:
    """Return one level for each domain, in random order."""
    dealt = [*levels, *[neutral] * (len(domains) - len(levels))]
    order: Tensor = torch.randperm(len(domains), generator=generator)
    return [dealt[position] for position in order.tolist()]


def _replace_labels(samples: Labelled, share: float, *, classes: int, generator: torch.Generator) -> Labelled:
    count = len(samples.targets)
    rows = torch.randperm(count, generator=generator)[: round(share * count)]
    targets = samples.targets.clone()
    targets[rows] = torch.randint(classes, (len(rows),), generator=generator)
    return Labelled(samples.inputs, targets)
