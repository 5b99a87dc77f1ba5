"""The inner loop to first order: gradients instead of steps taken."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from steelyard.batches import Tree
from steelyard.measurement import Measurement
from steelyard.probing.direction import Direction, check_fit_for_sum, losses_of, run_halves
from steelyard.probing.expansion import expand
from steelyard.probing.gradient_probe import (
    Pass,
    check_moves,
    detached,
    explained_in_evaluation,
    is_too_small,
    leaves_of,
)
from steelyard.probing.halves import Halves, meta_tests
from steelyard.probing.hypothetical_step import Rule, innermost
from steelyard.probing.layered_pass import LayeredHalves, LayeredPass, LayeredSum, can_run_jointly
from steelyard.probing.linear_step import linear_steps
from steelyard.probing.probe import Finding, Losses
from steelyard.probing.random_numbers import preserved_random_states, random_states
from steelyard.probing.reuse import Reusing, trace_reason
from steelyard.probing.running_statistics import RunningStatistics, Statistics
from steelyard.probing.shadow import Shadow
from steelyard.probing.shared import Gradients, Shared
from steelyard.probing.vote_probe import MetaTest, Split, VoteProbe, measurement_of, share_halves, whole_of

Along = Literal["domains", "sum"]


@final
class FirstOrder(VoteProbe):
    """Hypothetical losses to first order: H_d ≈ Σ_j L_j(meta-test half of j; θ) + ⟨Δ_d, G⟩.

    Δ_d is the step that the optimizer would take from the meta-train half of domain d, G the gradient of the summed
    losses on the meta-test halves. With batch normalisation judged in evaluation mode, what the step's own forward pass
    does to the running statistics is added, to first order, too. Every domain brings its own samples, so these
    gradients cost no more arithmetic than the outer step's, and where `reuse` allows it they are the outer step's: the
    vote then costs next to nothing.

    Args:
        step: what Δ_d is: by the `optimizer`'s own rule and state, or `sgd`, the paper's plain −η∇L.
        meta_test: `eval` judges steps in evaluation mode, `batch` in the modes found.
        split: which samples are meta-train: the `first` m or m at `random`, drawn anew from the number of the step.
        every: measure on each n-th step only.
        gather: for batches too small to divide, keep samples of consecutive batches, as `InnerLoop` does.
        scaler: the outer loop's gradient scaler, so that float16 gradients do not underflow.
        reuse: whether the gradients serve the outer step too. `detect`: where nothing contradicts that a domain's loss
            is a mean over its samples, that samples do not meet in the forward pass and that nothing random is drawn
            in it (`reuse.reason` tells what did). `True`: you say so; what contradicts it is an error.
        along: how ⟨Δ_d, G⟩ is found: `domains` takes each domain's gradients, `sum` takes G and one derivative of all
            domains' losses along it. Where all layers are linear, convolutions or normalisations of each sample, and
            there is no scaler, either is read off the layers of one pass; else `domains` runs each half by itself, and
            `sum` is a finite difference. `sum` needs a `loss` and a step that is linear in the gradient (torch's SGD,
            or `step="sgd"`), and is for many domains with few samples each.

    >>> import steelyard as sy
    >>> model = nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> balancer = sy.Balancer(
    ...     ("a", "b"), loss=nn.functional.mse_loss, weighting=sy.DirichletVote("greedy"), probe=sy.FirstOrder()
    ... )
    >>> batch = {name: (torch.ones(4, 3), torch.full((4, 1), y)) for name, y in (("a", 0.0), ("b", 5.0))}
    >>> balancer(model, batch, optimizer).backward()
    >>> balancer.last.vote, balancer.probe.reuse.reason
    ('b', None)
    """

    unlayered: Tensor

    def __init__(
        self,
        *,
        step: Rule = "optimizer",
        meta_test: MetaTest = "eval",
        split: Split = "first",
        every: int = 1,
        gather: bool | int = False,
        scaler: GradScaler | None = None,
        reuse: Reusing = "detect",
        along: Along = "domains",
    ) -> None:
        super().__init__(
            step=step, meta_test=meta_test, split=split, every=every, gather=gather, scaler=scaler, reuse=reuse
        )
        if along not in get_args(Along):
            raise ValueError(f"along must be 'domains' or 'sum'; got {along!r}.")
        self.along = along
        self._verified: tuple[bool, ...] | None = None  # the state in which the network was seen to be of known layers
        self._seen: set[str] = set()  # the domains that it was run for since
        # Kept, so that a run continued from a checkpoint does the same, also one from before there was such a thing.
        self.register_buffer("unlayered", torch.zeros((), dtype=torch.bool))
        self.register_load_state_dict_pre_hook(_add_unlayered)  # type: ignore[no-untyped-call]

    def _measure(
        self, model: nn.Module, batch: Mapping[str, Tree], *, losses: Losses, optimizer: Optimizer
    ) -> Measurement | Finding:
        halves = self._halves(batch)
        if len(halves) < 2:
            return Measurement.nothing(len(losses.domains))
        optimizer = innermost(optimizer)
        if self.along == "sum":
            check_fit_for_sum(losses, linear_steps(optimizer, self.step), optimizer)
        rest = {name: (1.0, samples) for name, samples in batch.items() if name not in halves}
        with preserved_random_states(model.parameters()):
            if self._may_share(model, losses):
                for measure in self._shared_ways():
                    finding = measure(model, halves, losses, optimizer=optimizer, rest=rest)
                    if finding is not None:
                        return finding
                    if self.reuse.reason is not None:  # what one way has seen holds for the other
                        break
            measure_apart = self._sum if self.along == "sum" else self._domains
            found = measure_apart(model, halves, losses, optimizer=optimizer)
        return Measurement.nothing(len(losses.domains)) if found is None else measurement_of(found, losses.domains)

    def _shared_ways(self) -> Sequence[Callable[..., Finding | None]]:
        passes = self._shared_domains if self.along == "domains" else self._shared_sum
        return (passes,) if self.unlayered else (self._layered_pass, passes)

    def _domains(
        self, model: nn.Module, halves: dict[str, Halves], losses: Losses, *, optimizer: Optimizer
    ) -> dict[str, Tensor] | None:
        """Every domain's gradient on its meta-train half, and the sum's on all meta-test halves together."""
        judge, statistics = self._judge(model, losses)
        leaves = leaves_of(judge, optimizer, everything=False)
        trained: dict[str, Pass] = {}
        learned: dict[str, Statistics] = {}
        for name, half in halves.items():
            learner = Shadow(model, losses)
            with preserved_random_states(leaves.live):  # every candidate sees the same draws
                found = self._differentiate(
                    learner, {name: half.meta_train}, leaves_of(learner, optimizer, everything=False)
                )
            if found is None:
                return None
            trained[name], learned[name] = found, statistics.of(learner.modules[0])
        with explained_in_evaluation(self.meta_test == "eval"):
            tested = self._differentiate(judge, meta_tests(halves), leaves, besides=statistics.sought)
        if tested is None:
            return None
        values = expand(trained, [tested], judge, leaves, optimizer=optimizer, rule=self.step)
        statistics.warn_of_others(tested, partial(losses_of, judge, meta_tests(halves)))
        return {name: v + statistics.change(learned[name], tested.besides).to(v) for name, v in values.items()}

    def _shared_domains(
        self,
        model: nn.Module,
        halves: dict[str, Halves],
        losses: Losses,
        *,
        optimizer: Optimizer,
        rest: dict[str, tuple[float, Tree]],
    ) -> Finding | None:
        """The same from one pass per half, whose gradients serve the outer step as well; `None` where they cannot."""
        shadow = Shadow(model, losses, borrow=linear_steps(optimizer, self.step) is not None)
        leaves = leaves_of(shadow, optimizer, everything=True)
        before = random_states(leaves.live)
        trained: dict[str, Pass] = {}
        tested: dict[str, Pass] = {}
        for name, half in halves.items():
            for passes, samples in ((trained, half.meta_train), (tested, half.meta_test)):
                found = self._differentiate(shadow, {name: samples}, leaves)
                if found is None:
                    return None
                if found.overflowed:
                    return None
                passes[name] = found
        reason = trace_reason(shadow, drawn=random_states(leaves.live) != before)
        reason = reason or self._means_reason(model, losses, halves, trained=trained, tested=tested)
        if not self.reuse.holds(reason):
            return None
        values = expand(trained, list(tested.values()), shadow, leaves, optimizer=optimizer, rule=self.step)
        shared = share_halves(halves, trained, tested, leaves=leaves, rest=rest)
        return Finding(measurement_of(values, losses.domains), shared)

    def _judge(self, model: nn.Module, losses: Losses) -> tuple[Shadow, RunningStatistics]:
        """A stand-in in the mode of the vote, and its running statistics."""
        judge = Shadow(model, losses)
        looking = int(self.steps) < self.every or self._looks_again
        return judge, RunningStatistics(judge.modules[0], evaluating=self.meta_test == "eval", watching=looking)

    def _sum(
        self, model: nn.Module, halves: dict[str, Halves], losses: Losses, *, optimizer: Optimizer
    ) -> dict[str, Tensor] | None:
        """G on all meta-test halves together, and every domain's loss a little before and a little after θ along it."""
        judge, statistics = self._judge(model, losses)
        leaves = leaves_of(judge, optimizer, everything=False)
        with explained_in_evaluation(self.meta_test == "eval"):
            tested = self._differentiate(judge, meta_tests(halves), leaves, besides=statistics.sought)
        if tested is None:
            return None
        check_moves([tested.gradients], leaves)
        learner = Shadow(model, losses)
        learning = leaves_of(learner, optimizer, everything=False)
        direction = Direction(tested.gradients, learning, linear_steps(optimizer, self.step))
        try:
            slopes, learned = direction.central_slopes(learner, halves, statistics)
        except ValueError as error:
            if not is_too_small(error):
                raise
            return None
        level = torch.stack([loss.double() for loss in tested.losses.values()]).sum() + direction.drift
        statistics.warn_of_others(tested, partial(losses_of, judge, meta_tests(halves)))
        values = {name: level + slope for name, slope in slopes.items()}
        return {name: v + statistics.change(learned[name], tested.besides).to(v) for name, v in values.items()}

    def _layered_pass(
        self,
        model: nn.Module,
        halves: dict[str, Halves],
        losses: Losses,
        *,
        optimizer: Optimizer,
        rest: dict[str, tuple[float, Tree]],
    ) -> Finding | None:
        """Either from one pass over all halves, where all layers are linear in their parameters; else `None`."""
        # What comes back to the layers would be scaled.
        if self.scaler is not None or not losses.follow_outputs or not can_run_jointly(halves):
            return None
        shadow = Shadow(model, losses, borrow=linear_steps(optimizer, self.step) is not None)
        leaves = leaves_of(shadow, optimizer, everything=True)
        before = random_states(leaves.live)
        kind: type[LayeredPass] = LayeredHalves if self.along == "domains" else LayeredSum
        layered = kind(shadow, leaves, halves, differentiate=self._gradients)
        state = (*(module.training for module in model.modules()), *(p.requires_grad for p in shadow.parameters))
        verify = state != self._verified or self._looks_again
        seen = set() if verify else self._seen
        fit = layered.run(verify=verify, unseen=halves.keys() - seen)
        if fit is False:
            self.unlayered.fill_(True)  # not tried at every vote, in vain and at the price of a pass
        if not fit:
            return None
        self._verified, self._seen = state, seen | halves.keys()
        reason = trace_reason(shadow, drawn=random_states(leaves.live) != before)
        reason = reason or self._halves_audit(model, losses, halves)
        if not self.reuse.holds(reason):
            return None
        values, shared = layered.found(optimizer, self.step, rest=rest)
        return Finding(measurement_of(values, losses.domains), shared)

    def _shared_sum(
        self,
        model: nn.Module,
        halves: dict[str, Halves],
        losses: Losses,
        *,
        optimizer: Optimizer,
        rest: dict[str, tuple[float, Tree]],
    ) -> Finding | None:
        """The same with the outer step's own forward pass, in two halves; losses need not be means over samples."""
        shadow = Shadow(model, losses, borrow=True)
        leaves = leaves_of(shadow, optimizer, everything=True)
        before = random_states(leaves.live)
        passes = run_halves(shadow, halves)
        reason = trace_reason(shadow, drawn=random_states(leaves.live) != before)
        everything = {name: whole_of(half) for name, half in halves.items()}
        with preserved_random_states(leaves.live):
            reason = reason or self._audit(
                model,
                losses,
                everything,
                alone=lambda *_: detached(passes.whole),
                evaluating=self.meta_test == "eval",
            )
        if not self.reuse.holds(reason):
            return None
        total = self._gradients(passes.tested_sum, leaves.stand_ins, retain=True)
        check_moves([total], leaves)
        direction = Direction(total, leaves, linear_steps(optimizer, self.step))
        slopes = direction.forward_slopes(shadow, halves, passes)
        level = passes.tested_sum.detach().double() + direction.drift
        whole = passes.whole

        def combine(weights: Mapping[str, float]) -> Gradients:
            weighted = torch.stack([weights[name] * loss for name, loss in whole.items()]).sum()
            return self._gradients(weighted, leaves.stand_ins)

        shared = Shared(losses=detached(whole), combine=combine, parameters=leaves.live, rest=rest)
        values = {name: level + slope for name, slope in slopes.items()}
        return Finding(measurement_of(values, losses.domains), shared)

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        return f"{super().extra_repr()}, along={self.along!r}"


def _add_unlayered(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
    state.setdefault(f"{prefix}unlayered", torch.ones((), dtype=torch.bool))
