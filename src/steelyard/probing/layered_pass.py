"""Every domain's gradients from the outer step's one forward and one backward pass, on networks of known layers."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from steelyard.batches import detach_samples, join_samples
from steelyard.probing.gradient_probe import Leaves, Pass, Sought, detached, stand_ins_of
from steelyard.probing.halves import Halves
from steelyard.probing.linear_layers import LinearLayers, alike
from steelyard.probing.reuse import mean_reason, rounding
from steelyard.probing.shadow import Shadow
from steelyard.probing.shared import weighted_sum
from steelyard.probing.vote_probe import whole_of


class Differentiate(Protocol):
    """Takes gradients of a loss."""

    def __call__(self, loss: Tensor, leaves: Sought, *, retain: bool = False) -> Sequence[Tensor | None]:
        """One gradient for each leaf."""


class LayeredPass:
    """One pass over all meta-train halves and all meta-test halves, with gradients known sample by sample.

    Args:
        shadow: the stand-ins that are run.
        leaves: what is differentiated.
        halves: the samples.
        differentiate: takes gradients.
        apart: the gradients of each half are all that is wanted; they are taken on the way, and nothing else is kept.

    Attributes:
        whole: each domain's loss over all its samples, the mean of its halves', detached.
    """

    whole: dict[str, Tensor]

    def __init__(
        self,
        shadow: Shadow,
        leaves: Leaves,
        halves: Mapping[str, Halves],
        *,
        differentiate: Differentiate,
        apart: bool,
    ) -> None:
        self._halves = halves
        self._leaves = leaves
        self._differentiate = differentiate
        self._model, self._losses = stand_ins_of(shadow)
        self._apart = apart
        self._sizes = [[half.sizes[i] for half in halves.values()] for i in range(2)]
        self._layers = LinearLayers.of(
            self._model, leaves, pieces=[size for side in self._sizes for size in side] if apart else ()
        )

    def run(self, *, verify: bool) -> bool:
        """Run forward and backward; whether the gradients can be read off, checked against others if to be verified."""
        if self._layers is None:
            return False
        sides = [{name: half[i] for name, half in self._halves.items()} for i in range(2)]
        with self._layers.watched():  # to the end, because checkpointing runs layers again in the backward pass
            keyed = {(i, name): samples for i, side in enumerate(sides) for name, samples in side.items()}
            outputs = self._losses.outputs(self._model, keyed)  # type: ignore[arg-type]
            if not self._layers.ran_once_over(sum(map(sum, self._sizes))):
                return False
            halves = [{name: outputs[i, name] for name in self._halves} for i in range(2)]  # type: ignore[index]
            parts = [self._losses.of(half, side) for half, side in zip(halves, sides, strict=True)]
            if not self._are_means(halves, parts):
                return False
            return self._read(torch.stack([loss for side in parts for loss in side.values()]), verify=verify)

    def _read(self, total: Tensor, *, verify: bool) -> bool:
        """Run backward, from the losses of all halves; whether what comes back can be read."""
        assert self._layers is not None  # noqa: S101
        if not self._layers.are_all_that_uses_parameters(total):
            return False
        deltas = self._differentiate(total.sum(), self._layers.sought, retain=verify)
        if not self._layers.receive(deltas):
            return False
        self._parts = total.detach()
        return not verify or self._agrees(total)

    @property
    def level(self) -> Tensor:
        """The summed loss on the meta-test halves."""
        return self._parts[len(self._halves) :].double().sum()

    def passes(self) -> tuple[dict[str, Pass], dict[str, Pass]]:
        """What a pass over each domain's meta-train half, and one over each meta-test half, would have found."""
        assert self._layers is not None  # noqa: S101
        names = list(self._halves)
        found = [
            Pass({name: loss}, None, gradients)
            for name, loss, gradients in zip([*names, *names], self._parts, self._layers.apart(), strict=True)
        ]
        return dict(zip(names, found, strict=False)), dict(zip(names, found[len(names) :], strict=True))

    def direction_gradients(self) -> Sequence[Tensor | None]:
        """G: the gradients of the summed losses on the meta-test halves."""
        assert self._layers is not None  # noqa: S101
        first, count = sum(self._sizes[0]), sum(self._sizes[1])
        return self._layers.gradients(None, chosen=slice(first, first + count))

    def slopes(self, direction: Sequence[Tensor | None]) -> dict[str, Tensor]:
        """⟨g_d, direction⟩ for each domain, g_d on its meta-train half."""
        assert self._layers is not None  # noqa: S101
        each = self._layers.slopes(direction, chosen=slice(0, sum(self._sizes[0]))).double()
        return {name: rows.sum() for name, rows in zip(self._halves, torch.split(each, self._sizes[0]), strict=True)}

    def gradients(self, weights: Mapping[str, float]) -> Sequence[Tensor | None]:
        """Those of Σ_d λ_d L_d."""
        shares = {name: half.share for name, half in self._halves.items()}
        train = [weights[name] * share for name, share in shares.items()]
        test = [weights[name] * (1 - share) for name, share in shares.items()]
        return self._weighed([*train, *test])

    def _weighed(self, factors: Sequence[float]) -> Sequence[Tensor | None]:
        assert self._layers is not None  # noqa: S101
        if self._apart:
            return weighted_sum(list(zip(factors, self._layers.apart(), strict=True)))
        sizes = torch.tensor([*self._sizes[0], *self._sizes[1]])
        rows = torch.tensor(factors, dtype=self._dtype).repeat_interleave(sizes).to(self._device)
        return self._layers.gradients(rows)

    def _are_means(self, outputs: Sequence[Mapping[str, object]], parts: Sequence[Mapping[str, Tensor]]) -> bool:
        with torch.no_grad():
            joined = {name: join_samples([detach_samples(side[name]) for side in outputs]) for name in self._halves}
            found = self._losses.of(joined, {name: whole_of(half) for name, half in self._halves.items()})
        trained, tested = (detached(side) for side in parts)
        shares = {name: half.share for name, half in self._halves.items()}
        self.whole = {name: share * trained[name] + (1 - share) * tested[name] for name, share in shares.items()}
        return mean_reason(found, self.whole, tolerance=rounding(next(iter(found.values())), model=False)) is None

    def _agrees(self, total: Tensor) -> bool:
        """Whether, for uneven weights of the halves, the gradients are those of automatic differentiation."""
        factors = [1 + 0.5 * (-1) ** i + i / len(total) for i in range(len(total))]
        weights = torch.tensor(factors, dtype=total.dtype, device=total.device)
        expected = self._differentiate((weights * total).sum(), self._leaves.stand_ins)
        return alike(self._weighed(factors), expected)

    @property
    def _dtype(self) -> torch.dtype:
        return self._leaves.live[0].dtype

    @property
    def _device(self) -> torch.device:
        return self._leaves.live[0].device
