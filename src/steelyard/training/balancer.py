"""The balancer: what a user puts into the training loop."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, final

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from steelyard.batches import Tree
from steelyard.measurement import Measurement, Outcome, Statistic, Update
from steelyard.probing import Finding, Probe
from steelyard.probing.vote_probe import VoteProbe
from steelyard.training import arguments
from steelyard.training.audit import Audit, audit_domains
from steelyard.training.auto_probe import AutoProbe, choose_probe
from steelyard.training.call import Call
from steelyard.training.counters import Counters, restored_on_error
from steelyard.training.distributed import agree, is_shared, on_any_rank, run_once
from steelyard.training.domain_losses import DomainLosses, Forward, Loss, Objective, complete, weighted_loss
from steelyard.training.outer_pass import outer_losses
from steelyard.training.scalars import log_scalars
from steelyard.training.step_report import StepReport
from steelyard.training.transfer import Transfer
from steelyard.training.valuation import Judges, Valuation
from steelyard.weighting import Evidence, Weighting

_UNMEASURED = (Statistic.NOTHING, Statistic.LOSSES)  # what needs no probe


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
        forward: `forward(model, inputs)` in place of `model(inputs)`. A domain's batch may then also be a mapping that
            holds inputs and targets: `forward` and `loss` are both called with all of it.
        objective: instead of `loss`, `objective(model, domain_batch)`, a scalar, for a model that computes its own.
        weighting: how the weights follow the measurements; default: `Evidence()`.
        probe: how it is measured. `auto` chooses from the model at the first call, and `print(balancer)` says what and
            why. `None`, or `auto` with a weighting that needs none, measures nothing; then a judge changes nothing.
        judge: how well a domain fares after a hypothetical step. `bounded`: by its loss in the form 1 − exp(−L / L0);
            `loss`: by its loss; or `judge(outputs, targets)`, one number, lower is better, one for all or a mapping of
            domain name to judge (with an objective, `judge(model, domain_batch)`). Default: `loss` for weightings that
            count votes, as in the paper; `bounded` otherwise.
        importance: how much each domain's score matters; default: all alike. 0 makes a domain auxiliary: its steps are
            weighed, its score does not count.
        join: run the model once over all domains' samples where shapes allow it, instead of once per domain.
        process_group: the ranks that vote together; default: all of them.

    >>> model = nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> balancer = Balancer(("a", "b"), loss=nn.functional.mse_loss)
    >>> batch = {name: (torch.ones(4, 3), torch.full((4, 1), y)) for name, y in (("a", 0.0), ("b", 5.0))}
    >>> balancer(model, batch, optimizer).backward()
    >>> {name: round(share, 3) for name, share in balancer.shares.items()}
    {'a': 0.5, 'b': 0.5}
    """

    _signature: Tensor
    _format: Tensor

    def __init__(
        self,
        domains: Sequence[str],
        *,
        weighting: Weighting | None = None,
        loss: Loss | Mapping[str, Loss] | None = None,
        forward: Forward | None = None,
        objective: Objective | None = None,
        judge: Judges = None,
        importance: Mapping[str, float] | None = None,
        probe: Probe | Literal["auto"] | None = "auto",
        join: bool = True,
        process_group: distributed.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        names = arguments.checked_names(domains)
        if weighting is None:
            weighting = Evidence()
        arguments.check_kind("weighting", weighting, Weighting)
        self.domains, self.weighting = names, weighting
        self.valuation = Valuation(names, weighting, judge=judge, importance=importance)
        own_judge = self.valuation.own_judge
        self.domain_losses = DomainLosses(
            names, loss=loss, forward=forward, objective=objective, judge=own_judge, join=join
        )
        self.counters = Counters(names)
        self.last: StepReport | None = None
        self._group = process_group
        self.auto = AutoProbe(automatic=probe == "auto" and weighting.statistic not in _UNMEASURED)
        weighting.start(names)
        self.register_buffer("_signature", arguments.as_bytes(self._settings()))
        self.register_buffer("_format", torch.tensor(arguments.FORMAT))
        self._set_probe(None if probe == "auto" else probe)
        if probe is None and weighting.statistic not in _UNMEASURED:
            arguments.warn_of_no_probe(weighting)
        self.register_load_state_dict_pre_hook(_prepare_to_load)  # type: ignore[no-untyped-call]

    @property
    def transfer(self) -> Transfer:
        """Who helps whom, with `mean`, `standard_error` and `count`, each K × K; NaN where nothing was measured."""
        return self.valuation.transfer

    @property
    def weights(self) -> dict[str, float]:
        """Each domain's weight now."""
        weights = self.weighting.weights()
        if self.weighting.statistic is Statistic.WORTH:  # these are shares of the update
            weights = self.valuation.weights_for(weights)
        return dict(zip(self.domains, weights, strict=True))

    @property
    def shares(self) -> dict[str, float]:
        """Each domain's share of the update: its weight times the size of its gradients, divided by the sum."""
        shares = self.transfer.shares_of(tuple(self.weights.values()))
        return dict(zip(self.domains, shares, strict=True))

    def _settings(self) -> list[object]:
        """What a checkpoint must agree with."""
        judging = "own judge" if self.domain_losses.have_judge else repr(self.valuation.judging)
        return [self.domains, repr(self.weighting), judging, self.transfer.importance.tolist()]

    @property
    def tally(self) -> dict[str, int]:
        """How often each outcome came about in training: updates, ties, values that were not finite, …."""
        return self.counters.tally

    def audit(self) -> Audit:
        """Who helps whom, and which domain is noisy, harmful, out of scale or starved; `print` shows it as a table."""
        measured = (self.transfer, self.valuation.suspects, self.counters.presences)
        return audit_domains(self.domains, *measured, weights=self.weights, shares=self.shares)

    def scalars(self, prefix: str = "") -> dict[str, float]:
        """Plain numbers for any logger: this rank's last losses, weights and shares now, mean transfer and flags.

        Args:
            prefix: of every name, such as `train/`.
        """
        return log_scalars(self.last, self.audit(), prefix=prefix)

    def forward(
        self,
        model: nn.Module,
        batch: Mapping[str, Tree],
        optimizer: Optimizer | None = None,
        *,
        held_out: Mapping[str, Tree] | None = None,
        measure: bool = True,
    ) -> Tensor:
        """The weighted loss of a batch, after the vote.

        Args:
            model: the live model, wrapped or not.
            batch: domain name to `(inputs, targets)`, or to what `forward` or an objective takes; one may be absent. A
                `DomainBatch` has factors, by which the weights are multiplied in the loss.
            optimizer: the one that will step the model; may be left out where nothing is measured.
            held_out: samples to judge by, a mapping like `batch`. Steps are then taken from the whole batch; by default
                one half of each domain's batch judges the steps that are taken from the other.
            measure: `False` only weighs the losses. Where several batches are accumulated for one step of the
                optimizer, measure on the first of them.
        """
        arguments.check_kind("model", model, nn.Module)
        present = arguments.checked_batch(batch, self.domains)
        held_out = None if held_out is None else arguments.checked_batch(held_out, self.domains)
        factors = arguments.checked_factors(batch, self.domains)
        call = Call(model, present, optimizer, held_out, factors)
        learning = self.training and torch.is_grad_enabled()
        if learning and measure:
            self._choose_if_due(call)  # it stays if this call fails
        own_tensors = [*self.counters.buffers(), *self.valuation.buffers()]
        # Other ranks count this step whatever happens here: a rank that undid it would vote on other steps.
        undo = not is_shared(self._group)
        with restored_on_error(own_tensors, self.weighting, self.probe, undo=undo):
            if learning:
                self.counters.note_presence(present)
            if learning and measure:
                return self._measured_loss(call)
            return self._unmeasured_loss(call, Outcome.NOT_DUE if learning else Outcome.NO_TRAINING)

    def _unmeasured_loss(self, call: Call, outcome: Outcome) -> Tensor:
        """The weighted loss, with the weights as they are."""
        losses = outer_losses(call.model, self.domain_losses, call.batch)
        nothing = Measurement.nothing(len(self.domains))
        self.last = StepReport.of(losses, self.weights, nothing, Update(outcome))
        return weighted_loss(losses, call.outer_weights(self.weights))

    def _measured_loss(self, call: Call) -> Tensor:
        """The weighted loss, after the vote, and a report of both."""
        finding, update = self._measure(call)
        if finding.shared is not None:
            weights = call.outer_weights(self.weights)
            losses, loss = run_once(call.model, partial(complete, self.domain_losses, finding.shared, weights))
        else:
            losses = outer_losses(call.model, self.domain_losses, call.batch)
            if update is None:  # the weights follow these losses
                finding, update = self._update(Finding(Measurement.by_name(losses, self.domains)), call)
            loss = weighted_loss(losses, call.outer_weights(self.weights))
        assert update is not None  # noqa: S101
        self.last = StepReport.of(losses, self.weights, finding.measurement, update)
        return loss

    def _measure(self, call: Call) -> tuple[Finding, Update | None]:
        """Measure, and let the weights follow; no update yet where they follow the outer losses themselves."""
        if self.probe is None and not self.auto.automatic:
            nothing = Finding(Measurement.nothing(len(self.domains)))
            follows_losses = self.weighting.statistic is Statistic.LOSSES
            return nothing, None if follows_losses else self.counters.note(Update(Outcome.NO_PROBE))
        if call.optimizer is None:
            raise ValueError("the optimizer is needed for the vote: balancer(model, batch, optimizer).")
        arguments.check_kind("optimizer", call.optimizer, Optimizer)
        return self._vote(call, call.optimizer)

    def _vote(self, call: Call, optimizer: Optimizer) -> tuple[Finding, Update]:
        """Ask the probe, and let the weights follow."""
        assert self.probe is not None  # noqa: S101
        yields_scores = isinstance(self.probe, VoteProbe) and self.probe.yields_scores
        finding = self.probe.find(
            call.model, call.batch, losses=self.domain_losses, optimizer=optimizer, held_out=call.held_out
        )
        if finding is None:
            return Finding(Measurement.nothing(len(self.domains))), self.counters.note(Update(Outcome.NOT_DUE))
        return self._update(finding, call, yields_scores=yields_scores)

    def _choose_if_due(self, call: Call) -> None:
        """Choose the probe at the first call in training."""
        if self.auto.automatic and self.probe is None and isinstance(call.optimizer, Optimizer):
            losses, needed = self.domain_losses, self.weighting.statistic
            held_out = on_any_rank(call.held_out is not None, self._group, next(call.model.parameters()).device)
            choice = choose_probe(needed, call.model, losses, call.optimizer, held_out=held_out)
            self._set_probe(self.auto.make(choice))

    def _set_probe(self, probe: Probe | None) -> None:
        """Check that a probe provides what the weighting needs, and take it."""
        if probe is not None:
            arguments.check_kind("probe", probe, Probe)
            arguments.check_fit(self.weighting, probe)
        if isinstance(probe, VoteProbe):
            probe.scores_always = self.valuation.needs_scores
            if probe.meta_test_is_default and self.weighting.statistic is not Statistic.HYPOTHETICAL_LOSSES:
                probe.meta_test = "step"  # what a step's own pass does to running statistics is not its worth
        self.probe = probe
        self.counters.gathers = probe is not None and probe.gathering is not None

    def _update(self, finding: Finding, call: Call, *, yields_scores: bool = False) -> tuple[Finding, Update]:
        """Let the weights follow the measurement, on all ranks alike."""
        cannot_share, ranks_apart = self.auto.cannot_share(self.probe, len(self.domains)), False
        if is_shared(self._group):
            names = set(call.batch)
            if self.probe is not None and self.probe.gathering is not None:
                names |= self.probe.gathering.kept.keys()
            in_batch = torch.tensor([name in names for name in self.domains])
            device = next(call.model.parameters()).device
            finding, ranks_apart, cannot_share = agree(
                finding,
                in_batch,
                with_scores=yields_scores,
                cannot_share=cannot_share,
                group=self._group,
                device=device,
            )
        if cannot_share:
            self.auto.vote_less_often(self.probe, len(self.domains))
        if ranks_apart:
            return finding, self.counters.note(Update(Outcome.RANKS_APART))
        measurement, update = self.valuation.measurement(finding, self.counters.batches), Update(Outcome.NO_EVIDENCE)
        if bool(measurement.present.any()) or not bool(finding.measurement.present.any()):
            update = self.weighting.observe(measurement)
        return replace(finding, measurement=measurement), self.counters.note(update)

    def extra_repr(self) -> str:
        """The probe that was chosen, and why, for `print(balancer)`."""
        return self.auto.description


def _prepare_to_load(module: Balancer, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Refuse a checkpoint that does not fit; make the probe that was chosen when it was saved, if any."""
    arguments.check_checkpoint(state, prefix, module._signature)
    choice = state.get(f"{prefix}auto.choice")
    if choice is None:
        return
    probe = module.auto.make_saved(choice)
    if module.auto.automatic:
        module._set_probe(probe)
