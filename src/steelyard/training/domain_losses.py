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
Forward = Callable[[Any, Any], Tree]
Objective = Callable[[nn.Module, Tree], Tensor]
Judge = Callable[[Any, Any], Tensor | float]


@final
class DomainLosses(Losses):
    """The loss of each domain in a batch: from one loss, one per domain, or the model's own objective.

    Args:
        domains: the names of the domains.
        loss: `loss(model(inputs), targets)`, a scalar; one for all, or a mapping of domain name to loss.
        forward: `forward(model, inputs)` instead of `model(inputs)`. A domain's batch that is a mapping is its inputs
            and its targets.
        objective: `objective(model, domain_batch)`, a scalar, for a model that computes its own loss.
        judge: `judge(outputs, targets)`, or with an objective `judge(model, domain_batch)`: one number, lower is
            better; one for all, or a mapping of domain name to judge. Default: domains are judged by their losses.
        join: run the model once over the samples of all domains where their shapes allow it, which matters for batch
            normalisation, instead of once per domain. An objective is always run per domain.
    """

    def __init__(
        self,
        domains: Sequence[str],
        *,
        loss: Loss | Mapping[str, Loss] | None = None,
        forward: Forward | None = None,
        objective: Objective | None = None,
        judge: Judge | Mapping[str, Judge] | None = None,
        join: bool = True,
    ) -> None:
        super().__init__()
        self.domains = tuple(domains)
        if isinstance(loss, nn.ModuleDict):
            loss = dict(loss.items())
        if (loss is None) == (objective is None):
            raise ValueError(f"give either loss or objective; got {'neither' if loss is None else 'both'}.")
        if forward is not None and objective is not None:
            raise ValueError("give either forward or objective; an objective runs the model itself.")
        for kind, functions in (("loss", loss), ("forward", forward), ("objective", objective), ("judge", judge)):
            if functions is not None:
                _check_functions(kind, self.domains, functions)
        self.run_model = forward
        self.objective = objective
        self.join = join
        self._judged = judge is not None
        self._set_functions("loss", loss)
        self._set_functions("judge", judge)

    def _set_functions(self, kind: str, functions: Any) -> None:
        """Keep one function for all domains, or one for each; a module becomes a submodule and follows to a device."""
        if isinstance(functions, Mapping | nn.ModuleDict):
            for name, function in functions.items():
                setattr(self, f"{kind}_{self.domains.index(name)}", function)
        elif functions is not None:
            setattr(self, kind, functions)

    def _function(self, kind: str, domain: str) -> Any:
        if hasattr(self, kind):
            return getattr(self, kind)
        return getattr(self, f"{kind}_{self.domains.index(domain)}")

    @property
    def follow_outputs(self) -> bool:
        """Whether the losses are computed from the model's outputs; an objective runs the model itself."""
        return self.objective is None

    @property
    def one_for_all(self) -> bool:
        """Whether all domains have the same loss function."""
        return self.objective is not None or hasattr(self, "loss")

    def takes_one_pass(self, batch: Mapping[str, Tree]) -> bool:
        """Whether the losses of a batch take one pass of the model, over the samples of all its domains."""
        if self.objective is not None or not self.join:
            return False
        return can_join([self._inputs_and_targets(name, samples)[0] for name, samples in batch.items()])

    @property
    def have_judge(self) -> bool:
        """Whether hypothetical steps are judged by a score of the user's own, instead of by the losses."""
        return self._judged

    def forward(self, model: nn.Module, batch: Mapping[str, Tree]) -> dict[str, Tensor]:
        """A scalar loss for each domain in the batch."""
        if self.objective is not None:
            return _scalars({name: self.objective(model, domain_batch) for name, domain_batch in batch.items()})
        return self.of(self.outputs(model, batch), batch)

    def outputs(self, model: nn.Module, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        """The model's outputs for each domain: from one pass over all samples where shapes allow it, or one each."""
        trees = [self._inputs_and_targets(name, samples)[0] for name, samples in batch.items()]
        if not self.join or not can_join(trees):
            return {name: self._run(model, tree) for name, tree in zip(batch, trees, strict=True)}
        sizes = [count_samples(tree) for tree in trees]
        return dict(zip(batch, split_samples(self._run(model, join_samples(trees)), sizes), strict=True))

    def _run(self, model: nn.Module, inputs: Tree) -> Tree:
        if self.run_model is None:
            return model(inputs)
        return self.run_model(model, inputs)

    def _inputs_and_targets(self, name: str, samples: Tree) -> tuple[Tree, Tree]:
        """What the model is run on, and what its outputs are compared with."""
        if isinstance(samples, tuple | list) and len(samples) == 2:
            return samples[0], samples[1]
        if self.run_model is not None and isinstance(samples, Mapping):
            return samples, samples
        form = f"{len(samples)} parts" if isinstance(samples, tuple | list) else type(samples).__name__
        if self.run_model is not None:
            raise ValueError(f"the batch of domain {name!r} must be (inputs, targets) or a mapping; got {form}.")
        raise ValueError(
            f"the batch of domain {name!r} must be (inputs, targets); got {form}. "
            "Pass forward= for batches that are mappings, objective= instead of loss= for those of any other form."
        )

    def of(self, outputs: Mapping[str, Tree], batch: Mapping[str, Tree]) -> dict[str, Tensor]:
        """A scalar loss for each domain, from the model's outputs and the targets."""
        return _scalars(self._compared("loss", outputs, batch))

    def _compared(self, kind: str, outputs: Mapping[str, Tree], batch: Mapping[str, Tree]) -> dict[str, Any]:
        """The loss or the judge of each domain, called with its outputs and targets."""
        values: dict[str, Any] = {}
        for name, samples in batch.items():
            _, targets = self._inputs_and_targets(name, samples)
            values[name] = self._function(kind, name)(outputs[name], targets)
        return values

    def scores(self, model: nn.Module, batch: Mapping[str, Tree]) -> dict[str, Tensor]:
        """The scalar by which each domain is judged: its loss, or the score of the user's own judge."""
        if not self._judged:
            return self(model, batch)  # type: ignore[no-any-return]
        if self.objective is None:
            return self.scores_of(self.outputs(model, batch), batch)
        return _scores({name: self._function("judge", name)(model, samples) for name, samples in batch.items()})

    def scores_of(self, outputs: Mapping[str, Tree], batch: Mapping[str, Tree]) -> dict[str, Tensor]:
        """The same from the model's outputs."""
        if not self._judged:
            return self.of(outputs, batch)
        return _scores(self._compared("judge", outputs, batch))


def _check_functions(kind: str, domains: Sequence[str], functions: Any) -> None:
    """Refuse anything but one function, or a mapping with one for each domain."""
    in_mapping = isinstance(functions, Mapping | nn.ModuleDict)
    for function in functions.values() if in_mapping else [functions]:
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"a {kind} must be a function or an instance of a module; got {function!r}.")
    if in_mapping and set(functions) != set(domains):
        raise ValueError(f"{kind} must hold one {kind} for each of {tuple(domains)}; got {tuple(functions)}.")


def _scores(values: Mapping[str, Any]) -> dict[str, Tensor]:
    """Scores as scalar tensors; a judge may return a plain number."""
    tensors: dict[str, Tensor] = {}
    for name, value in values.items():
        tensors[name] = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
    return _scalars(tensors, kind="score")


def _scalars(losses: dict[str, Tensor], *, kind: str = "loss") -> dict[str, Tensor]:
    scalars: dict[str, Tensor] = {}
    for name, loss in losses.items():
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            form = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(
                f"the {kind} of domain {name!r} must be one number in a tensor; got {form}. "
                f"A {kind} with reduction='none' must be averaged."
            )
        scalars[name] = loss
        if loss.dim():
            scalars[name] = loss.reshape(())
    return scalars


def weighted_loss(losses: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """Σ_d λ_d L_d."""
    weighted: list[Tensor] = [weights[name] * loss for name, loss in losses.items()]
    return reduce(add, weighted)


def complete(
    domain_losses: Losses, shared: Shared, weights: Mapping[str, float], model: nn.Module
) -> tuple[dict[str, Tensor], Tensor]:
    """Each domain's loss and their weighted sum, from what a probe has computed and a pass over the rest."""
    shared.advance_generators()
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
