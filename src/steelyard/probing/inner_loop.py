"""The paper's inner loop: take each domain's step, see how all domains fare."""

from collections.abc import Mapping
from typing import ClassVar, Literal, final, get_args

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from steelyard.batches import Tree
from steelyard.measurement import Measurement, Statistic
from steelyard.probing.gathering import Gathering
from steelyard.probing.halves import Halves, halve
from steelyard.probing.hypothetical_step import STEPS, Step, innermost
from steelyard.probing.probe import Losses, Probe
from steelyard.probing.random_numbers import preserved_random_states
from steelyard.probing.shadow import Shadow

MetaTest = Literal["eval", "batch"]
Split = Literal["first", "random"]


@final
class InnerLoop(Probe):
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
        gather: with batches too small to divide, keep samples from batch to batch until every domain seen has two.
        scaler: the outer loop's gradient scaler, so that float16 gradients of the hypothetical steps do not underflow.

    Reference: Sicilia et al., Multi-Domain Learning by Meta-Learning, ISBI 2021, algorithm 1, lines 3 to 7.

    >>> InnerLoop(every=4)
    InnerLoop(step='optimizer', meta_test='eval', split='first', every=4)
    """

    statistic: ClassVar[Statistic] = Statistic.HYPOTHETICAL_LOSSES

    def __init__(
        self,
        *,
        step: Step = "optimizer",
        meta_test: MetaTest = "eval",
        split: Split = "first",
        every: int = 1,
        gather: bool = False,
        scaler: GradScaler | None = None,
    ) -> None:
        super().__init__(every=every)
        for name, value, allowed in (
            ("step", step, get_args(Step)),
            ("meta_test", meta_test, get_args(MetaTest)),
            ("split", split, get_args(Split)),
        ):
            if value not in allowed:
                raise ValueError(f"{name} must be {' or '.join(map(repr, allowed))}; got {value!r}.")
        self.step = step
        self.meta_test = meta_test
        self.split = split
        self.gathering = Gathering() if gather else None
        self.scaler = scaler

    def _measure(
        self, model: nn.Module, batch: Mapping[str, Tree], *, losses: Losses, optimizer: Optimizer
    ) -> Measurement:
        enough = batch if self.gathering is None else self.gathering.add(batch)
        halves = halve(enough, seed=int(self.steps) if self.split == "random" else None)
        if len(halves) < 2:
            return Measurement.nothing(len(losses.domains))
        hypothetical = {
            name: self._hypothetical_loss(name, halves, model=model, losses=losses, optimizer=innermost(optimizer))
            for name in halves
        }
        found = torch.stack(list(hypothetical.values())).to("cpu", torch.float64)
        present = torch.tensor([name in halves for name in losses.domains])
        values = torch.zeros(len(present), dtype=torch.float64)
        values[[losses.domains.index(name) for name in hypothetical]] = found
        return Measurement(values, present)

    def _hypothetical_loss(
        self,
        favoured: str,
        halves: dict[str, Halves],
        *,
        model: nn.Module,
        losses: Losses,
        optimizer: Optimizer,
    ) -> Tensor:
        with preserved_random_states(model.parameters()):
            shadow = Shadow(model, losses)
            stand_in, judge = shadow.modules
            assert isinstance(judge, Losses)  # noqa: S101
            loss = judge(stand_in, {favoured: halves[favoured].meta_train})[favoured]
            self._differentiate(loss, shadow, optimizer)
            shadow.detach_parameters()
            STEPS[self.step](optimizer, shadow.parameters)
            if self.meta_test == "eval":
                stand_in.eval()
            with torch.no_grad():
                tested = judge(stand_in, {name: half.meta_test for name, half in halves.items()})
                return torch.stack([loss.double() for loss in tested.values()]).sum()

    def _differentiate(self, loss: Tensor, shadow: Shadow, optimizer: Optimizer) -> None:
        """Leave the loss's gradients on the shadow parameters that the optimizer steps."""
        stepped = (p for group in optimizer.param_groups for p in group["params"])
        leaves = [shadow.parameters[p] for p in stepped if p.requires_grad and p in shadow.parameters]
        if not leaves:
            raise ValueError("the optimizer holds no trainable parameter of the model it is given with.")
        scale = self.scaler.get_scale() if self.scaler is not None else 1.0
        gradients = torch.autograd.grad(loss * scale, leaves, allow_unused=True) if loss.requires_grad else ()
        if all(gradient is None for gradient in gradients):
            raise ValueError(
                "the loss does not depend on the parameters that the optimizer steps. An objective must run the model "
                "that it is given as its first argument."
            )
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.grad = None if gradient is None else gradient / scale

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        return f"step={self.step!r}, meta_test={self.meta_test!r}, split={self.split!r}, every={self.every}"
