"""The inner products of the domains' gradients."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, final

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
    Pass,
    leaves_of,
    run_pass,
)
from steelyard.probing.probe import Finding, Gradients, Losses, Probe, Shared
from steelyard.probing.replica import Replica, preserved_random_states, random_states
from steelyard.probing.sharing import Part, Reuse, Reusing, check_traces, share


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
        sharing = self.reuse.may_begin(model, losses, scaler=self.scaler)
        replica = Replica(model, losses)
        leaves = leaves_of(replica, innermost(optimizer), everything=sharing)
        states = random_states(leaves.live)
        try:
            passes, drawn = self._run_domains(replica, batch, leaves, states)
        except HalfTooSmallError:
            return _measurement({}, leaves, losses.domains)
        gradients = {name: domain_pass.gradients for name, domain_pass in passes.items()}
        rows = GradientRows.separate(list(gradients.values()))
        check_model_is_used(rows, leaves)

        def check() -> None:
            check_traces(replica, drawn=drawn)
            if self.reuse.needs_audit(model, self.vote_number):
                whole = {name: [samples] for name, samples in batch.items()}
                audit(model, losses, whole, scaler=self.scaler, reuse=self.reuse, evaluating=False)

        shared: Shared | None = None
        overflowed = any(domain_pass.overflowed for domain_pass in passes.values())
        if sharing and not overflowed and self.reuse.holds(check):
            parts = [Part(name, 1.0, domain_pass.losses[name]) for name, domain_pass in passes.items()]
            shared = share(parts, rows, leaves.live, rest={})
        return Finding(_measurement(gradients, leaves, losses.domains), shared)

    def _run_domains(
        self, replica: Replica, batch: Mapping[str, Tree], leaves: Leaves, states: list[Any]
    ) -> tuple[dict[str, Pass], bool]:
        """One pass over each domain, all from the same random states, and whether one of them draws numbers."""
        passes: dict[str, Pass] = {}
        drawn = False
        for name, samples in batch.items():
            with preserved_random_states(leaves.live):
                passes[name] = run_pass(replica, {name: samples}, leaves, scaler=self.scaler)
                drawn |= random_states(leaves.live) != states
        return passes, drawn

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        return f"every={self.every}"


def _measurement(gradients: Mapping[str, Gradients], leaves: Leaves, domains: Sequence[str]) -> Measurement:
    """The Gramian over the parameters that the optimizer steps."""
    values = torch.zeros(len(domains), len(domains), dtype=torch.float64)
    with torch.no_grad():
        for column, stepped in enumerate(leaves.stepped):
            # One parameter's gradients, of the domains whose loss depends on it.
            present = [name for name in gradients if gradients[name][column] is not None]
            if stepped and present:
                stacked = torch.stack([gradients[name][column].flatten() for name in present])  # type: ignore[union-attr]
                indices = torch.tensor([domains.index(name) for name in present])
                values[indices[:, None], indices] += (stacked @ stacked.T).double().cpu()
    return Measurement(values, torch.tensor([name in gradients for name in domains]))
