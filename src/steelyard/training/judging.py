"""How scores are judged: bounded, so that no single score counts for more than losing all."""

import torch
from torch import Tensor

from steelyard.measurement import Scores
from steelyard.training.full_precision import FullPrecision


class Judging(FullPrecision):
    """Turns losses into bounded scores J = 1 − exp(−L / L0), where L0 is a domain's loss at its first vote.

    A loss as such rewards steps that soften over-confident outputs on wrong labels; the bounded form does so much less.
    It needs losses that are not negative. A domain whose loss was ever negative is judged by the loss as it is.

    Args:
        domains: the number of domains.
        bounded: whether scores are losses to be bounded; otherwise they are left as they are.
    """

    first_losses: Tensor
    """L0; 0 until a domain's first vote."""
    negative: Tensor
    """For each domain whether its loss was ever negative."""

    def __init__(self, domains: int, *, bounded: bool) -> None:
        super().__init__()
        self.bounded = bounded
        self.register_buffer("first_losses", torch.zeros(domains, dtype=torch.float64))
        self.register_buffer("negative", torch.zeros(domains, dtype=torch.bool))

    def forward(self, scores: Scores) -> Tensor:
        """The judged scores after each step, shaped as `scores.after`."""
        if not self.bounded:
            return scores.after
        self._note(scores)
        scale = self.first_losses.cpu()
        bounded = 1 - torch.exp(-scores.after / scale)
        # First-order scores may lie far outside of the losses' range, so the bounded form is expanded, too.
        slope = torch.exp(-scores.before / scale) / scale
        expanded = 1 - torch.exp(-scores.before / scale) + slope * (scores.after - scores.before)
        judged = torch.where(scores.before.isnan(), bounded, expanded)
        unbounded = self.negative.cpu() | (scale == 0)
        return torch.where(unbounded, scores.after, judged)

    def _note(self, scores: Scores) -> None:
        """Remember each domain's first loss, and which domains have negative losses."""
        levels = scores.losses
        zero_step = scores.after[-1]
        # A domain that is judged and has no step has no loss of its own; its score after the zero step serves.
        levels = torch.where(levels.isnan(), zero_step, levels).to(self.first_losses.device)
        # A first-order score may be below 0 where no loss is, so then only scores before any step tell.
        lowest = torch.where(scores.before.isnan(), scores.after.nan_to_num(nan=torch.inf).amin(0), scores.before)
        self.negative |= (levels < 0) | (lowest.to(levels.device) < 0)
        unseen = (self.first_losses == 0) & (levels > 0)
        self.first_losses[unseen] = levels[unseen]

    def extra_repr(self) -> str:
        """How scores are judged, for `print(balancer)`."""
        if not self.bounded:
            return "as they are"
        if not bool(self.negative.any()):
            return "bounded losses, 1 - exp(-L / L0)"
        return "losses can be negative and are judged as they are: judge= with a bounded score is advised"
