"""Each domain's loss on a batch, and the outer loss: their weighted sum."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, final

import torch
from torch import Tensor, nn

from steelyard.batches import Tree, can_join, count_samples, join_samples, split_samples
from steelyard.probing import Losses, Shared

Loss = Callable[[Any, Any], Tensor]
Objective = Callable[[nn.Module, Tree], Tensor]


@final
class DomainLosses(Losses):
    """The loss of each domain in a batch: from one loss, one per domain, or the model's own objective.

    Args:
        domains: the names of the domains.
        loss: `loss(model(inputs), targets)`, a scalar; one for all, or a mapping of domain name to loss.
        objective: `objective(model, domain_batch)`, a scalar, for a model that computes its own loss.
        join: run the model once over the samples of all domains where their shapes allow it, which matters for batch
            normalisation, instead of once per domain. An objective is always run per domain.
    """

    def __init__(
        self,
        domains: Sequence[str],
        *,
        loss: Loss | Mapping[str, Loss] | None = None,
        objective: Objective | None = None,
        join: bool = True,
    ) -> None:
        super().__init__()
        self.domains = tuple(domains)
        if isinstance(loss, nn.ModuleDict):
            loss = dict(loss.items())
        _check_functions(self.domains, loss, objective)
        self.objective = objective
        self.join = join
        # A loss that is a module becomes a submodule, so that it follows the balancer to a device.
        if isinstance(loss, Mapping):
            for name, domain_loss in loss.items():
                setattr(self, f"loss_{self.domains.index(name)}", domain_loss)
        elif loss is not None:
            self.loss = loss

    @property
    def follow_outputs(self) -> bool:
        """Whether the losses are computed from the model's outputs; an objective runs the model itself."""
        return self.objective is None

    @property
    def one_for_all(self) -> bool:
        """Whether all domains have the same loss function."""
        return self.objective is not None or hasattr(self, "loss")

    def forward(self, model: nn.Module, batch: Mapping[str, Tree]) -> dict[str, Tensor]:
        """A scalar loss for each domain in the batch."""
        if self.objective is not None:
            return _scalars({name: self.objective(model, domain_batch) for name, domain_batch in batch.items()})
        return self.of(self.outputs(model, batch), batch)

    def outputs(self, model: nn.Module, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        """The model's outputs for each domain: from one pass over all samples where shapes allow it, or one each."""
        for name, pair in batch.items():
            _check_pair(name, pair)
        trees = [pair[0] for pair in batch.values()]
        if not self.join or not can_join(trees):
            return {name: model(tree) for name, tree in zip(batch, trees, strict=True)}
        sizes = [count_samples(tree) for tree in trees]
        return dict(zip(batch, split_samples(model(join_samples(trees)), sizes), strict=True))

    def of(self, outputs: Mapping[str, Tree], batch: Mapping[str, Tree]) -> dict[str, Tensor]:
        """A scalar loss for each domain, from the model's outputs and the targets."""
        return _scalars({name: self._loss(name)(outputs[name], pair[1]) for name, pair in batch.items()})

    def _loss(self, domain: str) -> Loss:
        if hasattr(self, "loss"):
            return self.loss
        loss: Loss = getattr(self, f"loss_{self.domains.index(domain)}")
        return loss


def _check_functions(
    domains: Sequence[str], loss: Loss | Mapping[str, Loss] | None, objective: Objective | None
) -> None:
    """Refuse anything but one loss, one loss for each domain, or an objective."""
    if (loss is None) == (objective is None):
        raise ValueError(f"give either loss or objective; got {'neither' if loss is None else 'both'}.")
    functions = list(loss.values()) if isinstance(loss, Mapping) else [loss or objective]
    for function in functions:
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"a loss or objective must be a function or an instance of a module; got {function!r}.")
    if isinstance(loss, Mapping) and set(loss) != set(domains):
        raise ValueError(f"loss must hold one loss for each of {tuple(domains)}; got {tuple(loss)}.")


def _scalars(losses: dict[str, Tensor]) -> dict[str, Tensor]:
    scalars: dict[str, Tensor] = {}
    for name, loss in losses.items():
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            form = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(
                f"the loss of domain {name!r} must be one number in a tensor; got {form}. "
                "A loss with reduction='none' must be averaged."
            )
        scalars[name] = loss
        if loss.dim():
            scalars[name] = loss.reshape(())
    return scalars


def _check_pair(name: str, pair: Tree) -> None:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        form = f"{len(pair)} parts" if isinstance(pair, tuple | list) else type(pair).__name__
        raise ValueError(
            f"the batch of domain {name!r} must be (inputs, targets); got {form}. "
            "Pass objective= instead of loss= for batches of another form."
        )


def weighted_loss(losses: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """Σ_d λ_d L_d."""
    weighted: list[Tensor] = [weights[name] * loss for name, loss in losses.items()]
    return reduce(add, weighted)


def complete(
    domain_losses: Losses, shared: Shared, weights: Mapping[str, float], model: nn.Module
) -> tuple[dict[str, Tensor], Tensor]:
    """Each domain's loss and their weighted sum, from what a probe has computed and a pass over the rest."""
    samples = {name: rest for name, (_, rest) in shared.rest.items()}
    parts: dict[str, Tensor] = {}  # of the losses, on the samples left to run
    if samples:
        parts = {name: shared.rest[name][0] * loss for name, loss in domain_losses(model, samples).items()}
    computed = weighted_loss(shared.losses, weights)
    total = stored_loss(computed, shared.combine(weights), shared.parameters)
    if parts:
        total = total + weighted_loss(parts, weights)
    losses: dict[str, Tensor] = {}
    for name in domain_losses.domains:
        if name in shared.losses and name in parts:
            losses[name] = shared.losses[name] + parts[name].detach()
        elif name in shared.losses:
            losses[name] = shared.losses[name]
        elif name in parts:
            losses[name] = parts[name]
    return losses, total


def stored_loss(value: Tensor, gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    """The value as a scalar whose `backward()` gives each parameter its stored gradient, times what comes from above.

    Scaling, accumulation, clipping, hooks on parameters and distributed data parallelism see ordinary gradients. They
    can be used once.
    """
    present = [index for index, gradient in enumerate(gradients) if gradient is not None]
    stored = [gradients[index] for index in present]
    result: Tensor = _Stored.apply(value, stored, *(parameters[index] for index in present))  # type: ignore[no-untyped-call]
    return result


class _Stored(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        ctx.count = len(parameters)
        return value.detach().clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "gradients that the probe has stored cannot be differentiated again (create_graph=True): "
                "pass reuse=False to the probe."
            )
        if ctx.gradients is None:
            raise RuntimeError(
                "the gradients that the probe has stored are handed out once, and were (a second backward() through "
                "the same loss): pass reuse=False to the probe."
            )
        gradients, ctx.gradients = ctx.gradients, None
        if gradients:  # not in place: parameters that are only ever added to each other have one gradient
            gradients = torch._foreach_mul(gradients, upstream[0])
        return None, None, *gradients
