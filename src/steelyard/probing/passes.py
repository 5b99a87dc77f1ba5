"""A pass over samples on a replica: its losses, outputs and gradients."""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from steelyard.batches import Tree, detach_samples
from steelyard.probing.probe import Gradients, Losses
from steelyard.probing.replica import Replica

_LOWER_SCALE = 16.0  # by which the scale of float16 gradients is lowered where they overflow
# What a loss raises if the outputs have a form that it does not expect.
_WRONG_OUTPUT = (TypeError, ValueError, RuntimeError, AttributeError, LookupError, AssertionError)
_MACHINE_FAILURE = "allocate memory|out of memory|CUDA error|cuDNN|CUBLAS"
ONE_VALUE = "Expected more than 1 value per channel"  # torch's batch normalisation, on a half that is too small


class HalfTooSmallError(Exception):
    """A half has too few samples for batch normalisation, so there is no vote on this batch."""


class Leaves(NamedTuple):
    """The live parameters that are differentiated, their replicas, and whether the optimizer steps each of them."""

    live: list[Tensor]
    replicas: list[Tensor]
    stepped: list[bool]


class Pass(NamedTuple):
    """One forward and backward pass.

    Attributes:
        losses: each domain's loss, detached.
        outputs: each domain's outputs, detached; empty for an objective.
        gradients: of the summed losses, one for each leaf.
        overflowed: whether the gradients overflow under the outer loop's scale, so that a lower one was used. A vote
            can use them. The outer step cannot: its scaler has to see the overflow.
    """

    losses: dict[str, Tensor]
    outputs: dict[str, Tree]
    gradients: Gradients
    overflowed: bool = False


@final
class GradientRows:
    """Gradients of several losses: one row for each loss, one column for each parameter.

    Args:
        columns: for each parameter its gradients in all rows, either stacked, or a list with `None` where a loss does
            not depend on it.
    """

    def __init__(self, columns: Sequence[Tensor | list[Tensor | None]]) -> None:
        self.columns = columns

    @classmethod
    def separate(cls, rows: Sequence[Gradients]) -> "GradientRows":
        """Of rows that were computed one by one."""
        return cls([list(column) for column in zip(*rows, strict=True)])

    def row(self, index: int) -> Gradients:
        """The gradients of one loss."""
        return [column[index] for column in self.columns]

    def part(self, start: int, stop: int) -> "GradientRows":
        """Consecutive rows."""
        return GradientRows([column[start:stop] for column in self.columns])

    def weighted_sum(self, factors: Sequence[float]) -> Gradients:
        """Σ_r c_r g_r for each parameter; `None` where no row has a gradient."""
        with torch.no_grad():
            return [_weighted_sum(column, factors) for column in self.columns]

    def inner_products(self, others: "GradientRows", factors: Sequence[float]) -> Tensor:
        """Σ_c f_c ⟨g_rc, h_sc⟩ over all columns c, for each row r of these and s of the others; float64 on the CPU."""
        terms: list[Tensor] = []
        used_factors: list[float] = []
        for column, other_column, factor in zip(self.columns, others.columns, factors, strict=True):
            rows, other_rows = _matrix(column), _matrix(other_column)
            if factor and rows is not None and other_rows is not None:
                terms.append(rows @ other_rows.T)
                used_factors.append(factor)
        if not terms:
            return torch.zeros(self.count, others.count, dtype=torch.float64)
        # One answer from the device, not one for each parameter.
        table = torch.stack(terms).to("cpu", torch.float64)
        return torch.einsum("c,crs->rs", torch.tensor(used_factors, dtype=torch.float64), table)

    def products(self, direction: Gradients) -> Tensor:
        """⟨g, direction⟩ by row and column, float64 on the CPU; 0 where either is missing."""
        products: dict[int, Tensor] = {}  # by column
        for number, (column, along) in enumerate(zip(self.columns, direction, strict=True)):
            rows, vector = _matrix(column), _matrix([along])
            if rows is not None and vector is not None:
                products[number] = rows @ vector[0]
        table = torch.zeros(self.count, len(self.columns), dtype=torch.float64)
        if products:
            table[:, list(products)] = torch.stack(list(products.values()), dim=1).to("cpu", torch.float64)
        return table

    def norms(self, columns: Sequence[bool]) -> Tensor:
        """The norm of each row over the chosen columns, float64 on the CPU."""
        square_norms: list[Tensor] = []
        for column, chosen in zip(self.columns, columns, strict=True):
            rows = _matrix(column)
            if chosen and rows is not None:
                square_norms.append(rows.square().sum(1))
        if not square_norms:
            return torch.zeros(self.count, dtype=torch.float64)
        return torch.stack(square_norms).to("cpu", torch.float64).sum(0).sqrt()

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.columns[0])

    def present(self) -> Tensor:
        """Which rows have a gradient for which columns."""
        table = torch.ones(self.count, len(self.columns), dtype=torch.bool)
        for number, column in enumerate(self.columns):
            if isinstance(column, list):
                table[:, number] = torch.tensor([gradient is not None for gradient in column])
        return table


def _weighted_sum(column: Tensor | list[Tensor | None], factors: Sequence[float]) -> Tensor | None:
    """Σ_r c_r g_r of one parameter's gradients."""
    if isinstance(column, Tensor):
        weights = torch.tensor(factors, dtype=column.dtype, device=column.device)
        return (weights @ column.reshape(len(column), -1)).view(column.shape[1:])  # reads each gradient once
    total: Tensor | None = None
    for gradient, factor in zip(column, factors, strict=True):
        if gradient is not None and total is None:
            total = gradient * factor
        elif gradient is not None and total is not None:
            total.add_(gradient, alpha=factor)
    return total


def _matrix(column: Tensor | Sequence[Tensor | None]) -> Tensor | None:
    """One parameter's gradients as a matrix of real numbers, a row each; zeros where one is missing, `None` for all."""
    if not isinstance(column, Tensor):
        present = [gradient for gradient in column if gradient is not None]
        if not present:
            return None
        zero = torch.zeros_like(present[0])
        column = torch.stack([zero if gradient is None else gradient for gradient in column])
    if column.is_sparse:
        column = column.to_dense()
    if column.is_complex():
        column = torch.view_as_real(column.resolve_conj())
    if column.dtype in (torch.float16, torch.bfloat16):
        column = column.float()
    return column.reshape(len(column), -1)


def model_and_losses(replica: Replica) -> tuple[nn.Module, Losses]:
    """The replicas of the model and of the losses."""
    model, losses = replica.modules
    assert isinstance(losses, Losses)  # noqa: S101
    return model, losses


def leaves_of(replica: Replica, optimizer: Optimizer, *, everything: bool) -> Leaves:
    """The trainable parameters that the optimizer steps, or everything trainable."""
    stepped: set[Tensor] = set()
    for group in optimizer.param_groups:
        stepped.update(group["params"])
    leaves = Leaves([], [], [])
    for live, copied in replica.parameters.items():
        if live.requires_grad and (everything or live in stepped):
            leaves.live.append(live)
            leaves.replicas.append(copied)
            leaves.stepped.append(live in stepped)
    if not any(leaves.stepped):
        raise ValueError("the optimizer holds no trainable parameter of the model it is given with.")
    return leaves


def losses_and_outputs(
    model: nn.Module, losses: Losses, samples: Mapping[str, Tree], *, judged: bool = False
) -> tuple[dict[str, Tensor], dict[str, Tree]]:
    """Each domain's loss, and the model's outputs for it; an objective, which runs the model itself, has none.

    Args:
        model: the model or its replica.
        losses: the losses or their replica.
        samples: each domain's samples.
        judged: return the scores by which domains are judged instead of the losses.
    """
    if not losses.follow_outputs:
        return losses.scores(model, samples) if judged else losses(model, samples), {}
    outputs = losses.outputs(model, samples)
    return losses.scores_of(outputs, samples) if judged else losses.of(outputs, samples), outputs


def run_pass(
    replica: Replica,
    samples: Mapping[str, Tree],
    leaves: Leaves,
    *,
    scaler: GradScaler | None,
    judged: Collection[str] = (),
) -> Pass:
    """One pass over the samples, with the gradients of the summed losses.

    Args:
        replica: of the model and the losses.
        samples: each domain's samples.
        leaves: what to differentiate for.
        scaler: the outer loop's.
        judged: differentiate, instead of the losses, the scores by which these domains are judged.

    Raises:
        HalfTooSmallError: Batch normalisation needs more samples.
    """
    model, losses = model_and_losses(replica)
    try:
        domain_losses, outputs = losses_and_outputs(model, losses, samples, judged=bool(judged))
    except ValueError as error:
        if str(error).startswith(ONE_VALUE):
            raise HalfTooSmallError from error
        raise
    if judged:
        domain_losses = {name: domain_losses[name] for name in judged}
    total = torch.stack(list(domain_losses.values())).sum()
    # Half of one domain's samples: in the outer loss their weight is about 1 / (2K).
    weight = 1 / (2 * len(losses.domains))
    gradients, overflowed = take_gradients(total, leaves.replicas, scaler=scaler, weight=weight)
    outputs = {name: detach_samples(output) for name, output in outputs.items()}
    return Pass({name: loss.detach() for name, loss in domain_losses.items()}, outputs, gradients, overflowed)


def take_gradients(
    loss: Tensor, leaves: Sequence[Tensor], *, scaler: GradScaler | None, weight: float = 1.0
) -> tuple[Gradients, bool]:
    """The gradients of a loss, and whether they overflow under the scale of the outer loop's scaler.

    Args:
        loss: a scalar.
        leaves: the tensors to differentiate for.
        scaler: the outer loop's.
        weight: about what part of the outer loss this loss is; the scaler's scale suits the outer loss.
    """
    if not loss.requires_grad:
        return [None] * len(leaves), False
    # As `backward()` after a loop's autocast: within it, operations that the model keeps from being cast would be cast.
    with torch.autocast(loss.device.type, enabled=False):
        if scaler is None:
            return torch.autograd.grad(loss, leaves, allow_unused=True), False
        first_scale = max(1.0, scaler.get_scale() * 2.0 ** math.floor(math.log2(weight)))  # powers of two round nothing
        scale = min(scaler.get_scale(), first_scale)
        lowered = False
        while True:
            keep_graph = scale > 1  # for another pass with a lower scale
            scaled = torch.autograd.grad(loss * scale, leaves, allow_unused=True, retain_graph=keep_graph)
            if scale <= 1 or not torch.isfinite(loss) or _are_finite(scaled):
                return [None if gradient is None else gradient / scale for gradient in scaled], lowered
            scale = max(1.0, scale / _LOWER_SCALE)
            lowered = True


def _are_finite(gradients: Gradients) -> bool:
    checks = [torch.isfinite(gradient).all() for gradient in gradients if gradient is not None]
    # One answer from the device, not one for each parameter.
    return not checks or bool(torch.stack([check.to(checks[0].device) for check in checks]).all())


@contextmanager
def explained_in_evaluation(evaluating: bool) -> Iterator[None]:
    """Say what to do where the loss of a model in evaluation mode cannot be computed.

    Some models return something else there: one output instead of several (deep supervision), or boxes (detectors).
    The same model has run in training mode before, so the mode is the likely cause, unless memory or a device failed.
    """
    try:
        yield
    except _WRONG_OUTPUT as error:
        if not evaluating or isinstance(error, torch.OutOfMemoryError) or re.search(_MACHINE_FAILURE, str(error)):
            raise
        raise ValueError(
            f"a hypothetical step could not be judged in evaluation mode ({type(error).__name__}: {error}). "
            'If the model returns something else in evaluation mode, pass meta_test="batch" to the probe.'
        ) from error
