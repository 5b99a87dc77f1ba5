"""Says what to do where votes are often lost."""

import sys
import warnings
from collections.abc import Mapping

from steelyard.measurement import Outcome

# A warning comes when an outcome without a vote was counted this often, in a row or as this share of all votes.
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


class MissedVotes:
    """Warns once of each kind of outcome that often takes the place of a vote.

    Args:
        gathers: whether samples are gathered over several steps; until there are enough, no vote is meant to be cast.
    """

    def __init__(self, *, gathers: bool) -> None:
        self._expected = _WHILE_GATHERING if gathers else ()
        self._warned: set[Outcome] = set()
        self._last: Outcome | None = None
        self._in_row = 0

    def note(self, outcome: Outcome, tally: Mapping[str, int]) -> None:
        """Take notice of an outcome; warn if it is frequent.

        Args:
            outcome: of this step.
            tally: how often each outcome came about so far, by its text.
        """
        if outcome is Outcome.NOT_DUE:
            return
        self._in_row = self._in_row + 1 if outcome is self._last else 1
        self._last = outcome
        if outcome not in _ADVICE or outcome in self._expected or outcome in self._warned:
            return
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
