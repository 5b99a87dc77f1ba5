"""The paper's inner loop: take each domain's step, see how all domains fare."""

from collections.abc import Mapping
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from steelyard.batches import Tree
from steelyard.measurement import Measurement
from steelyard.probing.gradient_probe import (
    Leaves,
    Pass,
    check_moves,
    explained_in_evaluation,
    give_gradients,
    leaves_of,
    stand_ins_of,
)
from steelyard.probing.halves import Halves, meta_tests
from steelyard.probing.hypothetical_step import RULES, Rule, innermost
from steelyard.probing.probe import Finding, Losses
from steelyard.probing.random_numbers import preserved_random_states, random_states
from steelyard.probing.reuse import Reusing, trace_reason
from steelyard.probing.shadow import Shadow
from steelyard.probing.shared import Part, Shared, share_parts
from steelyard.probing.vote_probe import MetaTest, Split, VoteProbe, measurement_of


class _Trial(NamedTuple):
    """What one hypothetical step has shown."""

    hypothetical: Tensor
    learned: Pass
    tested: Pass
    leaves: Leaves
    trace: str | None
    """Why the pass that it learned from cannot stand for a part of the outer one."""


@final
class InnerLoop(VoteProbe):
    """Hypothetical losses, exactly: H_d = Σ_j L_j(meta-test half of j; θ^d).

    θ^d is where one step from the meta-train half of domain d alone leads. Each domain's batch is divided into
    m = ⌊min_d n_d / 2⌋ meta-train samples and the rest. A domain with fewer than two samples sits the vote out. The
    steps are taken on shadow parameters; nothing of them reaches the live model, its buffers, the optimizer, or the
    random number generators.

    Args:
        step: how the hypothetical step is taken: `optimizer`, by the rule, state and learning rates that the optimizer
            has now (momentum, Adam's moments, weight decay, parameter groups), or `sgd`, the paper's plain θ − η∇L.
        meta_test: `eval` judges the step in evaluation mode, with batch normalisation on the running statistics that
            the step's own forward pass has updated, as the authors do; `batch` in the modes found, on batch statistics.
        split: which samples are meta-train: the `first` m (fit for shuffled batches) or m at `random`, drawn anew from
            the number of the step.
        every: measure on each n-th step only.
        gather: for batches too small to divide, keep samples of consecutive batches and measure once there are this
            many of at least two domains; `True` is two, one for each half. Batch normalisation of vectors needs four.
        scaler: the outer loop's gradient scaler, so that float16 gradients of the hypothetical steps do not underflow.
        reuse: whether the meta-train gradients serve the outer step too, which then runs the meta-test halves only.
            `True`: you say that a domain's loss is a mean over its samples, that samples do not meet in the forward
            pass (no batch normalisation) and that nothing random is drawn in it; what contradicts this is an error.
            `detect`: where nothing contradicts it, see `reuse.reason`. Gradients are equal up to rounding.

    Reference: Sicilia et al., Multi-Domain Learning by Meta-Learning, ISBI 2021, algorithm 1, lines 3 to 7.

    >>> InnerLoop(every=4)
    InnerLoop(
      step='optimizer', meta_test='eval', split='first', every=4
      (reuse): Reuse(False)
    )
    """

    def __init__(
        self,
        *,
        step: Rule = "optimizer",
        meta_test: MetaTest = "eval",
        split: Split = "first",
        every: int = 1,
        gather: bool | int = False,
        scaler: GradScaler | None = None,
        reuse: Reusing = False,
    ) -> None:
        super().__init__(
            step=step, meta_test=meta_test, split=split, every=every, gather=gather, scaler=scaler, reuse=reuse
        )

    def _measure(
        self, model: nn.Module, batch: Mapping[str, Tree], *, losses: Losses, optimizer: Optimizer
    ) -> Measurement | Finding:
        halves = self._halves(batch)
        if len(halves) < 2:
            return Measurement.nothing(len(losses.domains))
        sharing = self._may_share(model, losses)
        trials: dict[str, _Trial] = {}
        for name in halves:
            with preserved_random_states(model.parameters()):
                trial = self._try(name, halves, Shadow(model, losses), innermost(optimizer), sharing=sharing)
            if trial is None:
                return Measurement.nothing(len(losses.domains))
            trials[name] = trial
        check_moves([trial.learned.gradients for trial in trials.values()], next(iter(trials.values())).leaves)
        measurement = measurement_of({name: trial.hypothetical for name, trial in trials.items()}, losses.domains)
        shared = self._share(model, losses, batch, halves=halves, trials=trials) if sharing else None
        return Finding(measurement, shared)

    def _try(
        self, favoured: str, halves: dict[str, Halves], shadow: Shadow, optimizer: Optimizer, *, sharing: bool
    ) -> _Trial | None:
        """Take the favoured domain's step, and see how all domains fare."""
        leaves = leaves_of(shadow, optimizer, everything=sharing)
        before = random_states(leaves.live) if sharing else []
        learned = self._differentiate(shadow, {favoured: halves[favoured].meta_train}, leaves)
        if learned is None:
            return None
        trace = trace_reason(shadow, drawn=random_states(leaves.live) != before) if sharing else None
        give_gradients(leaves, learned.gradients, optimizer)
        shadow.end_differentiation()
        RULES[self.step](optimizer, shadow.parameters)
        model, losses = stand_ins_of(shadow)
        if self.meta_test == "eval":
            model.eval()
        tests = meta_tests(halves)
        with torch.no_grad(), explained_in_evaluation(self.meta_test == "eval"):
            outputs = losses.outputs(model, tests) if losses.follow_outputs else None
            tested = losses(model, tests) if outputs is None else losses.of(outputs, tests)
            hypothetical = torch.stack([loss.double() for loss in tested.values()]).sum()
        return _Trial(hypothetical, learned, Pass(tested, outputs, ()), leaves, trace)

    def _share(
        self,
        model: nn.Module,
        losses: Losses,
        batch: Mapping[str, Tree],
        *,
        halves: dict[str, Halves],
        trials: dict[str, _Trial],
    ) -> Shared | None:
        """The meta-train halves' part of the outer losses, unless something contradicts that they add up."""
        if any(trial.learned.overflowed for trial in trials.values()):
            return None
        reason = next((trial.trace for trial in trials.values() if trial.trace), None)
        learned = {name: trial.learned for name, trial in trials.items()}
        # The loss of outputs is checked, so any step's outputs will do for the meta-test halves.
        tested = dict.fromkeys(halves, next(iter(trials.values())).tested)
        reason = reason or self._means_reason(model, losses, halves, trained=learned, tested=tested)
        if not self.reuse.holds(reason):
            return None
        parts = [Part(name, halves[name].share, p.losses[name], p.gradients) for name, p in learned.items()]
        rest = {name: (1 - halves[name].share, halves[name].meta_test) for name in halves}
        rest |= {name: (1.0, samples) for name, samples in batch.items() if name not in halves}
        return share_parts(parts, next(iter(trials.values())).leaves.live, rest=rest)
