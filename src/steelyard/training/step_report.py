"""What one call of the balancer did."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from steelyard.measurement import Outcome


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

    @property
    def reason(self) -> str | None:
        """Why the weights were not updated, in words."""
        if self.outcome is Outcome.UPDATED:
            return None
        return str(self.outcome.value)
