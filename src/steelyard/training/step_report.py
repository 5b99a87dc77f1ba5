"""What one call of the balancer did."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from steelyard.measurement import Measurement, Outcome, Update


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The result of one call of the balancer.

    Attributes:
        losses: each present domain's loss, detached and on its device.
        weights: the weights in force.
        outcome: whether the weights were updated, or why not.
        vote: the name of the domain voted for, where there was a vote.
        measured: the value that the weighting followed for each domain that took part, such as its hypothetical loss.
    """

    losses: Mapping[str, Tensor]
    weights: Mapping[str, float]
    outcome: Outcome
    vote: str | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, losses: Mapping[str, Tensor], weights: Mapping[str, float], measurement: Measurement, update: Update
    ) -> "StepReport":
        """A report with the domains' names, which are those of the weights, in their order."""
        domains = tuple(weights)
        return cls(
            losses={name: loss.detach() for name, loss in losses.items()},
            weights=weights,
            outcome=update.outcome,
            vote=None if update.vote is None else domains[update.vote],
            measured={domains[number]: measurement.values[number].tolist() for number in measurement.taking_part},
        )

    @property
    def reason(self) -> str | None:
        """Why the weights were not updated, in words."""
        if self.outcome is Outcome.UPDATED:
            return None
        return str(self.outcome.value)
