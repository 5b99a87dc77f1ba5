"""What was measured so far: how a step for one domain changes the scores of the others, and the sizes of gradients."""

from collections.abc import Sequence

import torch
from torch import Tensor

from steelyard.measurement import Measurement
from steelyard.training.full_precision import FullPrecision

_SPREAD_RATE = 0.05  # by which the spreads of scores follow a new vote
_NORM_RATE = 0.01  # by which the sizes of gradients do
_OUTLIER = 3.0  # a ratio of gradients' sizes to their median above this, or below its inverse, is an outlier's
_SHOWN = 2.0  # standard errors of the mean
_FEWEST_VOTES = 10  # before a standard error says anything
_LARGEST_RATIO = 1000.0  # of gradients' sizes to their median that is still made up for


class Transfer(FullPrecision):
    """The transfer matrix T_ij = J_j(θ + Δ_i) − J_j(θ + Δ_0), accumulated over votes.

    Entry (i, j) says how a step Δ_i for domain i changes the judged score J_j of domain j; negative values help. Δ_0 is
    the optimizer's step for a gradient of zero, so that what is common to all steps does not count as help.

    Args:
        importance: how much each domain matters, ω; not negative, sum 1.

    Attributes:
        mean: K × K, the mean of T over the votes so far; NaN where nothing was measured.
        standard_error: of the mean; NaN for fewer than two votes.
        count: the number of votes.
    """

    importance: Tensor
    moments: Tensor
    """Count, mean and sum of squared deviations of T; in two more columns what is given to others and all."""
    early_moments: Tensor
    """The same at the end of the early phase; zeros before."""
    square_norms: Tensor
    """The running mean of ‖g_d‖², the sum of the factors in it, and its largest value so far; for each domain."""
    spreads: Tensor
    """Running mean over votes of the variance of T over steps, and the sum of the factors in it; for each column."""

    def __init__(self, importance: Sequence[float]) -> None:
        super().__init__()
        domains = len(importance)
        # Not in checkpoints: a setting of the balancer.
        self.register_buffer("importance", torch.tensor(importance, dtype=torch.float64), persistent=False)
        self.register_buffer("moments", torch.zeros(3, domains, domains + 2, dtype=torch.float64))
        self.register_buffer("early_moments", torch.zeros_like(self.moments))
        self.register_buffer("square_norms", torch.zeros(3, domains, dtype=torch.float64))
        self.register_buffer("spreads", torch.zeros(2, domains, dtype=torch.float64))

    @property
    def mean(self) -> Tensor:
        """The mean of T over the votes; NaN where nothing was measured."""
        return _mean(self.moments)[:, :-2]

    @property
    def standard_error(self) -> Tensor:
        """The standard error of the mean, if votes were independent; NaN for fewer than two."""
        return _standard_error(self.moments)[:, :-2]

    @property
    def count(self) -> Tensor:
        """The number of votes in which each entry was measured."""
        return self.moments[0][:, :-2].long()

    @property
    def given(self) -> Tensor:
        """The mean of what a step for each domain does to the others, Σ_{j≠i} ω_j T_ij."""
        return _mean(self.moments)[:, -2]

    @property
    def steps_harm(self) -> bool:
        """Whether the steps of most domains are shown to harm the others.

        Then the steps are at fault, not a domain: batch normalisation that saw one domain alone, or samples that were
        memorised. Which domain harms least says nothing about its worth.
        """
        enough = self.moments[0][:, -2] >= _FEWEST_VOTES
        harmful_domains = enough & (self.given > _SHOWN * _standard_error(self.moments)[:, -2])
        return 2 * int(harmful_domains.sum()) > len(self.importance)

    @property
    def own_in_errors(self) -> Tensor:
        """What a step for each domain does to itself, on other samples: the mean so far, in standard errors."""
        return _in_errors(self.moments)[:, :-2].diagonal()

    @property
    def early(self) -> Tensor:
        """What a step for each domain does to the others and to all: two rows of means in standard errors.

        It is what was measured in the early phase, or so far if that has not ended.
        """
        early = self.early_moments if bool(self.early_moments[0].any()) else self.moments
        return _in_errors(early)[:, -2:].T

    def keep_early(self) -> None:
        """Keep what was measured so far as `early`: the early phase has ended."""
        self.early_moments.copy_(self.moments)

    @property
    def gradient_norms(self) -> Tensor:
        """The running root mean square of ‖g_d‖; NaN for a domain without any vote."""
        means, factors, _ = self.square_norms
        return torch.where(factors > 0, (means / factors).sqrt(), torch.nan)

    @property
    def gradient_scale(self) -> Tensor:
        """n_d, the size of each domain's gradients relative to the median; 1 where it is unknown.

        It is the larger of two ratios: of the running sizes, and of the largest running sizes so far. Gradients that
        stay large while others' become small, as on noisy labels, count. Gradients that became small say that a domain
        is learned, not that its loss is in other units, and do not count.
        """
        return torch.maximum(_to_median(self.gradient_norms), self.loss_scale)

    @property
    def _gradient_peaks(self) -> Tensor:
        """The largest running root mean square of ‖g_d‖ so far; NaN for a domain without any vote."""
        _, factors, largest = self.square_norms
        return torch.where(factors > 0, largest.sqrt(), torch.nan)

    @property
    def loss_scale(self) -> Tensor:
        """The ratio of the peaks of gradients to their median: the units of a loss, whether it is learned or not."""
        return _to_median(self._gradient_peaks)

    def weights_for(self, shares: Sequence[float]) -> tuple[float, ...]:
        """The weights of the losses that give each domain its share of the update.

        They sum to 1 unless the gradients of a domain are an outlier, which must not change the size of the whole step.
        """
        parts = torch.tensor(shares, dtype=torch.float64)
        scale = self.gradient_scale.cpu()
        total = (parts / scale.clamp(1 / _OUTLIER, _OUTLIER)).sum()
        return tuple((parts / scale / total).tolist())

    def shares_of(self, weights: Sequence[float]) -> tuple[float, ...]:
        """The share of the update that each domain has with these weights; the weights' own until sizes are known."""
        parts = torch.tensor(weights, dtype=torch.float64)
        sizes = self.gradient_norms.cpu()
        if bool(sizes.isfinite().all()) and bool((sizes > 0).any()):
            parts = parts * sizes
        return tuple((parts / parts.sum()).tolist())

    def observe(
        self, judged: Tensor, gradient_norms: Tensor, *, ignored: Tensor | None = None, held_out: bool = False
    ) -> Measurement:
        """Take in one vote; return what a step for each domain was worth to all in it.

        With rows divided by the gradients' scale, H_i = Σ_j ω_j T_ij / s_j. s_j² is the running mean over votes of the
        variance of column j, so that no domain counts for more because its scores vary more. T_ii is left out where its
        mean is above 0: samples that were memorised look as if their domain harmed itself.

        Args:
            judged: the judged scores after each step, and after the zero step in the last row; NaN where unknown.
            gradient_norms: of each domain's meta-train gradient; NaN where unknown.
            ignored: for each domain whether its scores count for nothing; default none.
            held_out: whether held-out samples judged; they were not memorised, so T_ii counts always.

        Nothing is measured where fewer than two domains had a step, or where the steps of most domains harm the others.
        """
        transfer = (judged[:-1] - judged[-1]).to(self.importance.device)
        self._count_norms(gradient_norms.to(self.importance.device))
        self._count_transfer(transfer)
        scaled = transfer / self.gradient_scale[:, None]
        stepped = ~scaled.isnan().all(1)
        if int(stepped.sum()) < 2 or self.steps_harm:
            return Measurement.nothing(len(self.importance))
        spread = self._count_spread(scaled[stepped])
        usable = (self.importance > 0) & (spread > 0) & ~scaled[stepped].isnan().any(0)
        if ignored is not None:
            usable &= ~ignored
        worth = torch.zeros_like(self.importance)
        parts = scaled * self.importance / torch.where(usable, spread, 1.0)
        parts[:, ~usable] = 0
        if not held_out:
            parts.diagonal()[self.mean.diagonal() > 0] = 0
        worth[stepped] = parts[stepped].sum(1)
        return Measurement(worth.cpu(), stepped.cpu())

    def forget(self, columns: Tensor) -> None:
        """Start anew for the scores of some domains, and for what is given to others, of which they are a part."""
        if bool(columns.any()):
            self.moments[:, :, :-2][:, :, columns] = 0
            self.moments[:, :, -2:] = 0
            self.spreads[:, columns] = 0

    def _count_norms(self, gradient_norms: Tensor) -> None:
        means, factors, largest = self.square_norms
        follow(means, factors, gradient_norms.square(), rate=_NORM_RATE)
        torch.maximum(largest, means / factors.clamp(min=1e-12), out=largest)

    def _count_transfer(self, transfer: Tensor) -> None:
        """Welford's running mean and sum of squared deviations."""
        weighted = torch.where(self.importance > 0, transfer * self.importance, 0.0)
        to_all = weighted.nansum(1, keepdim=True)
        to_others = weighted.clone().fill_diagonal_(0.0).nansum(1, keepdim=True)
        values = torch.cat([transfer, to_others, to_all], dim=1)
        values[transfer.isnan().all(1), -2:] = torch.nan
        measured = values.isfinite()
        count, mean, squares = self.moments
        count += measured
        difference = torch.where(measured, values - mean, 0.0)
        mean += difference / count.clamp(min=1)
        squares += torch.where(measured, difference * (values - mean), 0.0)

    def _count_spread(self, scaled: Tensor) -> Tensor:
        """s_j for each column, this vote included."""
        means, factors = self.spreads
        follow(means, factors, (scaled - scaled.mean(0)).square().mean(0), rate=_SPREAD_RATE)
        spreads: Tensor = (means / factors.clamp(min=1e-12)).sqrt()
        return spreads


def follow(means: Tensor, factors: Tensor, values: Tensor, *, rate: float) -> None:
    """Let running means follow new values, in place; values that are not finite change nothing.

    A mean starts at 0, and is to be divided by the sum of the factors that its values have in it.
    """
    measured = values.isfinite()
    means += torch.where(measured, rate * (values - means), 0.0)
    factors += torch.where(measured, rate * (1 - factors), 0.0)


def _to_median(sizes: Tensor) -> Tensor:
    """Sizes relative to their median, within limits; 1 where one is unknown or 0.

    Of two in the middle their geometric mean is the median, because nothing says which of them is the usual one.
    """
    logarithms = torch.where(sizes > 0, sizes.log(), torch.nan)
    ratios = (logarithms - logarithms.nanquantile(0.5)).exp()
    return ratios.nan_to_num(nan=1.0).clamp(1 / _LARGEST_RATIO, _LARGEST_RATIO)


def _mean(moments: Tensor) -> Tensor:
    count, mean, _ = moments
    return torch.where(count > 0, mean, torch.nan)


def _in_errors(moments: Tensor) -> Tensor:
    return _mean(moments) / _standard_error(moments)


def _standard_error(moments: Tensor) -> Tensor:
    count, _, squares = moments
    return torch.where(count > 1, (squares / (count - 1) / count).sqrt(), torch.nan)
