"""The inner products of the domains' gradients."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, final

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from steelyard.batches import Tree
from steelyard.measurement import Measurement, Statistic
from steelyard.probing.audit import audit
from steelyard.probing.optimizer_step import check_model_is_used, innermost
from steelyard.probing.passes import (
    GradientRows,
    HalfTooSmallError,
    Leaves,
    leaves_of,
    run_pass,
)
from steelyard.probing.probe import Finding, Gradients, Losses, Probe, Shared
from steelyard.probing.replica import Replica, is_sharded, preserved_random_states, random_states
from steelyard.probing.sharded.votes import measure_sharded_gramian, refuse_to_share
from steelyard.probing.sharing import AuditCase, Part, Reuse, Reusing, check_traces, share


@final
class Gramian(Probe):
    """⟨g_i, g_j⟩ for all domains i, j: g_d is the gradient of domain d's loss on all its samples.

    One pass per domain, in each module's current mode. Where the domains are processed independently in the forward
    pass and nothing random is drawn in it, these gradients are the outer step's, and the probe costs next to nothing.
    Losses need not be means over samples.

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

    def __init__(self, *, every: int = 1, scaler: GradScaler | None = None, reuse: Reusing = "detect") -> None:
        super().__init__(every=every)
        self.scaler = scaler
        self.reuse = Reuse(reuse)

    def _measure(
        self, model: nn.Module, batch: Mapping[str, Tree], *, losses: Losses, optimizer: Optimizer
    ) -> Measurement | Finding:
        if is_sharded(model):
            self.reuse.holds(refuse_to_share, lasting=False)
            return measure_sharded_gramian(model, batch, losses=losses, optimizer=optimizer, scaler=self.scaler)
        sharing = self.reuse.may_begin(model, losses, scaler=self.scaler, rows=len(batch))
        replica = Replica(model, losses)
        leaves = leaves_of(replica, innermost(optimizer), everything=sharing)
        states = random_states(leaves.live)
        rows: list[Gradients] = []
        parts: list[Part] = []
        drawn = overflowed = False
        try:
            for name, samples in batch.items():
                with preserved_random_states(leaves.live):  # every domain's pass draws the same numbers
                    domain_pass = run_pass(replica, {name: samples}, leaves, scaler=self.scaler)
                    drawn |= random_states(leaves.live) != states
                rows.append(domain_pass.gradients)
                parts.append(Part(name, 1.0, domain_pass.losses[name]))
                overflowed |= domain_pass.overflowed
        except HalfTooSmallError:
            count = len(losses.domains)
            return Measurement(torch.zeros(count, count, dtype=torch.float64), torch.zeros(count, dtype=torch.bool))
        gradients = GradientRows.separate(rows)
        check_model_is_used(gradients, leaves)

        def check() -> None:
            check_traces(replica, drawn=drawn)
            case = AuditCase(parts=1, drawn=False)
            if self.reuse.needs_audit(model, case, self.vote_number):
                whole = {name: [samples] for name, samples in batch.items()}
                audit(model, losses, whole, scaler=self.scaler, reuse=self.reuse, evaluating=False)
                self.reuse.note_audit(model, case)

        shared: Shared | None = None
        if sharing and not overflowed and self.reuse.holds(check):
            shared = share(parts, gradients, leaves.live, rest={})
        return Finding(_measurement(gradients, list(batch), leaves, losses.domains), shared)

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        return f"every={self.every}"


def _measurement(rows: GradientRows, names: Sequence[str], leaves: Leaves, domains: Sequence[str]) -> Measurement:
    """The Gramian over the parameters that the optimizer steps, from one row of gradients for each name."""
    values = torch.zeros(len(domains), len(domains), dtype=torch.float64)
    indices = torch.tensor([domains.index(name) for name in names])
    present = rows.present()
    with torch.no_grad():
        for number, column in enumerate(rows.columns):
            # One parameter's gradients, of the domains whose loss depends on it.
            gradients = [gradient.flatten() for gradient in column if gradient is not None]
            if leaves.stepped[number] and gradients:
                stacked = torch.stack(gradients)
                dependent = indices[present[:, number]]
                values[dependent[:, None], dependent] += (stacked @ stacked.T).double().cpu()
    return Measurement(values, torch.tensor([name in names for name in domains]))
