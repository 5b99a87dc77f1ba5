"""The paper's inner loop: take each domain's step, see how all domains fare."""

from collections.abc import Mapping
from typing import ClassVar, Literal, final, get_args

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from steelyard.batches import Tree
from steelyard.measurement import Measurement, Statistic
from steelyard.probing.halves import Halves, halve
from steelyard.probing.hypothetical_step import RULES, Rule, innermost
from steelyard.probing.probe import Losses, Probe
from steelyard.probing.random_numbers import preserved_random_states
from steelyard.probing.shadow import Shadow

MetaTest = Literal["eval", "batch"]
Split = Literal["first", "random"]
_ONE_VALUE = "Expected more than 1 value per channel"  # batch normalisation, of a half that is too small for it


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
        gather: for batches too small to divide, keep samples of consecutive batches and measure once there are this
            many of at least two domains; `True` is two, one for each half. Batch normalisation of vectors needs four.
        scaler: the outer loop's gradient scaler, so that float16 gradients of the hypothetical steps do not underflow.

    Reference: Sicilia et al., Multi-Domain Learning by Meta-Learning, ISBI 2021, algorithm 1, lines 3 to 7.

    >>> InnerLoop(every=4)
    InnerLoop(step='optimizer', meta_test='eval', split='first', every=4)
    """

    statistic: ClassVar[Statistic] = Statistic.HYPOTHETICAL_LOSSES

    def __init__(
        self,
        *,
        step: Rule = "optimizer",
        meta_test: MetaTest = "eval",
        split: Split = "first",
        every: int = 1,
        gather: bool | int = False,
        scaler: GradScaler | None = None,
    ) -> None:
        super().__init__(every=every, gather=gather)
        for name, value, allowed in (
            ("step", step, get_args(Rule)),
            ("meta_test", meta_test, get_args(MetaTest)),
            ("split", split, get_args(Split)),
        ):
            if value not in allowed:
                raise ValueError(f"{name} must be {' or '.join(map(repr, allowed))}; got {value!r}.")
        self.step = step
        self.meta_test = meta_test
        self.split = split
        self.scaler = scaler

    def _measure(
        self, model: nn.Module, batch: Mapping[str, Tree], *, losses: Losses, optimizer: Optimizer
    ) -> Measurement:
        halves = halve(batch, seed=int(self.steps) if self.split == "random" else None)
        if len(halves) < 2:
            return Measurement.nothing(len(losses.domains))
        optimizer = innermost(optimizer)
        hypothetical: dict[str, Tensor] = {}
        moved = False
        for name in halves:
            with preserved_random_states(model.parameters()):
                shadow = Shadow(model, losses)
                try:
                    moved |= self._differentiate(name, halves[name].meta_train, shadow, optimizer=optimizer)
                except ValueError as error:
                    if not str(error).startswith(_ONE_VALUE):
                        raise
                    return Measurement.nothing(len(losses.domains))
                hypothetical[name] = self._judge(shadow, halves, optimizer=optimizer)
        if not moved:
            raise ValueError(
                "no domain's loss depends on the parameters that the optimizer steps. An objective must run the model "
                "that it is given as its first argument."
            )
        present = torch.tensor([name in halves for name in losses.domains])
        values = torch.zeros(len(present), dtype=torch.float64)
        values[present] = torch.stack([hypothetical[name] for name in losses.domains if name in halves]).cpu()
        return Measurement(values, present)

    def _differentiate(self, favoured: str, meta_train: Tree, shadow: Shadow, *, optimizer: Optimizer) -> bool:
        """Leave the gradients of the favoured domain's loss on the shadow; whether there are any."""
        stepped = (p for group in optimizer.param_groups for p in group["params"])
        leaves = [shadow.parameters[p] for p in stepped if p.requires_grad and p in shadow.parameters]
        if not leaves:
            raise ValueError("the optimizer holds no trainable parameter of the model it is given with.")
        model, losses = shadow.modules
        loss = losses(model, {favoured: meta_train})[favoured]
        if not loss.requires_grad:
            return False
        scale = self.scaler.get_scale() if self.scaler is not None else 1.0
        gradients = torch.autograd.grad(loss * scale, leaves, allow_unused=True)
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.grad = None if gradient is None else gradient / scale
        return any(gradient is not None for gradient in gradients)

    def _judge(self, shadow: Shadow, halves: dict[str, Halves], *, optimizer: Optimizer) -> Tensor:
        """Take the step, and see how all domains fare."""
        model, losses = shadow.modules
        shadow.end_differentiation()
        RULES[self.step](optimizer, shadow.parameters)
        if self.meta_test == "eval":
            model.eval()
        with torch.no_grad():
            tested = losses(model, {name: half.meta_test for name, half in halves.items()})
            return torch.stack([loss.double() for loss in tested.values()]).sum()

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        return f"step={self.step!r}, meta_test={self.meta_test!r}, split={self.split!r}, every={self.every}"
