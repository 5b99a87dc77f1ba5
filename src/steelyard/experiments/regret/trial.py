"""The settings of a trial and its result."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from steelyard.errors import UserError
from steelyard.experiments.regret.methods import SWEEP, check_method
from steelyard.files.checks import brief, check_choice, check_number, check_whole, parse_number

OPTIMIZERS = ("sgd", "adamw")
RATES = (0.333, 1.0, 3.0)
"""The factors of the learning rate among which the best is chosen for equal weights, and for each sweep."""

_MOST = 10**8  # steps, and the largest seed
_LEAST_RATE, _LARGEST_RATE = 1e-3, 1e3


@dataclass(frozen=True, kw_only=True, order=True)
class Trial:
    """The settings of a trial. Trials that differ in method or rate alone have the same samples, network and batches.

    Args:
        problem: Its name.
        variant: How the problem is spoiled, or `plain`.
        optimizer: `sgd` or `adamw`.
        steps: How long the network is trained.
        method: The name of a method.
        seed: Decides everything random.
        rate: The problem's learning rate is multiplied by it.
    """

    problem: str
    variant: str
    optimizer: str
    steps: int
    method: str
    seed: int
    rate: float = 1.0

    def __post_init__(self) -> None:
        """Refuse settings that cannot be.

        Raises:
            UserError: A method, an optimizer or a number is not possible.
        """
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_method(self.method)
        check_whole("steps", self.steps, 1, _MOST)
        check_whole("seed", self.seed, 0, _MOST)
        check_number("rate", self.rate, _LEAST_RATE, _LARGEST_RATE)
        if self.method == SWEEP and self.rate != 1:
            raise UserError(f"a sweep has learning rates of its own; got {SWEEP}@{self.rate:g}.")

    def __str__(self) -> str:
        return f"{self.problem} {self.variant} {self.optimizer} {self.steps} {self.method_at_rate} {self.seed}"

    @property
    def method_at_rate(self) -> str:
        """The method, with the factor of the learning rate if that is not 1: `equal@3`."""
        if self.rate == 1:
            return self.method
        return f"{self.method}@{self.rate:g}"


def parse_method(text: str) -> tuple[str, float]:
    """Return the name of a method and the factor of the learning rate.

    Raises:
        UserError: The factor is not a number.

    >>> parse_method("equal@3")
    ('equal', 3.0)
    """
    name, separator, rate = text.partition("@")
    if not separator:
        return name, 1.0
    if not rate.strip():
        raise UserError(f"method must be like equal or equal@3; got {brief(text)}.")
    return name, parse_number("rate", rate)


class SweepScore(NamedTuple):
    """How one choice of weights and learning rate ended: means over domains.

    Attributes:
        clean_validation: On samples for validation with right labels.
        score: On samples for the test.
    """

    clean_validation: float
    score: float


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """How a trial ended; mappings have the names of domains as keys, except `sweep`.

    Args:
        trial: Its settings.
        score: The mean of `scores`.
        validation: The same on samples for validation, whose labels may be spoiled.
        clean_validation: The same with right labels; NaN in results of earlier versions.
        scores: On samples for the test.
        weights: At the end.
        shares: Of the update, at the end; the weights, where a method does not have shares.
        faults: How domains were spoiled; others are left out.
        flags: What the audit said: the name of a domain and a kind of flag; `None` if there was no audit.
        seconds: How long the training took.
        sweep: Of a sweep, the scores of all members by name. The other fields are then those of the member that is
            best on this seed's clean validation samples.
    """

    trial: Trial
    score: float
    validation: float
    clean_validation: float
    scores: Mapping[str, float]
    weights: Mapping[str, float]
    shares: Mapping[str, float]
    faults: Mapping[str, str]
    flags: tuple[tuple[str, str], ...] | None
    seconds: float
    sweep: Mapping[str, SweepScore] = field(default_factory=dict)
