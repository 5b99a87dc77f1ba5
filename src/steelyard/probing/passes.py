"""A pass over samples on a replica: its losses, outputs and gradients."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
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
_ONE_VALUE = "Expected more than 1 value per channel"  # torch's batch normalisation, on a half that is too small


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
        outputs: each domain's outputs, detached; `None` for an objective.
        gradients: of the summed losses, one for each leaf.
        overflowed: whether the gradients overflow under the outer loop's scale, so that a lower one was used. A vote
            can use them. The outer step cannot: its scaler has to see the overflow.
    """

    losses: dict[str, Tensor]
    outputs: dict[str, Tree] | None
    gradients: Gradients
    overflowed: bool = False


class Chunk(NamedTuple):
    """Gradients of consecutive losses: for each parameter that they depend on, those of all losses, stacked."""

    losses: int
    columns: Mapping[int, Tensor]  # by the number of the parameter; the first dimension is the losses


@final
class GradientRows:
    """Gradients of several losses: one row for each loss, one column for each parameter."""

    def __init__(self, chunks: Sequence[Chunk], columns: int) -> None:
        self._chunks = chunks
        self._columns = columns

    @classmethod
    def separate(cls, rows: Sequence[Gradients]) -> "GradientRows":
        """Of rows that were computed one by one."""
        chunks = []
        for row in rows:
            columns = {number: gradient.unsqueeze(0) for number, gradient in enumerate(row) if gradient is not None}
            chunks.append(Chunk(1, columns))
        return cls(chunks, len(rows[0]))

    def row(self, index: int) -> Gradients:
        """The gradients of one loss."""
        (chunk,) = self.part(index, index + 1)._chunks
        gradients: list[Tensor | None] = [None] * self._columns
        for number, stacked in chunk.columns.items():
            gradients[number] = stacked[0]
        return gradients

    def part(self, start: int, stop: int) -> "GradientRows":
        """Consecutive rows."""
        chunks = []
        offset = 0  # the number of a chunk's first row
        for chunk in self._chunks:
            first, last = max(start - offset, 0), min(stop - offset, chunk.losses)
            if first < last:
                columns = {number: stacked[first:last] for number, stacked in chunk.columns.items()}
                chunks.append(Chunk(last - first, columns))
            offset += chunk.losses
        return GradientRows(chunks, self._columns)

    def weighted_sum(self, factors: Sequence[float]) -> Gradients:
        """Σ_r c_r g_r for each parameter; `None` where no row has a gradient."""
        total: list[Tensor | None] = [None] * self._columns
        offset = 0
        with torch.no_grad():
            for chunk in self._chunks:
                chunk_factors = factors[offset : offset + chunk.losses]
                offset += chunk.losses
                for number, stacked in chunk.columns.items():
                    total[number] = _add_weighted(total[number], stacked, chunk_factors)
        return total

    def products(self, direction: Gradients) -> Tensor:
        """⟨g, direction⟩ by row and column, float64 on the CPU; 0 where either is missing."""
        tables = []
        for chunk in self._chunks:
            products: dict[int, Tensor] = {}  # by column
            for number, stacked in chunk.columns.items():
                along = direction[number]
                if along is not None:
                    products[number] = _inner_products(stacked, along)
            table = torch.zeros(chunk.losses, self._columns, dtype=torch.float64)
            if products:
                # One answer from the device, not one for each parameter.
                table[:, list(products)] = torch.stack(list(products.values()), dim=1).to("cpu", torch.float64)
            tables.append(table)
        return torch.cat(tables)

    def present(self) -> Tensor:
        """Which rows have a gradient for which columns."""
        tables = []
        for chunk in self._chunks:
            table = torch.zeros(chunk.losses, self._columns, dtype=torch.bool)
            table[:, list(chunk.columns)] = True
            tables.append(table)
        return torch.cat(tables)


def _add_weighted(total: Tensor | None, stacked: Tensor, factors: Sequence[float]) -> Tensor:
    """Total + Σ_r c_r g_r, in place where there is a total."""
    if len(factors) == 1:
        if total is None:
            return stacked[0] * factors[0]
        return total.add_(stacked[0], alpha=factors[0])
    weights = torch.tensor(factors, dtype=stacked.dtype, device=stacked.device)
    weighted = (weights @ stacked.reshape(len(stacked), -1)).view(stacked.shape[1:])  # reads each gradient once
    if total is None:
        return weighted
    return total.add_(weighted)


def _inner_products(stacked: Tensor, direction: Tensor) -> Tensor:
    """⟨g_r, direction⟩ for each of the stacked gradients."""
    if len(stacked) == 1:
        return inner(stacked[0], direction).reshape(1)
    if stacked.is_complex():
        stacked, direction = torch.view_as_real(stacked), torch.view_as_real(direction)
    return stacked.reshape(len(stacked), -1) @ direction.reshape(-1)


class HalfPasses(NamedTuple):
    """One pass over each half of each domain: first all meta-train halves, then all meta-test halves.

    Attributes:
        losses: the loss on each half, detached.
        outputs: the outputs for each half; empty for an objective.
        gradients: one row for each half.
        overflowed: whether gradients overflow under the outer loop's scale.
    """

    losses: Sequence[Tensor]
    outputs: Sequence[Tree]
    gradients: GradientRows
    overflowed: bool = False


def inner(first: Tensor, second: Tensor) -> Tensor:
    """The inner product of two tensors of one shape, flattened in the order of their memory: no copy if it is dense."""
    if first.is_sparse or second.is_sparse:
        first, second = first.to_dense(), second.to_dense()
    if first.is_complex():
        first, second = torch.view_as_real(first.resolve_conj()), torch.view_as_real(second.resolve_conj())
    if first.is_contiguous() and second.is_contiguous() and first.dtype == second.dtype:
        return torch.dot(first.view(-1), second.view(-1))
    # Dimensions in the order in which they lie in memory, outermost first.
    order = sorted(range(first.dim()), key=first.stride, reverse=True)
    return torch.dot(first.permute(order).reshape(-1), second.permute(order).reshape(-1).to(first.dtype))


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


def run_pass(replica: Replica, samples: Mapping[str, Tree], leaves: Leaves, *, scaler: GradScaler | None) -> Pass:
    """One pass over the samples, with the gradients of the summed losses."""
    model, losses = model_and_losses(replica)
    outputs: dict[str, Tree] | None = None
    try:
        if losses.follow_outputs:
            outputs = losses.outputs(model, samples)
            domain_losses = losses.of(outputs, samples)
        else:
            domain_losses = losses(model, samples)
    except ValueError as error:
        if str(error).startswith(_ONE_VALUE):
            raise HalfTooSmallError from error
        raise
    total = torch.stack(list(domain_losses.values())).sum()
    # Half of one domain's samples: in the outer loss their weight is about 1 / (2K).
    weight = 1 / (2 * len(losses.domains))
    gradients, overflowed = take_gradients(total, leaves.replicas, scaler=scaler, weight=weight)
    if outputs is not None:
        outputs = {name: detach_samples(output) for name, output in outputs.items()}
    return Pass(detached(domain_losses), outputs, gradients, overflowed)


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
        outer_scale = scaler.get_scale()
        own_scale = outer_scale * 2.0 ** math.floor(math.log2(weight))  # a power of two rounds nothing
        return _scaled_gradients(loss, leaves, min(outer_scale, max(1.0, own_scale)))


def _scaled_gradients(loss: Tensor, leaves: Sequence[Tensor], scale: float) -> tuple[Gradients, bool]:
    """Gradients of the scaled loss, divided by the scale, and whether it had to be lowered because they overflowed."""
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
    The same model has run in training mode before, so the mode is the likely cause.
    """
    try:
        yield
    except _WRONG_OUTPUT as error:
        if not evaluating or _is_about_the_machine(error):
            raise
        raise ValueError(
            f"a hypothetical step could not be judged in evaluation mode ({type(error).__name__}: {error}). "
            'If the model returns something else in evaluation mode, pass meta_test="batch" to the probe.'
        ) from error


def _is_about_the_machine(error: Exception) -> bool:
    """Whether memory or a device has failed, for which no mode is the cause."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return re.search("allocate memory|out of memory|CUDA error|cuDNN|CUBLAS", str(error)) is not None


def detached(losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The losses outside automatic differentiation."""
    return {name: loss.detach() for name, loss in losses.items()}
