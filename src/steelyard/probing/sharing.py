"""Whether gradients that were taken for a vote may serve the outer step as well."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from steelyard.batches import Tree
from steelyard.probing.passes import GradientRows
from steelyard.probing.probe import Gradients, Losses, Shared
from steelyard.probing.replica import Replica

Reusing = bool | Literal["detect"]

RECHECK_EVERY = 1000  # votes; a network may change what it does without changing its modes
_MOST_ROWS = 8
_FEW_ELEMENTS = 2**28  # 1 GB in float32
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


class CannotShareError(Exception):
    """Says why the vote's gradients cannot serve the outer step."""


class AuditCase(NamedTuple):
    """What an audit holds for, besides the modules' modes.

    Attributes:
        parts: in how many parts a domain's samples are run.
        drawn: whether the passes draw random numbers.
    """

    parts: int
    drawn: bool


class Reuse(nn.Module):
    """Decides, at every vote, whether the outer step may use the gradients of the vote's own passes.

    It may where a domain's outer loss is the mean of the losses of its halves, weighted by their sizes: samples are
    processed independently, nothing random but dropout is drawn in the forward pass, and the loss is a mean over
    samples.

    Args:
        setting: `False`, never; `True`, the user says so, and a contradiction is an error; `detect`, where nothing
            contradicts it. A contradiction that does not depend on the modules' modes is part of the state, so that a
            run continued from a checkpoint does the same.

    Attributes:
        reason: why the last vote did not share, or `None`.
    """

    refused: Tensor

    def __init__(self, setting: Reusing) -> None:
        super().__init__()
        if setting not in (True, False, "detect"):
            raise ValueError(f"reuse must be True, False or 'detect'; got {setting!r}.")
        self.setting = setting
        self.reason: str | None = None
        self._audited: tuple[object, ...] | None = None  # the case and the modes of the last audit
        if setting == "detect":
            self.register_buffer("refused", torch.zeros((), dtype=torch.bool))

    def may_begin(
        self, model: nn.Module, losses: Losses, *, scaler: GradScaler | None, rows: int, dropout: bool = False
    ) -> bool:
        """Whether nothing speaks against sharing before any pass was run.

        Args:
            model: the live model.
            losses: the live losses.
            scaler: the outer loop's.
            rows: how many gradients of the whole model are in memory until the weights are known.
            dropout: whether each pass of the probe draws numbers of its own, as passes of the outer step do.
        """
        if self.setting is False or (self.setting == "detect" and bool(self.refused)):
            return False
        self.reason = None

        def check() -> None:
            check_modules(model)
            if not dropout:
                check_no_dropout(model)
            if scaler is None:
                check_precision(model)
            if self.setting == "detect":
                check_can_be_verified(model, losses)
                check_memory(model, rows)

        return self.holds(check, lasting=False)

    def holds(self, check: Callable[[], None], *, lasting: bool = True) -> bool:
        """Whether sharing survives a check, which raises `CannotShareError` if not.

        Args:
            check: is called without arguments.
            lasting: whether a contradiction ends sharing for good, not only at this vote.
        """
        try:
            check()
        except CannotShareError as contradiction:
            if self.setting is True:
                self._audited = None
                raise ValueError(
                    f"reuse=True needs a loss that is a mean over independently processed samples; but {contradiction}."
                ) from None
            if lasting:
                self.refused.fill_(True)
            self.reason = str(contradiction)
            return False
        return True

    def needs_audit(self, model: nn.Module, case: AuditCase, vote_number: int) -> bool:
        """Whether the model was not audited in its modes in this case, or a re-check is due."""
        return (*case, *modes_of(model)) != self._audited or vote_number % RECHECK_EVERY == 0

    def note_audit(self, model: nn.Module, case: AuditCase) -> None:
        """The model was audited in its current modes in this case."""
        self._audited = (*case, *modes_of(model))

    def extra_repr(self) -> str:
        """The setting, for `print(balancer)`."""
        return repr(self.setting)


def modes_of(model: nn.Module) -> tuple[bool, ...]:
    """Which modules are in training mode, and which parameters are trained."""
    modes = [module.training for module in model.modules()]
    return (*modes, *(parameter.requires_grad for parameter in model.parameters()))


def check_modules(model: nn.Module) -> None:
    """Refuse modules that, in their current modes, let samples meet or keep statistics."""
    for module in model.modules():
        name = type(module).__name__
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise CannotShareError(f"the gradients of {name} are sparse")
        if not module.training:
            continue
        if isinstance(module, _BATCH_NORMS):
            raise CannotShareError(f"the samples of a batch meet in {name}")
        if isinstance(module, _INSTANCE_NORMS) and module.track_running_stats:
            raise CannotShareError(f"{name} keeps running statistics")


def check_no_dropout(model: nn.Module) -> None:
    """Refuse modules that draw random numbers in their current modes."""
    for module in model.modules():
        if isinstance(module, _DROPOUTS) and module.training and module.p > 0:
            raise CannotShareError(f"{type(module).__name__} draws random numbers")


def check_precision(model: nn.Module) -> None:
    """Refuse float16 without a scaler: gradients may vanish that the outer loop's scaler would have preserved."""
    precisions: set[torch.dtype] = set()
    for parameter in model.parameters():
        device = parameter.device.type
        precisions.add(parameter.dtype)
        if torch.is_autocast_enabled(device):
            precisions.add(torch.get_autocast_dtype(device))
    if torch.float16 in precisions:
        raise CannotShareError(
            "gradients in float16 underflow where losses are not scaled: give the probe the outer loop's scaler="
        )


def check_can_be_verified(model: nn.Module, losses: Losses) -> None:
    """Refuse what no check below can see through."""
    if not losses.follow_outputs:
        raise CannotShareError(
            "an objective runs the model itself, so that nothing tells whether it is a mean over samples "
            "(with forward= and loss= it can be told)"
        )
    # Private names of torch 2.13: a module that torch.compile returns, and one that was compiled in place.
    if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None:
        raise CannotShareError("the model is compiled, and the vote's passes run eagerly")


def check_memory(model: nn.Module, rows: int) -> None:
    """Refuse gradients that take over 8 times the model's memory, unless that is little."""
    elements = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    if rows > _MOST_ROWS and rows * elements > _FEW_ELEMENTS:
        raise CannotShareError(
            f"{rows} gradients of {elements / 1e6:.0f} M parameters would be in memory until the weights are known; "
            "with reuse=True they are"
        )


def check_traces(replica: Replica, *, drawn: bool) -> None:
    """Refuse passes that drew random numbers, or wrote to a buffer since it was copied."""
    if drawn or replica.drew_numbers():
        raise CannotShareError("the forward pass draws random numbers")
    if replica.wrote_buffers():
        raise CannotShareError("the forward pass changes the model's buffers")


class Part(NamedTuple):
    """The loss on some of a domain's samples, detached, and their share in the domain's loss."""

    domain: str
    share: float
    loss: Tensor


def share(
    parts: Sequence[Part],
    gradients: GradientRows,
    parameters: Sequence[Tensor],
    *,
    rest: Mapping[str, tuple[float, Tree]],
) -> Shared:
    """The outer losses as far as they follow from parts of the samples, with one row of gradients for each part."""
    losses: dict[str, Tensor] = {}
    for part in parts:
        term = part.share * part.loss
        if part.domain in losses:
            term = losses[part.domain] + term
        losses[part.domain] = term

    def combine(weights: Mapping[str, float]) -> Gradients:
        return gradients.weighted_sum([weights[part.domain] * part.share for part in parts])

    return Shared(losses=losses, combine=combine, parameters=parameters, rest=rest)
