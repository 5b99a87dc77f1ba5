"""What a problem is: samples of several domains, a network, a loss, and how a trained network is scored."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from steelyard.errors import UserError
from steelyard.files.checks import brief, check_choice

SEPARATORS = "=;"
"""Between the entries of a cell of the results."""


class Labelled(NamedTuple):
    """Samples with their labels; the first dimension of both counts samples."""

    inputs: Tensor
    targets: Tensor

    def take(self, rows: Tensor) -> "Labelled":
        """Return the samples at these rows."""
        return Labelled(self.inputs[rows], self.targets[rows])


@dataclass(frozen=True, kw_only=True)
class DomainData:
    """The samples of one domain.

    Args:
        train: What the network learns from.
        validation: For choosing settings; its labels are as good or bad as those of `train`.
        test: For the score; never spoiled.
        right_validation: The samples of `validation` with their right labels; default: `validation` has them.
        loss_factor: The domain's loss is multiplied by it.
        fault: How the domain was spoiled, one word or two; empty if it was not.
        level: How strongly it was spoiled; 0 if it was not. Sweeps list the domains by it, the largest level first.
    """

    train: Labelled
    validation: Labelled
    test: Labelled
    right_validation: Labelled | None = None
    loss_factor: float = 1.0
    fault: str = ""
    level: float = 0.0

    @property
    def clean_validation(self) -> Labelled:
        """The samples for validation with their right labels; sweeps and learning rates are chosen on them."""
        return self.right_validation or self.validation


@dataclass(frozen=True, kw_only=True)
class Folders:
    """Where problems read and keep files.

    Args:
        data: Real data, which are not part of this package.
        cache: For what is simulated once; default: it is simulated again in each process.
    """

    data: Path | None = None
    cache: Path | None = None


NO_FOLDERS = Folders()
"""For problems that read and keep no files."""


class Stream(IntEnum):
    """What random numbers are drawn for. Each purpose has its own stream, whatever the others draw."""

    SPLIT = 0
    SPOILING = 1
    NETWORK = 2
    BATCHES = 3


def stream_seed(seed: int, stream: Stream) -> int:
    """Return the seed of one stream of a trial.

    >>> stream_seed(3, Stream.NETWORK)
    14
    """
    return len(Stream) * seed + stream


def generator_for(seed: int, stream: Stream) -> torch.Generator:
    """Return the random numbers of one stream of a trial."""
    return torch.Generator().manual_seed(stream_seed(seed, stream))


class Spoiling(ABC):
    """Changes the domains of a problem; samples for the test keep their labels and are all kept."""

    @abstractmethod
    def apply(self, domains: Mapping[str, DomainData], generator: torch.Generator) -> dict[str, DomainData]:
        """Return the changed domains; the generator chooses which of them are spoiled."""


class Problem(ABC):
    """A problem with several domains. A subclass is all that a problem of one's own needs.

    Attributes:
        name: As results have it.
        steps: Enough for equal weights to converge.
        batch_size: Samples of each domain in a batch; of a smaller domain, all of them.
        learning_rates: One for each optimizer, by its name.
        variants: By name, how the domains are spoiled; `plain` is there always.
        stackable: Whether copies of the network may be trained at once, which makes sweeps many times faster. It needs
            a sequence of linear layers with ReLU between them, and a loss that `torch.func.vmap` can handle.
    """

    name: str
    steps: ClassVar[int]
    batch_size: ClassVar[int]
    learning_rates: ClassVar[Mapping[str, float]]
    stackable: ClassVar[bool] = False

    @property
    @abstractmethod
    def variants(self) -> Mapping[str, Spoiling]:
        """How the problem may be spoiled, by name of the variant."""

    @abstractmethod
    def draw(self, generator: torch.Generator) -> dict[str, DomainData]:
        """Return the domains as they are; the generator divides the samples.

        Raises:
            UserError: The data are missing or damaged.
        """

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Return a network with random weights from torch's own generator."""

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss that the network is trained with."""

    @abstractmethod
    def judge(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the task's own judgement of outputs, a scalar; lower is better."""

    @abstractmethod
    def score(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the metric of one domain; higher is better."""

    def make(self, seed: int, variant: str = "plain") -> dict[str, DomainData]:
        """Return the domains of one seed; the same division of samples for every variant.

        Args:
            seed: Divides the samples, and chooses which domains are spoiled.
            variant: One of `variants`.

        Raises:
            UserError: There is no such variant, or the data are missing or damaged.
        """
        check_choice(f"variant of {self.name}", variant, tuple(self.variants))
        domains = self.draw(generator_for(seed, Stream.SPLIT))
        for name in domains:
            if set(name) & set(SEPARATORS):
                raise UserError(f"{self.name}: a domain must have a name without {SEPARATORS}; got {brief(name)}.")
        return self.variants[variant].apply(domains, generator_for(seed, Stream.SPOILING))
