"""The balancer: what a user puts into the training loop."""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from steelyard.batches import Tree, count_samples
from steelyard.measurement import Measurement, Outcome, Statistic, Update
from steelyard.probing import Finding, Probe
from steelyard.training.counters import MissedVotes, restored_on_error
from steelyard.training.distributed import average_over_ranks, is_shared, run_once
from steelyard.training.domain_losses import DomainLosses, Loss, Objective, complete, weighted_loss
from steelyard.weighting import Weighting

_FORMAT = 1  # of the state_dict; to be raised when entries change their names or meanings


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The result of one call of the balancer.

    Attributes:
        losses: each present domain's loss, detached and on its device.
        weights: the weights in force.
        outcome: whether the weights were updated, or why not.
        vote: the name of the domain voted for, where there was a vote.
        measured: the probe's value for each domain that took part, such as its hypothetical loss.
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


@final
class Balancer(nn.Module):
    """Weighs the domains' losses, and learns the weights while the model trains.

    Put it where the loss is computed; nothing else in the loop changes. The call runs the probe, which leaves model,
    optimizer and random numbers unchanged. The weighting then follows the probe's measurement. The call returns
    Σ_d λ_d L_d, an ordinary scalar to call `backward()` on. A weighting that follows the losses themselves needs no
    probe: it sees the outer losses. In evaluation mode and under `torch.no_grad()` the weights stay as they are. A
    domain absent from a batch adds nothing; the other weights are not scaled up for it. Where `torch.distributed` is in
    use, measurements are averaged over the ranks, and all ranks cast the same vote.

    It is a module: its `state_dict()` holds votes, weights, counters and a format version. Put it in the checkpoint.

    Args:
        domains: the names of the domains, at least one.
        loss: `loss(model(inputs), targets)`, a scalar; one for all, or a mapping of domain name to loss.
        objective: instead of `loss`, `objective(model, domain_batch)`, a scalar, for a model that computes its own.
        weighting: how the weights follow the measurements.
        probe: how it is measured; `None` leaves the weights as the weighting starts them, unless it follows the losses.
        join: run the model once over all domains' samples where shapes allow it, instead of once per domain.
        process_group: the ranks that vote together; default: all of them.

    >>> import steelyard as sy
    >>> model = nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> balancer = sy.Balancer(
    ...     ("a", "b"), loss=nn.functional.mse_loss, weighting=sy.DirichletVote("greedy"), probe=sy.InnerLoop()
    ... )
    >>> batch = {name: (torch.ones(4, 3), torch.full((4, 1), y)) for name, y in (("a", 0.0), ("b", 5.0))}
    >>> balancer(model, batch, optimizer).backward()
    >>> balancer.last.vote
    'b'
    >>> {name: round(weight, 3) for name, weight in balancer.weights.items()}
    {'a': 0.444, 'b': 0.556}
    """

    _signature: Tensor
    _outcomes: Tensor
    _format: Tensor

    def __init__(
        self,
        domains: Sequence[str],
        *,
        weighting: Weighting,
        loss: Loss | Mapping[str, Loss] | None = None,
        objective: Objective | None = None,
        probe: Probe | None = None,
        join: bool = True,
        process_group: distributed.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        names = _checked_names(domains)
        _check_kind("weighting", weighting, Weighting)
        if probe is None and weighting.statistic not in (Statistic.NOTHING, Statistic.LOSSES):
            warnings.warn(
                f"without a probe the weights of {type(weighting).__name__} stay as they start: "
                "pass probe=sy.InnerLoop() to learn them, or weighting=sy.Fixed(…).",
                stacklevel=2,
            )
        if probe is not None:
            _check_kind("probe", probe, Probe)
        if probe is not None and weighting.statistic not in (Statistic.NOTHING, probe.statistic):
            raise ValueError(
                f"{type(weighting).__name__} needs {weighting.statistic.value}; "
                f"{type(probe).__name__} provides {probe.statistic.value}."
            )
        self.domains = names
        self.domain_losses = DomainLosses(names, loss=loss, objective=objective, join=join)
        self.weighting = weighting
        self.probe = probe
        self.last: StepReport | None = None
        self._group = process_group
        self._missed_votes = MissedVotes(gathers=probe is not None and probe.gathering is not None)
        self._ranks_agreed = False  # whether the ranks have cast this step's vote together
        weighting.start(names)
        signature = json.dumps([names, repr(weighting)]).encode()
        self.register_buffer("_outcomes", torch.zeros(len(Outcome), dtype=torch.int64))
        self.register_buffer("_signature", torch.tensor(list(signature), dtype=torch.uint8))
        self.register_buffer("_format", torch.tensor(_FORMAT))
        self.register_load_state_dict_pre_hook(_refuse_other_checkpoints)  # type: ignore[no-untyped-call]

    @property
    def weights(self) -> dict[str, float]:
        """Each domain's weight now."""
        return dict(zip(self.domains, self.weighting.weights(), strict=True))

    @property
    def tally(self) -> dict[str, int]:
        """How often each outcome came about in training: updates, ties, values that were not finite, …."""
        return {outcome.value: count for outcome, count in zip(Outcome, self._outcomes.tolist(), strict=True) if count}

    def forward(self, model: nn.Module, batch: Mapping[str, Tree], optimizer: Optimizer | None = None) -> Tensor:
        """The weighted loss of a batch, after the vote.

        Args:
            model: the live model, wrapped or not.
            batch: domain name to `(inputs, targets)`, or to what an objective takes; a domain may be absent.
            optimizer: the one that will step the model; may be left out where nothing is measured.
        """
        _check_kind("model", model, nn.Module)
        present = self._present(batch)
        self._ranks_agreed = False
        with restored_on_error(self._outcomes, self.weighting, self.probe, unless=lambda: self._ranks_agreed):
            return self._weighted_loss(model, present, optimizer)

    def _weighted_loss(self, model: nn.Module, present: dict[str, Tree], optimizer: Optimizer | None) -> Tensor:
        """The weighted loss, after the vote, and a report of both."""
        finding, update = self._measure(model, present, optimizer)
        if finding.shared is not None:
            losses, loss = run_once(model, partial(complete, self.domain_losses, finding.shared, self.weights))
        else:
            losses = run_once(model, lambda wrapped: self.domain_losses(wrapped, present))
            if update is None:  # the weights follow these losses
                finding, update = self._update(Finding(Measurement.by_name(losses, self.domains)), model, present)
            loss = weighted_loss(losses, self.weights)
        assert update is not None  # noqa: S101
        self.last = self._report(losses, finding.measurement, update)
        return loss

    def _report(self, losses: Mapping[str, Tensor], measurement: Measurement, update: Update) -> StepReport:
        return StepReport(
            losses={name: loss.detach() for name, loss in losses.items()},
            weights=self.weights,
            outcome=update.outcome,
            vote=None if update.vote is None else self.domains[update.vote],
            measured={self.domains[d]: measurement.values[d].tolist() for d in measurement.taking_part},
        )

    def _present(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        """The domains that have samples, in the balancer's order."""
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"a batch must map domain names to samples; got {type(batch).__name__}. "
                "Of one batch per domain, dict(zip(domains, batches)) makes a mapping."
            )
        if unknown := [name for name in batch if name not in self.domains]:
            raise ValueError(f"a batch must map names among {self.domains} to samples; got {unknown[0]!r}.")
        present = {name: batch[name] for name in self.domains if name in batch and _has_samples(name, batch[name])}
        if not present:
            raise ValueError(f"the batch holds no sample of any of {self.domains}.")
        return present

    def _measure(
        self, model: nn.Module, batch: dict[str, Tree], optimizer: Optimizer | None
    ) -> tuple[Finding, Update | None]:
        """Measure, and let the weights follow; no update yet where they follow the outer losses themselves."""
        nothing = Finding(Measurement.nothing(len(self.domains)))
        if not self.training or not torch.is_grad_enabled():
            return nothing, Update(Outcome.NO_TRAINING)
        if self.probe is None and self.weighting.statistic is Statistic.LOSSES:
            return nothing, None
        if self.probe is None:
            return nothing, self._count(Update(Outcome.NO_PROBE))
        if optimizer is None:
            raise ValueError("the optimizer is needed for the vote: balancer(model, batch, optimizer).")
        _check_kind("optimizer", optimizer, Optimizer)
        finding = self.probe.find(model, batch, losses=self.domain_losses, optimizer=optimizer)
        if finding is None:
            return nothing, self._count(Update(Outcome.NOT_DUE))
        return self._update(finding, model, batch)

    def _update(self, finding: Finding, model: nn.Module, batch: Mapping[str, Tree]) -> tuple[Finding, Update]:
        """Let the weights follow the measurement, on all ranks alike."""
        if not is_shared(self._group):
            return finding, self._count(self.weighting.observe(finding.measurement))
        domains_here = set(batch)
        if self.probe is not None and self.probe.gathering is not None:
            domains_here |= self.probe.gathering.kept.keys()
        agreement = average_over_ranks(
            finding.measurement,
            in_batch=torch.tensor([name in domains_here for name in self.domains]),
            group=self._group,
            device=next(model.parameters()).device,
        )
        self._ranks_agreed = True
        finding = replace(finding, measurement=agreement.measurement)
        if agreement.ranks_apart:
            return finding, self._count(Update(Outcome.RANKS_APART))
        return finding, self._count(self.weighting.observe(finding.measurement))

    def _count(self, update: Update) -> Update:
        """Count an outcome."""
        self._outcomes[list(Outcome).index(update.outcome)] += 1
        self._missed_votes.note(update.outcome, self.tally)
        return update


def _refuse_other_checkpoints(module: Balancer, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Refuse a checkpoint of another format, of other domains, or of a weighting with other settings."""
    saved_format: int | None = None
    if f"{prefix}_format" in state:
        saved_format = int(state[f"{prefix}_format"])
    if saved_format != _FORMAT:
        raise ValueError(f"the checkpoint of a balancer must have the format version {_FORMAT}; got {saved_format}.")
    saved_signature = state.get(f"{prefix}_signature")
    if saved_signature is None or torch.equal(saved_signature.cpu(), module._signature.cpu()):
        return
    saved_domains, saved_weighting = json.loads(bytes(saved_signature.tolist()))
    domains, weighting = json.loads(bytes(module._signature.tolist()))
    if saved_domains != domains:
        raise ValueError(f"the checkpoint weighs the domains {saved_domains}; this balancer {domains}.")
    raise ValueError(f"the checkpoint is of {saved_weighting}; this balancer has {weighting}.")


def _checked_names(domains: Sequence[str]) -> tuple[str, ...]:
    if not isinstance(domains, Sequence) or isinstance(domains, str) or not all(isinstance(d, str) for d in domains):
        raise TypeError(f"domains must be a sequence of names; got {domains!r}.")
    if not domains or len(set(domains)) != len(domains):
        raise ValueError(f"domains must be distinct names, at least one; got {domains!r}.")
    return tuple(domains)


def _check_kind(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        form = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise TypeError(f"{name} must be an instance of {kind.__name__}; got {form}.")


def _has_samples(name: str, domain_batch: Tree) -> bool:
    try:
        return count_samples(domain_batch) > 0
    except (TypeError, ValueError) as error:
        raise type(error)(f"domain {name!r}: {error}") from None
