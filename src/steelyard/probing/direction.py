"""How every domain's loss changes along one direction in parameter space, for any number of domains."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from steelyard.batches import Tree, detach_samples, join_samples
from steelyard.probing.gradient_probe import Leaves, stand_ins_of
from steelyard.probing.halves import Halves, meta_tests, meta_trains
from steelyard.probing.linear_step import LinearStep
from steelyard.probing.probe import Losses
from steelyard.probing.random_numbers import preserved_random_states
from steelyard.probing.running_statistics import RunningStatistics, Statistics, mean_statistics
from steelyard.probing.shadow import Shadow
from steelyard.probing.vote_probe import whole_of


class Passes(NamedTuple):
    """Both halves' forward passes at θ: the summed meta-test loss and the whole losses with graphs, and the base."""

    tested_sum: Tensor
    whole: dict[str, Tensor]
    trained: dict[str, Tensor]


def run_halves(shadow: Shadow, halves: Mapping[str, Halves]) -> Passes:
    """The outer forward pass, as one over all meta-train and one over all meta-test halves."""
    model, losses = stand_ins_of(shadow)
    trains, tests = meta_trains(halves), meta_tests(halves)
    outputs = [losses.outputs(model, side) for side in (trains, tests)]
    tested = losses.of(outputs[1], tests)
    joined = {name: join_samples([side[name] for side in outputs]) for name in halves}
    with torch.no_grad():
        trained = losses.of({name: detach_samples(output) for name, output in outputs[0].items()}, trains)
    whole = losses.of(joined, {name: whole_of(half) for name, half in halves.items()})
    return Passes(torch.stack(list(tested.values())).sum(), whole, trained)


class Direction:
    """v, with ⟨Δ_d, G⟩ = factor · ⟨g_d, v⟩ + drift for steps that are linear in the gradient.

    v is G where all parameters' steps have one factor; else it is G with each parameter's factor in it.

    All ⟨g_d, v⟩ together are one directional derivative of the vector of meta-train losses, here a finite difference:
    no gradient of a single domain is taken. It is as long as a small part of θ, so that curvature and rounding both
    stay small beside it.

    Attributes:
        factor: the steps' common one, or 1.
        drift: what momentum and weight decay add, the same for all domains.
    """

    def __init__(
        self, total: Sequence[Tensor | None], leaves: Leaves, steps: Mapping[Tensor, LinearStep] | None
    ) -> None:
        self._where: list[int] = []
        self._along: list[Tensor] = []
        drifts, factors = [], []
        assert steps is not None  # noqa: S101
        with torch.no_grad():
            for i, (live, g) in enumerate(zip(leaves.live, total, strict=True)):
                step = steps.get(live)
                if g is None or step is None:
                    continue
                self._where.append(i)
                self._along.append(g.to_dense() if g.is_sparse else g)
                factors.append(step.factor)
                if (drift := step.drift(live, g)) is not None:
                    drifts.append(drift)
            self.factor = factors[0] if len(set(factors)) == 1 else 1.0
            if len(set(factors)) > 1:
                self._along = list(torch._foreach_mul(self._along, factors))
        self.drift = torch.stack(drifts).double().sum() if drifts else torch.zeros((), dtype=torch.float64)
        self._stand_ins = [leaves.stand_ins[i] for i in self._where]

    @cached_property
    def _scale(self) -> float:
        """How far the difference reaches along v: balances what curvature and what rounding take from it."""
        with torch.no_grad():
            theta = torch.stack(torch._foreach_norm(self._stand_ins)).norm()
            length = torch.stack(torch._foreach_norm(self._along)).norm()
        reach = 0.2 * torch.finfo(self._along[0].dtype).eps ** 0.5 * float(theta)
        return reach / float(length) if float(length) > 0 else 0.0

    def full(self, count: int) -> list[Tensor | None]:
        """v, one tensor for each of as many parameters; zeros for those that are not stepped."""
        placed: dict[int, Tensor] = dict(zip(self._where, self._along, strict=True))
        return [placed.get(i) for i in range(count)]

    def forward_slopes(self, shadow: Shadow, halves: Mapping[str, Halves], passes: Passes) -> dict[str, Tensor]:
        """All factor · ⟨g_d, v⟩ from one more pass without gradients, beside what is known at θ."""
        ahead = Shadow(*shadow.modules)
        moved: list[Tensor] = [ahead.parameters[stand_in] for stand_in in self._stand_ins]
        with torch.no_grad():
            torch._foreach_add_(moved, self._along, alpha=self._scale)
            found = losses_of(ahead, meta_trains(halves))
        return {name: self._slope(found[name] - passes.trained[name]) for name in halves}

    def central_slopes(
        self, shadow: Shadow, halves: Mapping[str, Halves], statistics: RunningStatistics
    ) -> tuple[dict[str, Tensor], dict[str, Statistics]]:
        """All factor · ⟨g_d, v⟩ from passes without gradients, on either side of θ.

        One for each domain, because samples may meet; and the running statistics that these learned, on average.
        """
        losses: dict[str, list[Tensor]] = {name: [] for name in halves}
        learned: dict[str, list[Statistics]] = {name: [] for name in halves}
        with torch.no_grad():
            for move in (self._scale, -2 * self._scale):
                torch._foreach_add_(self._stand_ins, self._along, alpha=move)
                for name, samples in meta_trains(halves).items():
                    candidate = Shadow(*shadow.modules, borrow=True)  # whose draws and buffers are nobody else's
                    with preserved_random_states(self._stand_ins):
                        losses[name].append(losses_of(candidate, {name: samples})[name])
                    learned[name].append(statistics.of(candidate.modules[0]))
        slopes = {name: self._slope(ahead - behind) / 2 for name, (ahead, behind) in losses.items()}
        return slopes, {name: mean_statistics(sides) for name, sides in learned.items()}

    def _slope(self, difference: Tensor) -> Tensor:
        return self.factor * difference.double() / self._scale if self._scale else torch.zeros_like(difference).double()


def losses_of(shadow: Shadow, batch: Mapping[str, Tree]) -> dict[str, Tensor]:
    """Each domain's loss, from a pass of its stand-ins."""
    model, losses = shadow.modules
    found: dict[str, Tensor] = losses(model, batch)
    return found


def check_fit_for_sum(losses: Losses, steps: object, optimizer: Optimizer) -> None:
    """Refuse losses, steps and precisions whose change along one direction cannot be seen."""
    if not losses.follow_outputs:
        raise ValueError("along='sum' needs loss=, not objective=, to see how the losses change along one direction.")
    if steps is None:
        raise ValueError(
            f"along='sum' needs a step that is linear in the gradient; {type(optimizer).__name__}'s is not: "
            "use along='domains', or step='sgd'."
        )
    if torch.is_autocast_enabled(next(iter(optimizer.param_groups[0]["params"])).device.type):
        raise ValueError(
            "along='sum' takes a finite difference, for which autocast is too coarse: use along='domains'."
        )
