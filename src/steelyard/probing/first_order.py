"""First-order votes: gradients instead of steps taken."""

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from steelyard.batches import Tree
from steelyard.measurement import Measurement, Scores
from steelyard.probing.audit import check_halves
from steelyard.probing.half_passes import HalfPasses, Vmapping, run_one_by_one
from steelyard.probing.optimizer_step import Rule, check_model_is_used
from steelyard.probing.passes import (
    GradientRows,
    Leaves,
    Pass,
    explained_in_evaluation,
    leaves_of,
    model_and_losses,
    run_pass,
)
from steelyard.probing.probe import Finding, Gradients
from steelyard.probing.replica import (
    Replica,
    is_sharded,
    preserved_random_states,
    random_states,
    saved_random_states,
)
from steelyard.probing.sharded.votes import measure_sharded, refuse_to_share
from steelyard.probing.sharing import CannotShareError, Part, Reusing, check_traces, share
from steelyard.probing.vote_probe import Half, MetaTest, Split, Vote, VoteProbe, rest_of


@final
class FirstOrder(VoteProbe):
    """First-order hypothetical losses: H_d ≈ Σ_j (L_j + ⟨Δ_d, ∇L_j⟩), on the meta-test half of each domain j.

    Δ_d is the step that the optimizer would take from the meta-train half of domain d. Every domain brings its own
    samples, so these gradients cost no more arithmetic than the outer step's. Where `reuse` allows it they are the
    outer step's, and the vote costs next to nothing. With a judge of the user's own its gradient takes the place of
    ∇L_j; that costs a pass over the meta-test halves, which only the meta-train halves' gradients save.

    There are three ways to run the halves. Where gradients are shared and passes are small, all halves are run at once
    by `torch.func.vmap`. Where they are shared and `vmap` does not work or does not pay, each half is run by itself
    (`vmapping.reason` says why). Where nothing can be shared, the vote's passes are separate from the outer step's.

    With dropout, a shared vote judges in training mode, because its passes are the outer step's. Each draws its own
    masks, and after the balancer's call the random generators are where these passes have left them.

    With batch normalisation the step alone is judged, on running statistics that are left unchanged. What the step's
    own forward pass does to them is not part of a first-order vote: `InnerLoop` includes it.

    A model that `fully_shard` has divided over ranks is measured by passes on the live model, which leave no trace. All
    ranks then measure together, and nothing is shared with the outer step.

    Args:
        step: what Δ_d is: by the `optimizer`'s own rule and state, or `sgd`, the paper's plain −η∇L.
        meta_test: `eval` and `step` judge steps in evaluation mode, `batch` in each module's current mode.
        split: which samples are meta-train: the `first` m or m at `random`, drawn anew from the number of the step.
        every: measure on each n-th step only.
        warm_up: measure on each of the first steps, this many, before `every` applies.
        gather: for batches too small to divide, collect samples of consecutive batches, as `InnerLoop` does.
        scaler: the outer loop's gradient scaler, so that float16 gradients do not underflow.
        reuse: whether the gradients serve the outer step too. `detect`: where nothing contradicts that a domain's loss
            is a mean over its samples, that samples are processed independently and that nothing random but dropout
            is drawn in the forward pass (`reuse.reason` says what did). `True`: you say so; a contradiction is an
            error.

    >>> import steelyard as sy
    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> balancer = sy.Balancer(
    ...     ("a", "b"),
    ...     loss=torch.nn.functional.mse_loss,
    ...     weighting=sy.DirichletVote("greedy"),
    ...     probe=sy.FirstOrder(),
    ... )
    >>> batch = {name: (torch.ones(4, 3), torch.full((4, 1), y)) for name, y in (("a", 0.0), ("b", 5.0))}
    >>> balancer(model, batch, optimizer).backward()
    >>> balancer.last.vote, balancer.probe.reuse.reason, balancer.probe.vmapping.reason
    ('b', None, None)
    """

    def __init__(
        self,
        *,
        step: Rule = "optimizer",
        meta_test: MetaTest | None = None,
        split: Split = "first",
        every: int = 1,
        warm_up: int = 0,
        gather: bool | int = False,
        scaler: GradScaler | None = None,
        reuse: Reusing = "detect",
    ) -> None:
        super().__init__(
            step=step,
            meta_test=meta_test,
            split=split,
            every=every,
            warm_up=warm_up,
            gather=gather,
            scaler=scaler,
            reuse=reuse,
        )
        self.vmapping = Vmapping()

    def _cast(self, vote: Vote) -> Finding:
        if is_sharded(vote.model):
            self.reuse.holds(refuse_to_share, lasting=False)
            return measure_sharded(self, vote)
        finding: Finding | None = None
        # Gradients that are in memory until the weights are known, at most.
        rows = len(vote.halves.meta_train) + len(vote.halves.meta_test)
        if self.reuse.may_begin(vote.model, vote.losses, scaler=self.scaler, rows=rows, dropout=True):
            finding = self._measure_shared(vote)
        if finding is None:
            return self._measure_apart(vote)
        return finding

    def _measure_shared(self, vote: Vote) -> Finding | None:
        """The vote and the outer step's gradients; `None` where the gradients cannot serve the outer step."""
        # Only steps that are not linear in the gradient are taken on the replica.
        replica = Replica(vote.model, vote.losses, borrow=vote.steps.are_linear)
        leaves = leaves_of(replica, vote.steps.optimizer, everything=True)
        # Gradients on the meta-test halves are part of the outer step's where the losses are what judges.
        tests_shared = not vote.halves.held_out and not vote.losses.have_judge
        halves = vote.halves.meta_train
        if tests_shared:
            halves = vote.halves.meta_train + vote.halves.meta_test
        states = random_states(leaves.live)
        passes = self._run_halves(halves, vote, replica, leaves)
        drawn = random_states(leaves.live) != states
        advance_generators = saved_random_states(leaves.live)
        count = len(vote.halves.meta_train)
        trained, tested = passes.part(0, count), passes.part(count, len(halves))
        if not tests_shared:
            tested = self._run_tests(vote, everything=True)
        if passes.overflowed or not self.reuse.holds(lambda: self._check(vote, trained, tested, replica, drawn=drawn)):
            return None
        parts = []
        for half, loss in zip(halves, passes.losses, strict=True):
            parts.append(Part(half.domain, half.share, loss))
        shared = share(parts, passes.gradients, leaves.live, rest=rest_of(vote, tests_done=tests_shared))
        shared = replace(shared, advance_generators=advance_generators)
        return replace(self._judge(vote, trained, tested, replica, leaves), shared=shared)

    def _measure_apart(self, vote: Vote) -> Finding:
        """The vote alone: gradients on the meta-train halves, then those of what steps are judged by."""
        losses: list[Tensor] = []
        rows: list[Gradients] = []
        for half in vote.halves.meta_train:
            replica, leaves = _fresh_replica(vote, everything=False)
            with preserved_random_states(leaves.live):  # every domain's pass draws the same numbers
                half_pass = run_pass(replica, {half.domain: half.samples}, leaves, scaler=self.scaler)
            losses.append(half_pass.losses[half.domain])
            rows.append(half_pass.gradients)
        trained = HalfPasses(losses, [], GradientRows.separate(rows))
        tested = self._run_tests(vote, everything=False)
        replica, leaves = _fresh_replica(vote, everything=False)
        return self._judge(vote, trained, tested, replica, leaves)

    def _run_halves(self, halves: Sequence[Half], vote: Vote, replica: Replica, leaves: Leaves) -> HalfPasses:
        """One pass over each half: all at once where that works and pays, else one by one."""
        if self.scaler is None and self.vmapping.applies_to(vote.model, vote.losses, halves):
            return self.vmapping.run(replica, halves, leaves, vote_number=self.vote_number)
        return run_one_by_one(replica, halves, leaves, scaler=self.scaler)

    def _run_tests(self, vote: Vote, *, everything: bool) -> HalfPasses:
        """Passes over the meta-test halves: one for each domain's score if scores are due, else one for their sum."""
        judged = [list(vote.halves.tests)]
        if self.yields_scores:
            judged = [[name] for name in vote.halves.tests]
        losses: list[Tensor] = []
        outputs: list[Tree] = []
        rows: list[Gradients] = []
        for names in judged:
            test_pass = self._run_test(names, vote, everything=everything)
            losses += [test_pass.losses[name] for name in names]
            if test_pass.outputs:  # an objective has none
                outputs += [test_pass.outputs[name] for name in names]
            rows.append(test_pass.gradients)
        return HalfPasses(losses, outputs, GradientRows.separate(rows))

    def _run_test(self, names: Sequence[str], vote: Vote, *, everything: bool) -> Pass:
        """One pass over meta-test halves, with the gradients of the scores of the named domains."""
        replica, leaves = _fresh_replica(vote, everything=everything)
        samples = vote.halves.tests
        if self.evaluating:  # on batch statistics, by contrast, a domain's score depends on the others' samples
            model_and_losses(replica)[0].eval()
            samples = {name: samples[name] for name in names}
        with explained_in_evaluation(self.evaluating):
            test_pass = run_pass(replica, samples, leaves, scaler=self.scaler, judged=names)
        if vote.losses.have_judge and all(gradient is None for gradient in test_pass.gradients):
            raise ValueError(
                "FirstOrder needs the gradient of the judge, and the judge has none: "
                "pass probe=sy.InnerLoop(), which only evaluates it."
            )
        return test_pass

    def _check(self, vote: Vote, trained: HalfPasses, tested: HalfPasses, replica: Replica, *, drawn: bool) -> None:
        """Refuse to share where the outer loss is not the mean of the halves' losses."""
        check_traces(replica, drawn=False)  # numbers may be drawn by dropout; whether by something else, the audit says
        if self.vmapping.saw_data_dependence and self.reuse.setting == "detect":
            raise CannotShareError("the forward pass branches on values of the batch, so that samples may meet")
        # Without strict: an objective has no outputs.
        train_outputs = dict(zip(vote.halves.names, trained.outputs, strict=False))
        test_outputs = dict(zip(vote.halves.tests, tested.outputs, strict=False))
        check_halves(self, vote, train_outputs, test_outputs, drawn=drawn)

    def _judge(self, vote: Vote, trained: HalfPasses, tested: HalfPasses, replica: Replica, leaves: Leaves) -> Finding:
        """The hypothetical losses, and the scores if they are due, from the gradients on all halves."""
        check_model_is_used(trained.gradients, leaves)
        test_gradients = tested.gradients
        if not self.yields_scores:
            # Only sums are needed, and ⟨Δ, Σ_j h_j⟩ costs less than Σ_j ⟨Δ, h_j⟩.
            total = test_gradients.weighted_sum([1.0] * test_gradients.count)
            test_gradients = GradientRows.separate([total])
        slopes = vote.steps.slopes(trained.gradients, test_gradients, replica, leaves, zero_step=self.yields_scores)
        before = torch.stack([loss.double() for loss in tested.losses]).cpu()
        sums = before.sum() + slopes.sum(1)
        # Without strict: the last row may be the zero step's.
        values = dict(zip(vote.halves.names, sums, strict=False))
        measurement = Measurement.by_name(values, vote.losses.domains)
        if not self.yields_scores:
            return Finding(measurement)
        scores = Scores(
            after=before + slopes,
            before=before,
            losses=torch.stack(trained.losses),
            gradient_norms=trained.gradients.norms(leaves.stepped),
        )
        placed = scores.placed(vote.losses.domains, stepped=vote.halves.names, judged=list(vote.halves.tests))
        return Finding(measurement, scores=placed)


def _fresh_replica(vote: Vote, *, everything: bool) -> tuple[Replica, Leaves]:
    """A replica that no pass has run on, and its parameters that the optimizer steps, or everything trainable."""
    replica = Replica(vote.model, vote.losses)
    return replica, leaves_of(replica, vote.steps.optimizer, everything=everything)
