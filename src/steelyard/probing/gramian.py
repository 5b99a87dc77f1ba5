"""The inner products of the domains' gradients."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, final

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from steelyard.batches import Tree
from steelyard.measurement import Measurement, Statistic
from steelyard.probing.gradient_probe import GradientProbe, Leaves, Pass, check_moves, leaves_of
from steelyard.probing.hypothetical_step import innermost
from steelyard.probing.probe import Finding, Losses
from steelyard.probing.random_numbers import preserved_random_states, random_states
from steelyard.probing.reuse import Reusing, trace_reason
from steelyard.probing.shadow import Shadow
from steelyard.probing.shared import Part, Shared, share_parts


@final
class Gramian(GradientProbe):
    """⟨g_i, g_j⟩ for all domains i, j: g_d is the gradient of domain d's loss on all its samples, in the modes found.

    One pass per domain. Where the domains' samples do not meet in the forward pass and nothing random is drawn in it,
    these gradients are the outer step's, and the probe costs next to nothing. Losses need not be means over samples.

    Args:
        every: measure on each n-th step only.
        scaler: the outer loop's gradient scaler, so that float16 gradients do not underflow.
        reuse: whether the gradients serve the outer step too: `detect`, `True` or `False`, as `FirstOrder` has it.

    >>> Gramian(every=2)
    Gramian(
      every=2
      (reuse): Reuse('detect')
    )
    """

    statistic: ClassVar[Statistic] = Statistic.GRAMIAN
    domains_whole: ClassVar[bool] = True

    def __init__(self, *, every: int = 1, scaler: GradScaler | None = None, reuse: Reusing = "detect") -> None:
        super().__init__(every=every, gather=False, scaler=scaler, reuse=reuse)

    def _measure(
        self, model: nn.Module, batch: Mapping[str, Tree], *, losses: Losses, optimizer: Optimizer
    ) -> Measurement | Finding:
        sharing = self._may_share(model, losses)
        shadow = Shadow(model, losses)
        leaves = leaves_of(shadow, innermost(optimizer), everything=sharing)
        passes: dict[str, Pass] = {}
        drawn = False
        for name, samples in batch.items():
            with preserved_random_states(leaves.live):
                before = random_states(leaves.live) if sharing else []
                found = self._differentiate(shadow, {name: samples}, leaves)
                drawn |= sharing and random_states(leaves.live) != before
            if found is None:
                return self._nothing(losses)
            passes[name] = found
        check_moves([each.gradients for each in passes.values()], leaves)
        trace = trace_reason(shadow, drawn=drawn)
        shared = self._share(model, losses, batch, passes=passes, leaves=leaves, trace=trace) if sharing else None
        return Finding(_measurement(passes, leaves, losses.domains), shared)

    def _share(
        self,
        model: nn.Module,
        losses: Losses,
        batch: Mapping[str, Tree],
        *,
        passes: dict[str, Pass],
        leaves: Leaves,
        trace: str | None,
    ) -> Shared | None:
        if any(found.overflowed for found in passes.values()):
            return None
        known = {name: found.losses[name] for name, found in passes.items()}
        with preserved_random_states(leaves.live):
            reason = trace or self._audit(model, losses, batch, alone=lambda *_: known, evaluating=False)
        if not self.reuse.holds(reason):
            return None
        parts = [Part(name, 1.0, known[name], found.gradients) for name, found in passes.items()]
        return share_parts(parts, leaves.live, rest={})

    def _nothing(self, losses: Losses) -> Measurement:
        count = len(losses.domains)
        return Measurement(torch.zeros(count, count, dtype=torch.float64), torch.zeros(count, dtype=torch.bool))

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        return f"every={self.every}"


def _measurement(passes: dict[str, Pass], leaves: Leaves, domains: Sequence[str]) -> Measurement:
    """The Gramian over the parameters that the optimizer steps."""
    gradients = [
        [g for g, mine in zip(found.gradients, leaves.stepped, strict=True) if mine] for found in passes.values()
    ]
    inner = torch.zeros(len(gradients), len(gradients), dtype=torch.float64)
    with torch.no_grad():
        for rows in zip(*gradients, strict=True):  # one parameter's gradients, one per domain
            given = [i for i, g in enumerate(rows) if g is not None]
            if given:
                stacked = torch.stack([g.flatten() for g in rows if g is not None])
                inner[torch.tensor(given)[:, None], torch.tensor(given)] += (stacked @ stacked.T).double().cpu()
    where = torch.tensor([domains.index(name) for name in passes])
    values = torch.zeros(len(domains), len(domains), dtype=torch.float64)
    values[where[:, None], where] = inner
    present = torch.tensor([name in passes for name in domains])
    return Measurement(values, present)
