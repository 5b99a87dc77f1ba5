"""The balancer's counters: says what to do where votes are often missed, and undoes the counts of a failed call."""

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from steelyard.batches import Tree
from steelyard.measurement import Outcome, Update
from steelyard.probing import Probe
from steelyard.probing.gathering import Gathering
from steelyard.weighting import Weighting

# A warning comes when an outcome without a vote was counted this often, consecutively or as this share of all votes.
_COUNT = 25
_SHARE = 0.25

_ADVICE = {
    Outcome.TIE: (
        "every step left all domains alike. Check that the learning rate is not 0 and that the optimizer holds the "
        "model's trainable parameters"
    ),
    Outcome.NOT_FINITE: (
        "a value that was measured is inf or nan. Look at the losses, and try a lower learning rate; in float16 pass "
        "the outer loop's scaler to the probe, InnerLoop(scaler=scaler)"
    ),
    Outcome.TOO_FEW: (
        "a vote needs at least two domains in a batch, and at least two samples of each. "
        "InnerLoop(gather=True) gathers samples across batches"
    ),
    Outcome.RANKS_APART: (
        "domains can only be compared within a rank, and the ranks hold different ones. "
        "Shuffle so that the batches of every rank hold samples of several domains"
    ),
}
_WHILE_GATHERING = (Outcome.TOO_FEW, Outcome.RANKS_APART)


class Counters(nn.Module):
    """Counts outcomes, batches and domains; warns once about each kind of outcome that often replaces a vote.

    Args:
        domains: their names.

    Attributes:
        gathers: whether samples are gathered over several steps; until there are enough, no vote is meant to be cast.
    """

    outcomes: Tensor
    """How often each outcome came about."""
    presence: Tensor
    """The number of batches, and of batches with each domain."""

    def __init__(self, domains: Sequence[str]) -> None:
        super().__init__()
        self.domains = tuple(domains)
        self.gathers = False
        self.register_buffer("outcomes", torch.zeros(len(Outcome), dtype=torch.int64))
        self.register_buffer("presence", torch.zeros(len(domains) + 1, dtype=torch.int64))
        self._warned: set[Outcome] = set()
        self._last: Outcome | None = None
        self._in_row = 0

    @property
    def device(self) -> torch.device:
        """Where the counters are."""
        return self.outcomes.device

    @property
    def tally(self) -> dict[str, int]:
        """How often each outcome came about, by its text; those that never did are left out."""
        counts = zip(Outcome, self.outcomes.tolist(), strict=True)
        return {outcome.value: count for outcome, count in counts if count}

    @property
    def batches(self) -> int:
        """The number of batches in training."""
        return int(self.presence[0])

    @property
    def presences(self) -> list[float]:
        """For each domain the part of the batches that held samples of it; NaN before the first batch."""
        parts: list[float] = (self.presence[1:].double() / self.presence[0]).tolist()
        return parts

    def note_presence(self, batch: Mapping[str, Tree]) -> None:
        """Count a batch, and the domains in it."""
        self.presence += torch.tensor([1, *(name in batch for name in self.domains)], device=self.presence.device)

    def note(self, update: Update) -> Update:
        """Count an outcome; return what it is the outcome of."""
        self.outcomes[list(Outcome).index(update.outcome)] += 1
        self._warn_if_frequent(update.outcome)
        return update

    def _warn_if_frequent(self, outcome: Outcome) -> None:
        if outcome is Outcome.NOT_DUE:
            return
        if outcome is not self._last:
            self._in_row = 0
        self._in_row += 1
        self._last = outcome
        if outcome not in _ADVICE or outcome in self._warned:
            return
        if self.gathers and outcome in _WHILE_GATHERING:
            return
        tally = self.tally
        missed = tally[outcome.value]
        votes = tally.get(Outcome.UPDATED.value, 0)
        often = missed >= _SHARE * (missed + votes) or self._in_row >= _COUNT
        if missed >= _COUNT and often:
            self._warned.add(outcome)
            warnings.warn(f"{missed} steps cast no vote: {_ADVICE[outcome]}.", stacklevel=_level_of_caller())


def _level_of_caller() -> int:
    """The `stacklevel` by which a warning shows the user's own line."""
    frame = sys._getframe(1)
    level = 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("steelyard", "torch"):
        frame = frame.f_back
        level += 1
    return level


@contextmanager
def restored_on_error(
    own_tensors: Sequence[Tensor], weighting: Weighting, probe: Probe | None, *, undo: bool
) -> Iterator[None]:
    """If a call raises, undo what it has counted and learned.

    What a probe has learned about the model, such as that gradients cannot be shared, stays true and is not undone.

    Args:
        own_tensors: the balancer's own counters, and what it has measured.
        weighting: its votes and weights.
        probe: its number of steps, and the samples it has gathered.
        undo: whether to; not where other ranks count the step.
    """
    tensors = [*own_tensors, *_state_tensors(weighting)]
    gathering: Gathering | None = None
    gathered: dict[str, Tree] = {}
    if probe is not None:
        tensors.append(probe.steps)
        gathering = probe.gathering
    if gathering is not None:
        gathered = dict(gathering.kept)
    tensor_copies = [tensor.clone() for tensor in tensors]
    try:
        yield
    except BaseException:
        if not undo:
            raise
        with torch.no_grad():
            for tensor, tensor_copy in zip(tensors, tensor_copies, strict=True):
                tensor.copy_(tensor_copy)
        if gathering is not None:
            gathering.kept = gathered
        raise


def _state_tensors(module: nn.Module) -> list[Tensor]:
    """Buffers and parameters: all that a weighting changes."""
    return [*module.buffers(), *(parameter.detach() for parameter in module.parameters())]
