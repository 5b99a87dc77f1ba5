"""From the scores of a vote to what the weighting follows."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from steelyard.measurement import Measurement, Statistic
from steelyard.probing import Finding
from steelyard.training.arguments import checked_importance
from steelyard.training.domain_losses import Judge
from steelyard.training.judging import Judging
from steelyard.training.noise import Suspects
from steelyard.training.transfer import Transfer
from steelyard.weighting import Evidence, Weighting

Judges = Literal["bounded", "loss"] | Judge | Mapping[str, Judge] | None


class Valuation(nn.Module):
    """Judges the scores of a vote, enters them into the transfer matrix, and makes the weighting's measurement of them.

    Args:
        domains: the names of the domains.
        weighting: what the measurement is for.
        judge: as `Balancer` has it.
        importance: as `Balancer` has it.

    Attributes:
        own_judge: the user's own judge, or one for each domain; `None` if domains are judged by their losses.
        needs_scores: whether the weighting needs scores at every vote; otherwise some are enough, for the audit.
    """

    def __init__(
        self,
        domains: Sequence[str],
        weighting: Weighting,
        *,
        judge: Judges,
        importance: Mapping[str, float] | None,
    ) -> None:
        super().__init__()
        if isinstance(judge, str) and judge not in ("bounded", "loss"):
            raise ValueError(f"judge must be 'bounded', 'loss' or a function; got {judge!r}.")
        self.statistic = weighting.statistic
        self.noisy_share = weighting.noisy_share if isinstance(weighting, Evidence) else 1.0
        counts_votes = self.statistic is Statistic.HYPOTHETICAL_LOSSES
        bounded = judge == "bounded" or (judge is None and not counts_votes)
        self.own_judge = None if isinstance(judge, str) else judge
        self.needs_scores = not counts_votes or bounded or importance is not None
        self.judging = Judging(len(domains), bounded=bounded)
        self.transfer = Transfer(checked_importance(importance, domains))
        self.suspects = Suspects(len(domains))

    def weights_for(self, shares: Sequence[float]) -> tuple[float, ...]:
        """The weights of the losses for these shares of the update; distrusted domains get part of their own."""
        parts = torch.tensor(shares, dtype=torch.float64)
        remaining_parts = self.suspects.kept_shares(self.noisy_share)
        parts = torch.where(self.distrusted.cpu(), remaining_parts * parts, parts)
        return self.transfer.weights_for((parts / parts.sum()).tolist())

    def measurement(self, finding: Finding, step: int) -> Measurement:
        """What the weighting follows.

        Args:
            finding: of the probe.
            step: the number of training steps so far, this one included.
        """
        if finding.scores is None or not finding.measurement.is_finite:
            return finding.measurement
        bounded_before = ~self.judging.negative
        judged = self.judging(finding.scores)
        self.transfer.forget(bounded_before & self.judging.negative)  # judged in other units from now on
        worth = self.transfer.observe(
            judged, finding.scores.gradient_norms, ignored=self.distrusted, held_out=finding.held_out
        )
        if self.suspects.observe(finding.scores.losses, step, self.transfer):
            self.transfer.keep_early()
        if self.statistic is Statistic.WORTH:
            return _without(worth, self.distrusted.cpu())
        if self.statistic is not Statistic.HYPOTHETICAL_LOSSES or not self.needs_scores:
            return finding.measurement
        # Σ_j K ω_j J_ij: with equal importance a plain sum, as in the paper. Over ranks that hold different domains,
        # only scores that were measured after every step are compared.
        comparable = ~judged[:-1][finding.measurement.present].isnan().any(0)
        importance = self.transfer.importance.cpu() * len(self.transfer.importance)
        sums = (judged[:-1] * importance)[:, comparable].sum(1)
        return Measurement(sums, finding.measurement.present)

    @property
    def distrusted(self) -> Tensor:
        """For each domain whether it takes no part in votes: it is a suspect, and the weighting minds.

        Somebody who matters must be left to judge.
        """
        suspected = self.suspects.suspected
        judges = (self.transfer.importance > 0) & ~suspected
        return suspected & (self.noisy_share < 1) & judges.any()


def _without(measurement: Measurement, domains: Tensor) -> Measurement:
    """A measurement in which some domains count as absent."""
    present = measurement.present & ~domains
    if int(present.sum()) < 2:
        return Measurement.nothing(len(present))
    return Measurement(measurement.values, present)
