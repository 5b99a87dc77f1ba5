"""Every domain's gradients from the outer step's one forward and one backward pass, on networks of known layers."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from steelyard.batches import Tree, can_join
from steelyard.probing.direction import Direction
from steelyard.probing.expansion import expand
from steelyard.probing.gradient_probe import Leaves, Pass, Sought, detached, stand_ins_of
from steelyard.probing.halves import Halves
from steelyard.probing.hypothetical_step import Rule
from steelyard.probing.linear_layers import LinearLayers
from steelyard.probing.linear_step import linear_steps
from steelyard.probing.reuse import leaf_uses, mean_reason, rounding
from steelyard.probing.shadow import Shadow
from steelyard.probing.shared import Gradients, Shared, weighted_sum
from steelyard.probing.vote_probe import additive_reason, share_halves


class Differentiate(Protocol):
    """Takes gradients of a loss."""

    def __call__(self, loss: Tensor, leaves: Sought, *, retain: bool = False) -> Sequence[Tensor | None]:
        """One gradient for each leaf."""


def can_run_jointly(halves: Mapping[str, Halves]) -> bool:
    """Whether there is one pass for all samples: pairs of inputs and targets, whose inputs can be joined."""
    pairs = [half[i] for half in halves.values() for i in range(2)]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        return False
    return can_join([pair[0] for pair in pairs])


class LayeredPass(ABC):
    """One pass over all meta-train halves and all meta-test halves, with gradients read off the layers.

    Args:
        shadow: the stand-ins that are run.
        leaves: what is differentiated.
        halves: the samples, which can be joined.
        differentiate: takes gradients, and does not scale them on the way.

    Attributes:
        whole: each domain's loss over all its samples, the mean of its halves', detached.
    """

    whole: dict[str, Tensor]
    _layers: LinearLayers
    _parts: Tensor
    """The loss on each half, detached: first all meta-train halves, then all meta-test halves."""

    def __init__(
        self, shadow: Shadow, leaves: Leaves, halves: Mapping[str, Halves], *, differentiate: Differentiate
    ) -> None:
        self._shadow = shadow
        self._halves = halves
        self._leaves = leaves
        self._differentiate = differentiate
        self._model, self._losses = stand_ins_of(shadow)
        self._sizes = [[half.sizes[i] for half in halves.values()] for i in range(2)]

    def run(self, *, verify: bool, unseen: Collection[str]) -> bool | None:
        """Run forward and backward; whether gradients can be read off. `None`: not of this batch.

        Args:
            verify: compare them with others', and the network with what was made of it.
            unseen: domains whose losses have not been run before.
        """
        layers = LinearLayers.of(self._model, self._leaves, pieces=self._pieces)
        if layers is None:
            return False
        self._layers = layers
        with layers.watched():  # to the end, because checkpointing runs layers again in the backward pass
            outputs, parts = self._forward()
            ran = layers.ran_once_over(sum(map(sum, self._sizes))) and self._are_means(outputs, parts)
            ran = ran and all(self._reaches(side[name]) for side in parts for name in unseen)
            fit = ran and self._read([loss for side in parts for loss in side.values()], verify=verify)
        if fit and verify:
            fit = self._is_the_network()
        everybody = len(self._halves) == len(self._losses.domains)
        return fit if fit is not False or everybody else None

    def _forward(self) -> tuple[list[dict[str, Tree]], list[dict[str, Tensor]]]:
        """Outputs and losses of the meta-train halves, and of the meta-test halves, from one pass."""
        sides = [{name: half[i] for name, half in self._halves.items()} for i in range(2)]
        keyed = {(i, name): samples for i, side in enumerate(sides) for name, samples in side.items()}
        found = self._losses.outputs(self._model, keyed)  # type: ignore[arg-type]
        outputs = [{name: found[i, name] for name in self._halves} for i in range(2)]  # type: ignore[index]
        return outputs, [self._losses.of(each, side) for each, side in zip(outputs, sides, strict=True)]

    def _read(self, losses: Sequence[Tensor], *, verify: bool) -> bool | None:
        """Run backward, from the losses of all halves; whether what comes back can be read."""
        total = torch.stack(list(losses))
        if not self._layers.are_all_that_uses_parameters(total):
            return False
        sought = self._layers.sought
        if not sought:  # inputs that require gradients themselves
            return False
        with self._layers.listening():
            found = self._differentiate(total.sum(), sought, retain=verify)
        if not self._layers.receive(found):
            return False
        self._parts = total.detach()
        return not verify or self._agrees(total)

    def _are_means(self, outputs: Sequence[Mapping[str, Tree]], parts: Sequence[Mapping[str, Tensor]]) -> bool:
        trained, tested = (detached(side) for side in parts)
        shares = {name: half.share for name, half in self._halves.items()}
        self.whole = {name: share * trained[name] + (1 - share) * tested[name] for name, share in shares.items()}
        return additive_reason(self._losses, self._halves, trained=outputs[0], tested=outputs[1]) is None

    def _agrees(self, total: Tensor) -> bool | None:
        """Whether, for uneven weights of the halves, the gradients are those of automatic differentiation."""
        factors = [1 + 0.5 * (-1) ** i + i / len(total) for i in range(len(total))]
        weights = torch.tensor(factors, dtype=total.dtype, device=total.device)
        expected = self._differentiate((weights * total).sum(), self._leaves.stand_ins)
        if not all(bool(torch.isfinite(gradient).all()) for gradient in expected if gradient is not None):
            return None  # they say nothing of others
        return _alike(self._weighed(factors), expected)

    def _is_the_network(self) -> bool:
        """Whether the losses are those of the network when nobody watches: normalisations were replaced."""
        with torch.no_grad():
            _, parts = self._forward()
        found = {str(i): loss for i, loss in enumerate(loss for side in parts for loss in side.values())}
        mine = {str(i): loss for i, loss in enumerate(self._parts)}
        return mean_reason(found, mine, tolerance=rounding(self._parts, model=True)) is None

    @property
    @abstractmethod
    def _pieces(self) -> Sequence[int]:
        """The sizes of those runs of samples whose gradients alone are sought, if so."""

    @abstractmethod
    def _reaches(self, loss: Tensor) -> bool:
        """Whether the loss on a half depends on enough of the parameters."""

    @abstractmethod
    def found(
        self, optimizer: Optimizer, rule: Rule, *, rest: Mapping[str, tuple[float, Tree]]
    ) -> tuple[dict[str, Tensor], Shared]:
        """The hypothetical losses, and what is known of the outer ones; samples left to run are the rest."""

    @abstractmethod
    def _weighed(self, factors: Sequence[float]) -> Sequence[Tensor | None]:
        """The gradients if the loss on each half had a weight."""


@final
class LayeredHalves(LayeredPass):
    """With the gradients of each half, taken on the way; nothing else is kept."""

    def found(
        self, optimizer: Optimizer, rule: Rule, *, rest: Mapping[str, tuple[float, Tree]]
    ) -> tuple[dict[str, Tensor], Shared]:
        """By the optimizer's steps along each domain's gradients."""
        names = list(self._halves)
        each = zip([*names, *names], self._parts, self._layers.apart(), strict=True)
        passes = [Pass({name: loss}, None, gradients) for name, loss, gradients in each]
        trained = dict(zip(names, passes[: len(names)], strict=True))
        tested = dict(zip(names, passes[len(names) :], strict=True))
        leaves = self._leaves
        values = expand(trained, list(tested.values()), self._shadow, leaves, optimizer=optimizer, rule=rule)
        return values, share_halves(self._halves, trained, tested, leaves=leaves, rest=rest)

    @property
    def _pieces(self) -> Sequence[int]:
        return [size for side in self._sizes for size in side]

    def _reaches(self, loss: Tensor) -> bool:
        """All of them: an optimizer does not step what has no gradient, and here it would be zero instead."""
        return {id(leaf) for leaf in self._leaves.stand_ins} <= set(map(id, leaf_uses(loss)))

    def _weighed(self, factors: Sequence[float]) -> Sequence[Tensor | None]:
        return weighted_sum(list(zip(factors, self._layers.apart(), strict=True)))


@final
class LayeredSum(LayeredPass):
    """With gradients under any weights of the halves, and along any direction, known afterwards."""

    def found(
        self, optimizer: Optimizer, rule: Rule, *, rest: Mapping[str, tuple[float, Tree]]
    ) -> tuple[dict[str, Tensor], Shared]:
        """By the derivative of all meta-train losses along G, for steps that are linear in the gradient."""
        first, count = sum(self._sizes[0]), sum(self._sizes[1])
        total = self._layers.gradients(None, chosen=slice(first, first + count))  # G
        direction = Direction(total, self._leaves, linear_steps(optimizer, rule))
        along = direction.full(len(self._leaves.live))
        slopes = self._layers.slopes(along, chosen=slice(0, first)).double().split_with_sizes(self._sizes[0])
        level = self._parts[len(self._halves) :].double().sum() + direction.drift
        values = {n: level + direction.factor * rows.sum() for n, rows in zip(self._halves, slopes, strict=True)}
        return values, Shared(losses=self.whole, combine=self._outer, parameters=self._leaves.live, rest=rest)

    def _outer(self, weights: Mapping[str, float]) -> Sequence[Tensor | None]:
        """The gradients of Σ_d λ_d L_d."""
        shares = {name: half.share for name, half in self._halves.items()}
        train = [weights[name] * share for name, share in shares.items()]
        test = [weights[name] * (1 - share) for name, share in shares.items()]
        return self._weighed([*train, *test])

    @property
    def _pieces(self) -> Sequence[int]:
        return ()

    def _reaches(self, loss: Tensor) -> bool:  # noqa: ARG002
        return True

    def _weighed(self, factors: Sequence[float]) -> Sequence[Tensor | None]:
        sizes = torch.tensor([*self._sizes[0], *self._sizes[1]])
        like = self._leaves.live[0]
        rows = torch.tensor(factors, dtype=like.dtype).repeat_interleave(sizes).to(like.device)
        return self._layers.gradients(rows)


def _alike(found: Gradients, expected: Gradients) -> bool:
    """Whether gradients are the same up to rounding, of which one that should vanish has nothing else."""
    scales = [0.0 if g is None or not g.numel() else float(g.abs().max()) for g in expected]
    for mine, theirs, scale in zip(found, expected, scales, strict=True):
        if mine is None or theirs is None:
            return False
        tolerance = 1e4 * torch.finfo(mine.dtype).eps * (scale + max(scales) / 100)
        if mine.numel() and not float((mine - theirs).abs().max()) <= tolerance:
            return False
    return True
