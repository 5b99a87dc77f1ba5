"""Passes over all halves of all domains: one by one, or at once by `torch.func` where passes are small."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from traceback import walk_tb
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.func import functional_call, grad_and_value, vmap

from steelyard.batches import Tree, can_join, count_samples, stack_samples, unstack_samples
from steelyard.probing.audit import COARSE, are_close
from steelyard.probing.dropout import WithoutDropout
from steelyard.probing.passes import (
    GradientRows,
    Leaves,
    Pass,
    losses_and_outputs,
    model_and_losses,
    run_pass,
)
from steelyard.probing.probe import Gradients, Losses
from steelyard.probing.replica import Replica, preserved_random_states, random_states, saved_random_states
from steelyard.probing.sharing import RECHECK_EVERY, modes_of
from steelyard.probing.vote_probe import Half

# A pass is large if it stores more elements for its backward pass, parameters aside. Measured in CPU time on one core,
# relative to a plain step, with 2 domains, vmap / one by one: U-Net 0.4 M elements 1.7 / 2.5, 1.7 M 1.3 / 1.6,
# 3.7 M 1.26 / 1.29, 6.6 M 1.20 / 1.17; transformer 1.2 M 1.30 / 1.35, 2.4 M 1.21 / 1.21, 4.8 M 1.14 / 1.08.
_LARGE_PASS = 4_000_000
_DATA_DEPENDENT = ("data-dependent control flow", ".item()")  # from the messages of vmap in torch 2.13
# Branches in these modules choose a faster kernel for the same result: no mask where nothing is padded.
_HARMLESS_BRANCHES = ("transformers.masking_utils",)


class HalfPasses(NamedTuple):
    """One pass over each of some halves.

    Attributes:
        losses: the loss on each half, detached.
        outputs: the outputs for each half; empty for an objective.
        gradients: one row for each half.
        overflowed: whether gradients overflow under the outer loop's scale.
    """

    losses: list[Tensor]
    outputs: list[Tree]
    gradients: GradientRows
    overflowed: bool = False

    def part(self, start: int, stop: int) -> "HalfPasses":
        """Consecutive passes."""
        gradients = self.gradients.part(start, stop)
        return HalfPasses(self.losses[start:stop], self.outputs[start:stop], gradients, self.overflowed)


def _raised_in(error: BaseException) -> str:
    """The name of the Python module whose code raised an error, itself or by a call of torch."""
    innermost = ""
    for frame, _ in walk_tb(error.__traceback__):
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(("torch.", "steelyard.probing.")):  # the latter passes calls on to torch
            innermost = name
    return innermost


class VmapRefusedError(Exception):
    """Says why halves are run one by one."""


@final
class Vmapping(nn.Module):
    """Decides whether the halves are run in one pass by `vmap`, or one by one.

    The first vote in each mode of the model runs both and compares them; so does every thousandth. An error, a
    difference or a large pass ends the use of `vmap` for good. That is part of the state, so that a run continued from
    a checkpoint does the same.

    Attributes:
        reason: why `vmap` was given up, or `None`.
        saw_data_dependence: whether Python code in the forward pass depends on values of the batch: an `if`, or
            `.item()`.
    """

    refused: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.reason: str | None = None
        self.saw_data_dependence = False
        self._verified: tuple[bool, ...] | None = None  # the modes in which both were last compared
        self.register_buffer("refused", torch.zeros((), dtype=torch.bool))

    def applies_to(self, model: nn.Module, losses: Losses, halves: Sequence[Half]) -> bool:
        """Whether these halves can be stacked and have one loss, in one precision that is not coarse."""
        if bool(self.refused) or not losses.one_for_all:
            return False
        if len({count_samples(half.samples) for half in halves}) > 1:
            return False
        first = next(model.parameters())
        if torch.is_autocast_enabled(first.device.type) or torch.finfo(first.dtype).eps > COARSE:
            return False
        return can_join([half.samples for half in halves])

    def run(self, replica: Replica, halves: Sequence[Half], leaves: Leaves, *, vote_number: int) -> HalfPasses:
        """One pass over all halves if that works and gives the same as one pass over each; else the latter."""
        modes = modes_of(model_and_losses(replica)[0])
        compared: HalfPasses | None = None
        restore = saved_random_states(leaves.live)
        if modes != self._verified or vote_number % RECHECK_EVERY == 0:
            compared = self._compare(replica, halves, leaves)
        if compared is not None:
            return compared
        if not bool(self.refused):
            try:
                return run_vmapped(replica, halves, leaves)
            except Exception as error:
                self.refuse(error)
                restore()
        return run_one_by_one(replica, halves, leaves, scaler=None)

    def _compare(self, replica: Replica, halves: Sequence[Half], leaves: Leaves) -> HalfPasses | None:
        """Compare one pass over all halves with one pass over each; remember the modes in which they agree.

        Returns:
            The passes; `None` where they are refused, or are still to be run because the model draws random numbers.
            Dropout is switched off for the comparison.
        """
        first = halves[0]
        with preserved_random_states(leaves.live):
            states = random_states(leaves.live)
            with stored_elements(replica.parameters.values()) as sizes:
                run_pass(replica, {first.domain: first.samples}, leaves, scaler=None)
            drawn = random_states(leaves.live) != states
            try:
                check_pass_is_small(sizes)
                with WithoutDropout():
                    vmapped = _run_compared(replica, halves, leaves)
            except Exception as error:
                self.refuse(error)
                return None
        if bool(torch.stack(vmapped.losses).isfinite().all()):
            self._verified = modes_of(model_and_losses(replica)[0])
        return None if drawn else vmapped

    def refuse(self, error: Exception) -> None:
        """Run halves one by one from now on."""
        self.reason = f"{type(error).__name__}: {error}"
        if isinstance(error, VmapRefusedError):
            self.reason = str(error)
        branches = any(text in self.reason for text in _DATA_DEPENDENT)
        self.saw_data_dependence = branches and _raised_in(error) not in _HARMLESS_BRANCHES
        self.refused.fill_(True)

    def extra_repr(self) -> str:
        """Whether it is in use, for `print(balancer)`."""
        if not bool(self.refused):
            return "in use where halves can be stacked"
        return f"not used: {self.reason or 'refused before the checkpoint'}"


def run_one_by_one(
    replica: Replica, halves: Sequence[Half], leaves: Leaves, *, scaler: GradScaler | None
) -> HalfPasses:
    """One pass over each half."""
    losses: list[Tensor] = []
    outputs: list[Tree] = []
    rows: list[Gradients] = []
    overflowed = False
    for half in halves:
        half_pass = run_pass(replica, {half.domain: half.samples}, leaves, scaler=scaler)
        losses.append(half_pass.losses[half.domain])
        outputs.extend(half_pass.outputs.values())  # one, or none for an objective
        rows.append(half_pass.gradients)
        overflowed |= half_pass.overflowed
    return HalfPasses(losses, outputs, GradientRows.separate(rows), overflowed)


def _run_compared(replica: Replica, halves: Sequence[Half], leaves: Leaves) -> HalfPasses:
    """One pass over all halves, refused where it gives something else than one pass over each."""
    with warnings.catch_warnings():
        # Raised where vmap has no rule for an operation, and would run it once for each half.
        warnings.filterwarnings("error", message="There is a performance drop")
        vmapped = run_vmapped(replica, halves, leaves, on_copy=True)
    # One half after the other, so that the gradients are not in memory twice.
    for row, half in enumerate(halves):
        separate = run_pass(replica, {half.domain: half.samples}, leaves, scaler=None)
        check_same_pass(vmapped, row, separate)
    return vmapped


def run_vmapped(replica: Replica, halves: Sequence[Half], leaves: Leaves, *, on_copy: bool = False) -> HalfPasses:
    """One pass over all halves; raises whatever `vmap` raises.

    Args:
        replica: of the model and the losses.
        halves: of one shape and one loss.
        leaves: what the gradients are for.
        on_copy: run a copy of the replica. A module that keeps state would keep tensors that only `vmap` can read.
    """
    half_loss = _HalfLoss(*model_and_losses(replica), halves[0].domain)
    names = {id(parameter): name for name, parameter in half_loss.named_parameters()}
    if any(id(leaf) not in names for leaf in leaves.replicas):
        raise VmapRefusedError("a trainable parameter is not registered with any module")
    parameters = {names[id(leaf)]: leaf.detach() for leaf in leaves.replicas}
    runner: nn.Module = half_loss
    if on_copy:
        runner = Replica(half_loss, borrow=True).modules[0]

    def loss_and_outputs(values: dict[str, Tensor], samples: Tree) -> tuple[Tensor, list[Tree]]:
        result: tuple[Tensor, list[Tree]] = functional_call(runner, values, (samples,))
        return result

    # Each half draws masks of dropout of its own.
    differentiate = vmap(grad_and_value(loss_and_outputs, has_aux=True), in_dims=(None, 0), randomness="different")
    stacked = stack_samples([half.samples for half in halves])
    with torch.no_grad():  # which ends where `grad_and_value` begins
        gradients, (half_losses, outputs) = differentiate(parameters, stacked)
    half_outputs: list[Tree] = []
    for stacked_outputs in outputs:  # one, or none for an objective
        half_outputs = unstack_samples(stacked_outputs, len(halves))
    return HalfPasses(list(half_losses.unbind()), half_outputs, GradientRows(list(gradients.values())))


def check_same_pass(vmapped: HalfPasses, row: int, separate: Pass) -> None:
    """Refuse `vmap` where it gives another loss or other gradients for a half than a pass over that half."""
    if any(gradient is None for gradient in separate.gradients):
        # vmap would give zeros, along which an optimizer with momentum or weight decay steps.
        raise VmapRefusedError("the loss does not depend on every trainable parameter")
    (loss,) = separate.losses.values()
    if not bool(loss.isfinite()):
        return  # nothing can be compared; the next vote may tell
    eps = torch.finfo(loss.dtype).eps
    if not torch.allclose(vmapped.losses[row], loss, rtol=4096 * eps, atol=eps):
        raise VmapRefusedError("the losses of vmap are others than those of separate passes")
    # Another order of summation: 2e-5 in most rows of the benchmark's networks, in float32. Where it switches an
    # activation or a maximum near a tie, 2 % in single rows of a U-Net.
    if not are_close(vmapped.gradients.row(row), separate.gradients, tolerance=0.1):
        raise VmapRefusedError("the gradients of vmap are others than those of separate passes")


class _HalfLoss(nn.Module):
    """The loss of one half and the model's outputs, as a function of the parameters and the samples.

    Args:
        model: the model's replica.
        losses: the losses' replica.
        domain: the name of any domain, as all have the same loss.
    """

    def __init__(self, model: nn.Module, losses: Losses, domain: str) -> None:
        super().__init__()
        self.model = model
        self.losses = losses
        self.domain = domain

    def forward(self, samples: Tree) -> tuple[Tensor, list[Tree]]:
        losses, outputs = losses_and_outputs(self.model, self.losses, {self.domain: samples})
        return losses[self.domain], list(outputs.values())


@contextmanager
def stored_elements(parameters: Iterable[Tensor]) -> Iterator[list[int]]:
    """The sizes of the tensors, parameters aside, that a pass stores for its backward pass."""
    addresses = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    sizes: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in addresses:
            sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield sizes


def check_pass_is_small(sizes: Sequence[int]) -> None:
    """Refuse passes that store much: run one by one they are as fast, and need less memory."""
    stored = sum(sizes)
    if stored > _LARGE_PASS:
        raise VmapRefusedError(
            f"a pass over one half stores {stored / 1e6:.1f} M elements, more than {_LARGE_PASS / 1e6:.0f} M"
        )
