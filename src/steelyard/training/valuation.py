"""From the scores of a vote to what the weighting follows."""

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import nn

from steelyard.measurement import Measurement, Statistic
from steelyard.probing import Finding
from steelyard.training.arguments import checked_importance
from steelyard.training.domain_losses import Judge
from steelyard.training.judging import Judging
from steelyard.training.transfer import Transfer
from steelyard.weighting import Weighting

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
        counts_votes = self.statistic is Statistic.HYPOTHETICAL_LOSSES
        bounded = judge == "bounded" or (judge is None and not counts_votes)
        self.own_judge = None if isinstance(judge, str) else judge
        self.needs_scores = not counts_votes or bounded or importance is not None
        self.judging = Judging(len(domains), bounded=bounded)
        self.transfer = Transfer(checked_importance(importance, domains))

    def measurement(self, finding: Finding) -> Measurement:
        """What the weighting follows."""
        if finding.scores is None or not finding.measurement.is_finite:
            return finding.measurement
        bounded_before = ~self.judging.negative
        judged = self.judging(finding.scores)
        self.transfer.forget(bounded_before & self.judging.negative)  # judged in other units from now on
        worth = self.transfer.observe(judged, finding.scores.gradient_norms)
        if self.statistic is Statistic.WORTH:
            return worth
        if self.statistic is not Statistic.HYPOTHETICAL_LOSSES or not self.needs_scores:
            return finding.measurement
        # Σ_j K ω_j J_ij: with equal importance a plain sum, as in the paper. Over ranks that hold different domains,
        # only scores that were measured after every step are compared.
        comparable = ~judged[:-1][finding.measurement.present].isnan().any(0)
        importance = self.transfer.importance.cpu() * len(self.transfer.importance)
        sums = (judged[:-1] * importance)[:, comparable].sum(1)
        return Measurement(sums, finding.measurement.present)
