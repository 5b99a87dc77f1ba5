"""The paper's inner loop: take each domain's step, judge it by all domains."""

import math
from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from steelyard.batches import Tree
from steelyard.measurement import Measurement, Scores
from steelyard.probing.audit import check_halves
from steelyard.probing.optimizer_step import check_model_is_used, zero_gradients
from steelyard.probing.passes import (
    GradientRows,
    Leaves,
    Pass,
    explained_in_evaluation,
    leaves_of,
    losses_and_outputs,
    model_and_losses,
    run_pass,
)
from steelyard.probing.probe import Finding, Gradients, Shared
from steelyard.probing.replica import Replica, preserved_random_states, random_states
from steelyard.probing.sharing import Part, check_traces, share
from steelyard.probing.vote_probe import Half, Vote, VoteProbe, rest_of


class _Trial(NamedTuple):
    """One hypothetical step: the scores after it, and the passes before and after it."""

    scores: dict[str, Tensor]
    trained: Pass
    test_outputs: dict[str, Tree]
    leaves: Leaves
    shareable: bool  # whether nothing in the meta-train pass speaks against sharing its gradients


@final
class InnerLoop(VoteProbe):
    """Hypothetical losses, exactly: H_d = Σ_j L_j(meta-test half of j; θ^d).

    θ^d is where one step from the meta-train half of domain d alone leads. Each domain's batch is divided into
    m = ⌊min_d n_d / 2⌋ meta-train samples and the rest. A domain with fewer than two samples is excluded from the vote.
    The steps are taken on a replica; nothing of them reaches the live model, its buffers, the optimizer, or the random
    number generators.

    Args:
        step: how the hypothetical step is taken: `optimizer`, by the rule, state and learning rates that the optimizer
            has now (momentum, Adam's moments, weight decay, parameter groups), or `sgd`, the paper's plain θ − η∇L.
        meta_test: `eval` judges the step in evaluation mode, with batch normalisation on the running statistics that
            the step's own forward pass has updated, as the authors do; `step` in evaluation mode on the live model's
            running statistics, the same for every domain's step; `batch` in each module's current mode, on batch
            statistics. Default: `eval` where votes are counted, as in the paper, else `step`.
        split: which samples are meta-train: the `first` m (fit for shuffled batches) or m at `random`, drawn anew from
            the number of the step.
        every: measure on each n-th step only.
        warm_up: measure on each of the first steps, this many, before `every` applies.
        gather: for batches too small to divide, collect samples of consecutive batches and measure once there are this
            many of at least two domains; `True` is two, one for each half. Batch normalisation of vectors needs four.
        scaler: the outer loop's gradient scaler, so that float16 gradients of the hypothetical steps do not underflow.
        reuse: whether the meta-train gradients serve the outer step too, which then runs the meta-test halves only.
            `True`: you say that a domain's loss is a mean over its samples, that samples are processed independently
            (no batch normalisation) and that nothing random is drawn in the forward pass; a contradiction is an error.
            `detect`: where nothing contradicts it, see `reuse.reason`. Gradients are equal up to rounding.

    Reference: Sicilia et al., Multi-Domain Learning by Meta-Learning, ISBI 2021, algorithm 1, lines 3 to 7.

    >>> InnerLoop(every=4)
    InnerLoop(
      step='optimizer', meta_test='eval', split='first', every=4
      (reuse): Reuse(False)
    )
    """

    def _cast(self, vote: Vote) -> Finding:
        sharing = self.reuse.may_begin(vote.model, vote.losses, scaler=self.scaler, rows=len(vote.halves.meta_train))
        trials: list[_Trial] = []
        rows: list[Gradients] = []
        parts: list[Part] = []
        values: dict[str, Tensor] = {}
        for half in vote.halves.meta_train:
            with preserved_random_states(vote.model.parameters()):  # every trial draws the same numbers
                trial = self._try(half, vote, sharing=sharing)
            trials.append(trial)
            rows.append(trial.trained.gradients)
            parts.append(Part(half.domain, half.share, trial.trained.losses[half.domain]))
            values[half.domain] = torch.stack([score.double() for score in trial.scores.values()]).sum()
        gradients = GradientRows.separate(rows)
        leaves = trials[0].leaves
        check_model_is_used(gradients, leaves)
        scores: Scores | None = None
        if self.yields_scores:
            scores = self._scores(vote, trials, gradients, sharing=sharing)
        shared: Shared | None = None
        if all(trial.shareable for trial in trials) and self._may_share(vote, trials):
            shared = share(parts, gradients, leaves.live, rest=rest_of(vote, tests_done=False))
        return Finding(Measurement.by_name(values, vote.losses.domains), shared, scores)

    def _try(self, half: Half, vote: Vote, *, sharing: bool) -> _Trial:
        """Take the step of one domain, and judge it by all domains' scores."""
        replica = Replica(vote.model, vote.losses)
        leaves = leaves_of(replica, vote.steps.optimizer, everything=sharing)
        states = random_states(leaves.live)
        trained = run_pass(replica, {half.domain: half.samples}, leaves, scaler=self.scaler)
        shareable = False
        if sharing and not trained.overflowed:
            drawn = random_states(leaves.live) != states
            shareable = self.reuse.holds(lambda: check_traces(replica, drawn=drawn))
        scores, outputs = self._scores_after(trained.gradients, replica, leaves, vote)
        return _Trial(scores, trained, outputs, leaves, shareable)

    def _scores_after(
        self, gradients: Gradients, replica: Replica, leaves: Leaves, vote: Vote
    ) -> tuple[dict[str, Tensor], dict[str, Tree]]:
        """Step the replica along the gradients; then each domain's score on its meta-test half, and the outputs."""
        vote.steps.take(replica, leaves, gradients)
        replica.end_differentiation()
        if self.meta_test == "step":
            replica.restore_buffers()
        model, losses = model_and_losses(replica)
        if self.evaluating:
            model.eval()
        with torch.no_grad(), explained_in_evaluation(self.evaluating):
            return losses_and_outputs(model, losses, vote.halves.tests, judged=True)

    def _scores(self, vote: Vote, trials: Sequence[_Trial], gradients: GradientRows, *, sharing: bool) -> Scores:
        """Each domain's score after each step, and after the step for a gradient of zero."""
        replica = Replica(vote.model, vote.losses)
        leaves = leaves_of(replica, vote.steps.optimizer, everything=sharing)
        with preserved_random_states(vote.model.parameters()):
            zero_scores, _ = self._scores_after(zero_gradients(gradients), replica, leaves, vote)
        rows = [torch.stack(list(trial.scores.values())) for trial in trials]
        after = torch.stack([*rows, torch.stack(list(zero_scores.values()))])
        losses = torch.stack([next(iter(trial.trained.losses.values())) for trial in trials])
        exact = torch.full((len(zero_scores),), math.nan)
        scores = Scores(after=after, before=exact, losses=losses, gradient_norms=gradients.norms(leaves.stepped))
        return scores.placed(vote.losses.domains, stepped=vote.halves.names, judged=list(zero_scores))

    def _may_share(self, vote: Vote, trials: Sequence[_Trial]) -> bool:
        """Whether the meta-train halves' gradients add up to their part of the outer step's."""
        train_outputs: dict[str, Tree] = {}
        for trial in trials:
            train_outputs |= trial.trained.outputs
        # Only the loss of outputs is checked, so any step's outputs serve for the meta-test halves.
        test_outputs = trials[0].test_outputs
        return self.reuse.holds(lambda: check_halves(self, vote, train_outputs, test_outputs))
