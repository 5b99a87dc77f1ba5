"""What passes from a probe to a weighting."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor


class Statistic(Enum):
    """What a weighting asks for and a probe provides."""

    NOTHING = "nothing"
    """The weights follow no measurement."""
    LOSSES = "losses"
    """Each domain's loss now; one number per domain."""
    HYPOTHETICAL_LOSSES = "hypothetical losses"
    """How all domains fare after a step for one of them, H_d = Σ_j L_j(θ^d); one number per domain."""
    WORTH = "worth"
    """What a step for each domain is worth to all, on one scale, lower is better; made of a probe's `Scores`."""
    GRAMIAN = "Gramian"
    """The inner products of the domains' gradients; one row and column per domain."""


class Outcome(Enum):
    """What a call of the balancer did to the weights, or why it changed nothing."""

    UPDATED = "updated"
    FIXED = "these weights are fixed"
    TIE = "a tie"
    NOT_FINITE = "a value was not finite"
    TOO_FEW = "fewer than two domains with enough samples"
    NOT_DUE = "not due on this step"
    NO_PROBE = "no probe"
    NO_TRAINING = "not training"
    UNSEEN = "a domain was never present"
    RANKS_APART = "no comparison within a rank connects the domains"
    NO_EVIDENCE = "the steps of most domains harm the others, or domains are distrusted"


@dataclass(frozen=True)
class Measurement:
    """One statistic over all domains.

    Attributes:
        values: float64 on the CPU, in the order of the domains. Ignore the value of a domain that did not take part.
        present: for each domain whether it took part.
    """

    values: Tensor
    present: Tensor

    @classmethod
    def of(cls, values: Tensor) -> "Measurement":
        """A measurement in which every domain took part."""
        values = values.detach().to("cpu", torch.float64)
        return cls(values, torch.ones(len(values), dtype=torch.bool))

    @classmethod
    def by_name(cls, values: Mapping[str, Tensor], domains: Sequence[str]) -> "Measurement":
        """A measurement of one number per domain; domains without a value did not take part."""
        measurement = cls.nothing(len(domains))
        in_order = []
        for index, domain in enumerate(domains):
            if domain in values:
                measurement.present[index] = True
                in_order.append(values[domain].detach().double())
        measurement.values[measurement.present] = torch.stack(in_order).cpu()  # one copy from a GPU, not one per domain
        return measurement

    @classmethod
    def nothing(cls, domains: int) -> "Measurement":
        """A measurement in which no domain took part."""
        return cls(torch.zeros(domains, dtype=torch.float64), torch.zeros(domains, dtype=torch.bool))

    @property
    def is_finite(self) -> bool:
        """Whether all values among the domains that took part are finite."""
        values = self.values
        present = torch.tensor(self.taking_part, dtype=torch.int64)
        for dimension in range(values.dim()):  # one for numbers per domain, two for a Gramian
            values = values.index_select(dimension, present)
        return bool(torch.isfinite(values).all())

    @property
    def taking_part(self) -> list[int]:
        """The indices of the domains that took part."""
        return [i for i, present in enumerate(self.present.tolist()) if present]


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Each domain's score after a hypothetical step for each domain, in the order of the domains.

    A score is a loss, or the value of the user's own judge; lower is better. All tensors are float64 on the CPU. NaN
    marks what was not measured.

    Attributes:
        after: K + 1 rows, K columns. Entry (i, j) is the score of domain j after a step for domain i. The last row is
            for the step that the optimizer takes for a gradient of zero, by momentum and weight decay alone.
        before: the scores before any step, where `after` is their first-order expansion; NaN where it is exact.
        losses: each domain's loss on its meta-train half, before any step.
        gradient_norms: the norm of the gradient of that loss.
    """

    after: Tensor
    before: Tensor
    losses: Tensor
    gradient_norms: Tensor

    def placed(self, domains: Sequence[str], *, stepped: Sequence[str], judged: Sequence[str]) -> "Scores":
        """The same for all domains, from scores of some.

        Args:
            domains: all domains.
            stepped: the domains that the rows of `after` are for, except the last row.
            judged: the domains that its columns are for.
        """
        rows = torch.tensor([*(domains.index(name) for name in stepped), len(domains)])
        columns = torch.tensor([domains.index(name) for name in judged])
        after = torch.full((len(domains) + 1, len(domains)), math.nan, dtype=torch.float64)
        after[rows[:, None], columns] = self.after.to("cpu", torch.float64)
        vectors = torch.full((3, len(domains)), math.nan, dtype=torch.float64)
        vectors[0, columns] = self.before.to("cpu", torch.float64)
        vectors[1, rows[:-1]] = self.losses.to("cpu", torch.float64)
        vectors[2, rows[:-1]] = self.gradient_norms.to("cpu", torch.float64)
        before, losses, norms = vectors
        return Scores(after=after, before=before, losses=losses, gradient_norms=norms)


@dataclass(frozen=True)
class Update:
    """What a weighting did with a measurement.

    Attributes:
        outcome: whether the weights were updated, or why not.
        vote: the index of the domain voted for; `None` where no vote was cast.
    """

    outcome: Outcome
    vote: int | None = None
